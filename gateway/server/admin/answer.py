"""Answer classes: one attrs class defines a handler's result, its JSON and its schema in the OpenAPI document.

The JSON has the fields in the order of the class, those marked ``FIRST`` before all others. See
``gateway.answer_fields`` for the marks of fields.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import attrs

from gateway.answer_fields import OMITTED, Count, FieldSchema
from gateway.domain.account_spec import build_time
from gateway.domain.price import NANOS_PER_USD
from gateway.frozen import frozen
from gateway.server.openapi import schema as s

T = TypeVar("T")
Convert = Callable[[int], Any]
IN_FORCE = s.explain(
    s.record(nodes=s.COUNT, of=s.COUNT, ms=s.COUNT),
    "Only in the answer to a change, and only in a cluster: the change is in force at so many nodes `of` those that "
    "live. The answer waits for them, up to 500 `ms`. A node that cannot apply a change takes no requests after 10 s.",
)
_SCALAR_SCHEMAS: Mapping[Any, s.Schema] = {Any: s.ANYTHING, str: s.TEXT, bool: s.FLAG, int: s.INTEGER, float: s.NUMBER}


@frozen
class InForceView:
    """The number of ``nodes``, ``of`` all live ones, at which a change was in force after ``ms`` milliseconds."""

    nodes: Count
    of: Count
    ms: Count


InForceField = Annotated[InForceView, FieldSchema(IN_FORCE)]


@frozen
class Deleted:
    """What was deleted, by its name."""

    name: str
    deleted: bool = True


@frozen
class DeletedInForce(Deleted):
    """What was deleted, in the answer to a change that other nodes have to apply."""

    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


def write_answer(answer: Any) -> dict[str, Any]:
    """Return the fields of an attrs object, without those that are left out if None; a ``default`` hook of orjson.

    Raises ``TypeError`` for other objects.
    """
    kind: Any = type(answer)
    names, omitted = _list_names(kind)
    return {name: value for name in names if (value := getattr(answer, name)) is not None or name not in omitted}


@cache
def _list_names(kind: type) -> tuple[tuple[str, ...], frozenset[str]]:
    if not attrs.has(kind):
        raise TypeError(f"{kind.__name__} is not JSON")
    fields = list_fields(kind)
    return tuple(field.name for field in fields), frozenset(
        field.name for field in fields if field.metadata.get("omitted")
    )


def list_fields(kind: Any) -> list["attrs.Attribute[Any]"]:
    """Return the fields of a class in the order of the JSON."""
    return sorted(attrs.fields(kind), key=lambda field: not field.metadata.get("first"))


def build_view(kind: type[T], source: object, **extra_fields: Any) -> T:
    """Build an answer from the attributes of ``source`` that are named as its fields, and from ``extra_fields``.

    A field such as ``created_at`` is also filled from an attribute ``created_ms`` or ``created_s`` (Unix time), and a
    field such as ``cost_usd`` from an attribute ``cost_nanos``. An attribute that is None gives a field that is None.
    """
    key: Any = kind, type(source), tuple(extra_fields)
    copied_names, conversions = _list_sources(*key)
    for name, attribute, convert in conversions:
        value = getattr(source, attribute)
        extra_fields[name] = None if value is None else convert(value)
    return kind(**{name: getattr(source, name) for name in copied_names}, **extra_fields)


@cache
def _list_sources(
    kind: Any, source: type, given_names: tuple[str, ...]
) -> tuple[list[str], list[tuple[str, str, Convert]]]:
    """Return the fields that are attributes of ``source``, and those to convert, each with its attribute."""
    remaining_names = [field.name for field in attrs.fields(kind) if field.name not in given_names]
    return [name for name in remaining_names if hasattr(source, name)], [
        (name, f"{name.removesuffix(suffix)}{unit}", convert)
        for name in remaining_names
        if not hasattr(source, name)
        for suffix, unit, convert in _CONVERSIONS
        if name.endswith(suffix) and hasattr(source, f"{name.removesuffix(suffix)}{unit}")
    ]


_CONVERSIONS: tuple[tuple[str, str, Convert], ...] = (
    ("_at", "_ms", lambda at_ms: build_time(at_ms // 1000)),
    ("_at", "_s", build_time),
    ("_usd", "_nanos", lambda nanos: nanos / NANOS_PER_USD),
)
"""The ending of a field, the ending of the attribute, and the function that converts the attribute's value."""


def read_answer(kind: type[T], value: Any) -> T:
    """Return the JSON of another node as the type ``kind``. A field that the node's version does not have is None."""
    answer: T = _read_value(kind, value)
    return answer


def _read_value(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if attrs.has(kind):
        return kind(**{field.name: _read_value(field.type, value.get(field.name)) for field in attrs.fields(kind)})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {list, Sequence}:
        return [_read_value(arguments[0], item) for item in value]
    return _read_value(arguments[0], value) if origin in {Union, UnionType} else value


def build_answer(kind: Any) -> s.Schema:
    """Return the schema of a handler's result. A list has the form of the OpenAI API."""
    return s.listing(build_json_schema(get_args(kind)[0])) if get_origin(kind) is list else build_json_schema(kind)


def build_json_schema(kind: Any) -> s.Schema:
    """Return the schema of an attrs class or of a field's type."""
    if kind in _SCALAR_SCHEMAS:
        return _SCALAR_SCHEMAS[kind]
    build = _BUILDERS.get(get_origin(kind))
    return _build_record(kind) if build is None else build(get_args(kind))


def _build_union(kinds: tuple[Any, ...]) -> s.Schema:
    schemas = [build_json_schema(member) for member in kinds if member is not NoneType]
    schema = schemas[0] if len(schemas) == 1 else s.either(*schemas)
    return s.maybe(schema) if NoneType in kinds else schema


def _build_array(kinds: tuple[Any, ...]) -> s.Schema:
    return s.array(build_json_schema(kinds[0]))


def _build_table(kinds: tuple[Any, ...]) -> s.Schema:
    return s.table(build_json_schema(kinds[1]))


_BUILDERS: Mapping[Any, Callable[[tuple[Any, ...]], s.Schema]] = {
    Annotated: lambda arguments: arguments[1].schema,
    Literal: lambda values: s.one_of(*values),
    **dict.fromkeys((Union, UnionType), _build_union),
    **dict.fromkeys((list, tuple, Sequence), _build_array),
    **dict.fromkeys((dict, Mapping), _build_table),
}
"""The function that builds the schema of a generic type from its arguments."""


def _build_record(kind: type) -> s.Schema:
    fields = list_fields(kind)
    required_schemas = {
        field.name: build_json_schema(field.type) for field in fields if not field.metadata.get("omitted")
    }
    optional_schemas = {
        field.name: build_json_schema(next(member for member in get_args(field.type) if member is not NoneType))
        for field in fields
        if field.metadata.get("omitted")
    }
    record = s.record(**required_schemas)
    return s.allow(record, **optional_schemas) if optional_schemas else record
