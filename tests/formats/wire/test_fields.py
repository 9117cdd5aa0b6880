"""Typed fields of a body."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.wire.fields import (
    MAX_MODEL_CHARS,
    make_missing_error,
    name_json_type,
    parse_flag,
    parse_integer,
    parse_list,
    parse_model,
    parse_number,
    parse_object,
    read_text,
)
from tests.support.table_rows import table_rows

JSON: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([]), st.just({})
)
READERS: dict[str, tuple[Callable[[dict[str, Any]], Any], tuple[type, ...]]] = {
    "text": (lambda body: read_text(body, "x"), (str,)),
    "flag": (lambda body: parse_flag(body, "x"), (bool,)),
    "integer": (lambda body: parse_integer(body, "x", -5, 5), (int,)),
    "number": (lambda body: parse_number(body, "x", -5, 5), (int, float)),
    "list": (lambda body: parse_list(body, "x"), (list,)),
    "object": (lambda body: parse_object(body, "x"), (dict,)),
}


@pytest.mark.parametrize("name", READERS)
@given(value=JSON)
def test_a_reader_takes_its_own_kind_and_names_the_field_of_any_other(name: str, value: Any) -> None:
    reader, kinds = READERS[name]
    if value is None or (type(value) in kinds and (name not in {"integer", "number"} or -5 <= value <= 5)):
        assert reader({"x": value}) == (value or False if name == "flag" else value)
        return
    with pytest.raises(InvalidRequest) as caught:
        reader({"x": value})
    assert caught.value.param == "x"


@table_rows("name", READERS)
def test_null_is_as_good_as_absent(name: str) -> None:
    reader, _ = READERS[name]
    assert reader({"x": None}) == reader({})


@table_rows("model", ["m", "org/name:tag", "x" * MAX_MODEL_CHARS, "模型", "gpt 4"])
def test_a_model_is_a_printable_string(model: str) -> None:
    assert parse_model({"model": model}) == model


@table_rows("model", [None, "", "a\nb", "a\x00", "x" * (MAX_MODEL_CHARS + 1), 4, True, ["m"], {"id": "m"}, "\u200b"])
def test_anything_else_is_no_model(model: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_model({"model": model})
    assert caught.value.param == "model"


def test_the_model_is_required() -> None:
    with pytest.raises(InvalidRequest, match="Missing"):
        parse_model({})


@table_rows(("value", "good"), [(1, True), (128, True), (0, False), (129, False), (1.0, False)])
def test_integers_keep_to_their_bounds(value: object, good: bool) -> None:
    if good:
        assert parse_integer({"n": value}, "n", 1, 128) == value
    else:
        with pytest.raises(InvalidRequest):
            parse_integer({"n": value}, "n", 1, 128)


def test_a_flag_inside_another_field_is_named_by_its_path() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_flag({"include_usage": 1}, "include_usage", "stream_options.include_usage")
    assert caught.value.param == "stream_options.include_usage"


def test_kinds_are_told_in_the_words_of_json() -> None:
    values: tuple[Any, ...] = (None, True, "x", 1, 1.5, [], {})
    kinds = [name_json_type(value) for value in values]
    assert kinds == ["null", "a boolean", "a string", "a number", "a number", "an array", "an object"]


@table_rows(
    ("name", "meant"),
    [
        ("max_token", "max_tokens"),
        ("max_tokns", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("max_completion_token", "max_completion_tokens"),
        ("max_outputs_tokens", "max_output_tokens"),
        ("Messages", "messages"),
    ],
)
def test_a_misspelt_field_that_bounds_a_request_is_refused_with_its_name(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"Unknown field '{name}'; did you mean '{meant}'") as refused:
        parse_model({"model": "m", name: 50})
    assert refused.value.param == name


@table_rows(
    "name", ["max_new_tokens", "max_input_tokens", "max_tool_calls", "max_length", "min_tokens", "max_tokens_to_sample"]
)
def test_fields_of_other_servers_are_no_misspelling(name: str) -> None:
    assert parse_model({"model": "m", name: 50}) == "m"


@table_rows(
    ("body", "name", "hint"),
    [
        ({"mesages": []}, "messages", ". Unknown field 'mesages'; did you mean 'messages'?"),
        ({"model": "m", "x": 1}, "messages", ""),
        ({"modle": "m"}, "model", ". Unknown field 'modle'; did you mean 'model'?"),
        ({"prompt": "m"}, "prompts", ""),
    ],
)
def test_a_missing_field_is_named_with_the_field_that_misspells_it(body: dict[str, Any], name: str, hint: str) -> None:
    error = make_missing_error(body, name)
    assert (error.message, error.param) == (f"Missing required field '{name}'{hint}", name)


@table_rows("name", ["Model", "MAX_TOKENS", "N", "max_to\u212aens", "\u017ftream"])
def test_a_field_that_counts_is_refused_in_another_spelling(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_model({"model": "m", "n": 1, name: 50})
    assert refused.value.param == name


def test_fields_that_nobody_looks_at_may_be_spelled_as_they_are() -> None:
    assert parse_model({"model": "m", "Temperature": 1, "x": 1, "TOP_K": 3}) == "m"
