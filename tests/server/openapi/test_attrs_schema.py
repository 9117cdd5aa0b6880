"""A noun in JSON Schema says of a body what its reader does; it is read from the class, limits and all."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, get_args

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.domain.account_spec import AccountSpec, CreditSpec, KeySpec
from gateway.parsing import NOT_NEGATIVE, POSITIVE, ValidationErrors, between, keyed, must, parse_table
from gateway.routing.channel_spec import ChannelSpec
from gateway.server.admin.routes import list_admin_operations
from gateway.server.openapi.attrs_schema import (
    DESCRIPTIONS,
    allow_null,
    build_kind,
    build_spec_schema,
    parse_attributes,
)
from tests.support.table_rows import table_rows

SPECS = (AccountSpec, KeySpec, CreditSpec, ChannelSpec)
NULL = {"type": "null"}


@attrs.frozen
class Inner:
    """What is in it."""

    width: int = attrs.field(metadata=between(1))


@attrs.frozen
class Named:
    """What may be a text."""

    width: int = 1

    @staticmethod
    def from_text(text: str) -> Mapping[str, Any]:
        return {"width": len(text)}


@attrs.frozen
class Noun:
    """What a test takes.

    Attributes:
        title, word: what it is called,
            in ``two`` lines.
        ratio: how much.
    """

    title: str
    word: str = "w"
    ratio: float = attrs.field(default=0.5, metadata=POSITIVE)
    many: int | None = attrs.field(default=None, metadata=between(2, 9))
    price: Decimal = attrs.field(default=Decimal("1.5"), metadata=NOT_NEGATIVE)
    letter: Literal["a", "b"] | None = None
    digit: Literal[1, 2] = 1
    at: datetime | None = None
    flags: tuple[bool, ...] = (True,)
    table: dict[str, str] = attrs.field(factory=dict, metadata=must("odd names", lambda _value: True))
    inner: Inner = attrs.field(factory=lambda: Inner(3))
    inners: tuple[Inner, ...] = ()
    under: tuple[Named, ...] = attrs.field(default=(), metadata=keyed("if"))
    hidden: str | None = attrs.field(default=None, repr=False)


INNER = {
    "type": "object",
    "description": "What is in it.",
    "properties": {"width": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}},
    "required": ["width"],
    "additionalProperties": False,
}


NAMED = {
    "type": "object",
    "description": "What may be a text.",
    "properties": {"width": {"type": "integer", "default": 1}},
    "additionalProperties": False,
}


def test_every_type_default_limit_and_word_of_a_class_is_in_its_schema() -> None:
    schema = build_spec_schema(Noun)
    about = "What it is called, in `two` lines."
    assert schema == {
        "type": "object",
        "description": "What a test takes.",
        "additionalProperties": False,
        "required": ["title"],
        "properties": {
            "title": {"type": "string", "description": about},
            "word": {"type": "string", "description": about, "default": "w"},
            "ratio": {"type": "number", "exclusiveMinimum": 0, "description": "How much.", "default": 0.5},
            "many": {"type": ["integer", "null"], "minimum": 2, "maximum": 9, "default": None},
            "price": {"type": "number", "minimum": 0, "default": 1.5},
            "letter": {"type": ["string", "null"], "enum": ["a", "b", None], "default": None},
            "digit": {"type": "integer", "enum": [1, 2], "default": 1},
            "at": {"type": ["string", "null"], "format": "date-time", "default": None},
            "flags": {"type": "array", "items": {"type": "boolean"}, "default": [True]},
            "table": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "default": {},
                "description": "Odd names.",
            },
            "inner": {**INNER, "default": {"width": 3}},
            "inners": {"type": "array", "items": INNER, "default": []},
            "if": {"type": "array", "items": {"anyOf": [{"type": "string"}, NAMED]}, "default": []},
            "hidden": {"type": ["string", "null"], "default": None, "writeOnly": True},
        },
    }


def test_in_a_change_nothing_is_required_and_null_takes_back_what_has_a_default() -> None:
    schema = build_spec_schema(Noun, partly=True)
    properties = schema["properties"]
    assert "required" not in schema
    assert properties["title"]["type"] == "string"
    assert properties["word"]["type"] == ["string", "null"]
    assert properties["digit"] == {"type": ["integer", "null"], "enum": [1, 2, None]}
    assert not [name for name, field in properties.items() if "default" in field]


@table_rows("kind", [bytes, set[str], object, type(None)])
def test_what_no_table_is_read_into_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="cannot be parsed from a table"):
        build_kind(kind)


@table_rows(
    ("schema", "wider"),
    [
        ({}, {}),
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"enum": [1], "type": "integer"}, {"enum": [1, None], "type": ["integer", "null"]}),
        ({"anyOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}, NULL]}),
        ({"anyOf": [NULL]}, {"anyOf": [NULL]}),
        ({"$ref": "#/x"}, {"anyOf": [{"$ref": "#/x"}, NULL]}),
    ],
)
def test_null_is_let_in_beside_what_was(schema: dict[str, Any], wider: dict[str, Any]) -> None:
    before = repr(schema)
    assert allow_null(schema) == wider
    assert repr(schema) == before
    assert Draft202012Validator(allow_null(schema) if "$ref" not in schema else {}).is_valid(None)


@table_rows("text", ["", "One line.", "Attributes:", "Attributes:\n", "A.\n\n    Attributes:\n    none\n"])
def test_a_docstring_without_attributes_tells_nothing(text: str) -> None:
    assert parse_attributes(text) == {}


def list_nouns() -> Iterator[tuple[str, Any]]:
    """Every schema of a noun that a door takes, or that is in one, and the class's name."""
    kinds: list[Any] = [door.handler.takes for door in list_admin_operations() if door.handler.takes is not None]
    for kind in kinds:
        yield kind.__name__, build_spec_schema(kind)
        inner = [
            each for field in attrs.fields(kind) for each in (field.type, *get_args(field.type)) if attrs.has(each)
        ]
        kinds += [each for each in inner if each not in kinds]  # also what is in those


def test_every_field_that_people_write_has_words() -> None:
    missing = [
        f"{name}.{field}"
        for name, schema in list_nouns()
        for field, reported in schema["properties"].items()
        if not reported.get("description")
    ]
    assert not missing, "each needs a line in WORDS, or under Attributes in its class's docstring"


def test_no_word_is_left_of_a_field_that_is_gone() -> None:
    known = {
        each for name, schema in list_nouns() for field in schema["properties"] for each in (field, f"{name}.{field}")
    }
    assert {*DESCRIPTIONS} <= known


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**33),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["", "a", "acme", "active", "daily", "set", "openai", "2027-01-31", "10.0.0.0/8", "https://a.example"]
    ),
    st.lists(st.sampled_from(["a", "m*", "10.0.0.0/8", 1]), max_size=2),
    st.dictionaries(st.sampled_from(["a", "X-B"]), st.sampled_from(["c", 1]), max_size=2),
)


@table_rows("spec", SPECS)
def test_what_is_read_is_valid_and_what_is_not_valid_is_not_read(spec: type) -> None:
    validator = Draft202012Validator(build_spec_schema(spec))
    base: dict[str, Any] = {"name": "n", "account": "a", "amount_usd": 1, "provider": "openai", "models": ["m"]}
    names = [field.name for field in attrs.fields(spec)]
    start = {name: value for name, value in base.items() if name in names}
    parse_table(start, spec)
    validator.validate(start)

    @given(st.dictionaries(st.sampled_from([*names, "other"]), VALUES, min_size=1, max_size=2))
    def agree(more: dict[str, Any]) -> None:
        table = start | more
        try:
            parse_table(table, spec)
        except ValidationErrors:
            return
        validator.validate(table)

    agree()
