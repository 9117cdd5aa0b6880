"""Build JSON Schema (2020-12, as in OpenAPI 3.1) concisely."""

from collections.abc import Mapping
from typing import Any

Shape = Mapping[str, Any]


def _shape(**fields: Any) -> Shape:
    return fields


ANYTHING: Shape = _shape()
TEXT: Shape = _shape(type="string")
INTEGER: Shape = _shape(type="integer")
COUNT: Shape = _shape(type="integer", minimum=0)
NUMBER: Shape = _shape(type="number")
FLAG: Shape = _shape(type="boolean")
MOMENT: Shape = _shape(type="string", format="date-time")
NOTHING: Shape = _shape(type="null")


def one_of(*values: str) -> Shape:
    """A string with one of these values."""
    return _shape(type="string", enum=list(values))


def maybe(shape: Shape) -> Shape:
    """``shape`` or null."""
    return _shape(anyOf=[dict(shape), dict(NOTHING)])


def either(*shapes: Shape) -> Shape:
    """One of these."""
    return _shape(anyOf=[dict(shape) for shape in shapes])


def array(items: Shape) -> Shape:
    """A list of these."""
    return _shape(type="array", items=dict(items))


def table(values: Shape) -> Shape:
    """An object with any names and these values."""
    return _shape(type="object", additionalProperties=dict(values))


def record(**fields: Shape) -> Shape:
    """An object with exactly these fields, all required."""
    properties = {name: dict(shape) for name, shape in fields.items()}
    return _shape(type="object", properties=properties, required=list(properties), additionalProperties=False)


def allow(shape: Shape, **fields: Shape) -> Shape:
    """A record that may have these fields, too."""
    return _shape(
        **{
            **shape,
            "properties": {**shape["properties"], **{name: dict(field_shape) for name, field_shape in fields.items()}},
        }
    )


def explain(shape: Shape, description: str) -> Shape:
    """``shape`` with a description."""
    return _shape(**{**shape, "description": description})


def listing(items: Shape) -> Shape:
    """A list in the form of the OpenAI API."""
    return record(object=one_of("list"), data=array(items))
