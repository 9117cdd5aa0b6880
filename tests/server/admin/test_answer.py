"""One class is what a handler returns, its JSON, and its schema."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
import orjson
import pytest

from gateway.answer_fields import FIRST, OMITTED, Count, FieldSchema, Moment
from gateway.server.admin.answer import (
    InForceField,
    InForceView,
    build_answer,
    build_json_schema,
    build_view,
    read_answer,
    write_answer,
)
from gateway.server.openapi import schema as s


@attrs.frozen(kw_only=True)
class Part:
    size: Count
    at: Moment | None


@attrs.frozen(kw_only=True)
class Thing:
    name: str
    parts: Sequence[Part]
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@attrs.frozen(kw_only=True)
class Numbered(Part):
    number: int = attrs.field(metadata=FIRST)
    name: str


PART = s.record(size=s.COUNT, at=s.maybe(s.MOMENT))


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, s.TEXT),
        (int, s.INTEGER),
        (float, s.NUMBER),
        (bool, s.FLAG),
        (Any, s.ANYTHING),
        (Count, s.COUNT),
        (Moment, s.MOMENT),
        (int | None, s.maybe(s.INTEGER)),
        (Count | None, s.maybe(s.COUNT)),
        (Literal["a", "b"], s.one_of("a", "b")),
        (Annotated[str, FieldSchema(s.one_of("c"))], s.one_of("c")),
        (Sequence[str], s.array(s.TEXT)),
        (tuple[Part, ...], s.array(PART)),
        (Mapping[str, Part], s.table(PART)),
        (Part | str, s.either(PART, s.TEXT)),
        (Part, PART),
        (Numbered, s.record(number=s.INTEGER, size=s.COUNT, at=s.maybe(s.MOMENT), name=s.TEXT)),
    ],
)
def test_a_type_has_its_schema(kind: Any, schema: s.Schema) -> None:
    assert build_json_schema(kind) == schema
    assert build_answer(list[kind]) == s.listing(schema)


def test_a_field_that_may_be_left_out_is_not_required() -> None:
    schema = build_json_schema(Thing)
    assert schema["required"] == ["name", "parts"]
    assert list(schema["properties"]) == ["name", "parts", "in_force"]
    assert schema["properties"]["in_force"]["required"] == ["nodes", "of", "ms"]


@pytest.mark.parametrize(
    ("thing", "body"),
    [
        (Thing(name="a", parts=[]), b'{"name":"a","parts":[]}'),
        (Numbered(number=7, size=1, at=None, name="b"), b'{"number":7,"size":1,"at":null,"name":"b"}'),
        (Thing(name="a", parts=(Part(size=1, at=None),)), b'{"name":"a","parts":[{"size":1,"at":null}]}'),
        (
            Thing(name="a", parts=[], in_force=InForceView(1, 2, 3)),
            b'{"name":"a","parts":[],"in_force":{"nodes":1,"of":2,"ms":3}}',
        ),
    ],
)
def test_the_json_has_the_fields_in_their_order(thing: Thing | Numbered, body: bytes) -> None:
    assert orjson.dumps(thing, default=write_answer) == body


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        (list[Part], [{"size": 1, "at": "now"}], [Part(size=1, at="now")]),
        (Part, {"size": 1, "new": 2}, Part(size=1, at=None)),
        (Thing, {"name": "a", "parts": [{"size": 1, "at": None}]}, Thing(name="a", parts=[Part(size=1, at=None)])),
        (Part | None, {"size": 1, "at": None}, Part(size=1, at=None)),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
    ],
)
def test_the_answer_of_a_node_of_another_version_is_read(kind: Any, value: Any, made: Any) -> None:
    assert read_answer(kind, value) == made


@attrs.frozen
class Sum:
    created_ms: int
    seen_s: int | None
    cost_nanos: int
    name: str


@attrs.frozen(kw_only=True)
class SumView:
    created_at: Moment
    seen_at: Moment | None
    cost_usd: float
    name: str
    also: str = ""


@pytest.mark.parametrize(
    ("seen_s", "more", "view"),
    [
        (0, {}, SumView(created_at="1970-01-01T00:00:01Z", seen_at="1970-01-01T00:00:00Z", cost_usd=0.5, name="a")),
        (
            None,
            {"cost_usd": 2, "also": "b"},
            SumView(created_at="1970-01-01T00:00:01Z", seen_at=None, cost_usd=2, name="a", also="b"),
        ),
    ],
)
def test_a_view_has_the_attributes_of_its_source_in_the_units_of_answers(
    seen_s: int | None, more: dict[str, Any], view: SumView
) -> None:
    assert build_view(SumView, Sum(1_999, seen_s, 500_000_000, "a"), **more) == view


def test_what_is_no_answer_is_not_written() -> None:
    with pytest.raises(TypeError):
        orjson.dumps({"one": object()}, default=write_answer)
