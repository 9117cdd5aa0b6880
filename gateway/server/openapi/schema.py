"""What answers look like, in JSON Schema (2020-12, as OpenAPI 3.1 has it), in few words."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Shape = Mapping[str, Any]


def _shape(**fields: Any) -> Shape:
    return MappingProxyType(fields)


ANYTHING: Shape = _shape()
TEXT: Shape = _shape(type="string")
INTEGER: Shape = _shape(type="integer")
COUNT: Shape = _shape(type="integer", minimum=0)
NUMBER: Shape = _shape(type="number")
FLAG: Shape = _shape(type="boolean")
MOMENT: Shape = _shape(type="string", format="date-time")
NOTHING: Shape = _shape(type="null")


def one_of(*values: str) -> Shape:
    """One of these words."""
    return _shape(type="string", enum=list(values))


def maybe(shape: Shape) -> Shape:
    """That, or null."""
    return _shape(anyOf=[dict(shape), dict(NOTHING)])


def either(*shapes: Shape) -> Shape:
    """One of these."""
    return _shape(anyOf=[dict(shape) for shape in shapes])


def array(items: Shape) -> Shape:
    """A list of these."""
    return _shape(type="array", items=dict(items))


def table(values: Shape) -> Shape:
    """An object of names that are not known before, with these for values."""
    return _shape(type="object", additionalProperties=dict(values))


def record(**fields: Shape) -> Shape:
    """An object that has just these fields, each of them."""
    properties = {name: dict(shape) for name, shape in fields.items()}
    return _shape(type="object", properties=properties, required=list(properties), additionalProperties=False)


def extend(shape: Shape, **fields: Shape) -> Shape:
    """A record with these fields as well."""
    return record(**{**shape["properties"], **fields})


def listing(items: Shape, **fields: Shape) -> Shape:
    """A list, in the convention's form."""
    return record(object=one_of("list"), data=array(items), **fields)
