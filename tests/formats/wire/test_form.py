"""A form's fields as the body they stand for; what is wrong with them is named."""

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.upload import Upload
from gateway.errors import InvalidRequest
from gateway.formats.wire.form import FieldTypes, ReceivedForm, check_files, parse_fields, parse_files
from tests.support.table_rows import table_rows

KINDS = FieldTypes(integers=("n",), numbers=("temperature",), flags=("stream",), lists=("include",))


class Sized:
    def __init__(self, size: int) -> None:
        self.size = size

    async def read(self, offset: int, size: int) -> bytes:
        raise NotImplementedError


def file(field: str, size: int = 1) -> Upload:
    return Upload(field, "a.png", "image/png", b"", Sized(size))


def fields(*reported: tuple[str, str]) -> dict[str, Any]:
    return parse_fields(ReceivedForm(reported), KINDS)


def test_fields_are_what_json_would_have() -> None:
    reported = (
        ("prompt", "a cat"),
        ("n", "2"),
        ("temperature", "0.5"),
        ("stream", "true"),
        ("user", "7"),
        ("empty", ""),
    )
    assert fields(*reported) == {
        "prompt": "a cat",
        "n": 2,
        "temperature": 0.5,
        "stream": True,
        "user": "7",
        "empty": "",
    }


@table_rows("name", ["include", "include[]"])
def test_a_list_may_be_repeated_with_brackets_or_without(name: str) -> None:
    assert fields((name, "a"), (name, "b")) == {"include": ["a", "b"]}
    assert fields((name, "a")) == {"include": ["a"]}


def test_an_empty_number_or_flag_says_nothing() -> None:
    assert fields(("n", ""), ("temperature", ""), ("stream", "")) == {}


@table_rows(
    ("text", "value"), [("0", 0.0), ("-1.25", -1.25), ("1e-05", 1e-05), ("0.1234567890123456", 0.1234567890123456)]
)
def test_numbers_as_languages_write_them_are_read(text: str, value: float) -> None:
    assert fields(("temperature", text)) == {"temperature": value}


@table_rows(
    ("name", "text"),
    [
        *(("n", text) for text in ("1.0", "x", " 1", "1\n", "1_0", "٣", "9" * 16, "0x1", "+1", "true")),
        *(("temperature", text) for text in ("nan", "inf", "1e400", "x", "1,5", ".", "1\n", "٣", "1" * 40)),
        *(("stream", text) for text in ("yes", "TRUE ", "2", "null")),
    ],
)
def test_a_field_that_is_not_of_its_kind_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields((name, text))
    assert caught.value.param == name


@table_rows("again", ["prompt", "prompt[]"])
def test_a_field_that_is_said_twice_is_named(again: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields(("prompt", "a"), (again, "b"))
    assert caught.value.param == "prompt"


@table_rows("name", ["a\\", "a\\b", "a\r\nb", "\0", "a\x1b", "a\x85", "a\u202eb", "\ud800", " a", "a ", "\u3000a"])
def test_a_name_that_parsers_do_not_agree_on_is_refused_and_named(name: str) -> None:
    with pytest.raises(InvalidRequest, match="backslash") as caught:
        fields(("model", "m"), (name, "x"))
    assert caught.value.param == name
    assert caught.value.message.isprintable()


def test_names_of_every_script_pass() -> None:
    names = ("größe", "大きさ", 'a "quoted" one', "a.b[c]")
    assert fields(*((name, "x") for name in names)) == dict.fromkeys(names, "x")


def test_what_a_browser_says_of_how_a_form_is_written_is_no_field() -> None:
    assert fields(("_charset_", "UTF-8"), ("prompt", "a cat"), ("_charset_", "UTF-8")) == {"prompt": "a cat"}


@given(st.lists(st.tuples(st.sampled_from(["n", "temperature", "stream", "include", "include[]", "x", ""]), st.text())))
def test_whatever_is_said_is_a_body_or_an_invalid_request(reported: list[tuple[str, str]]) -> None:
    with suppress(InvalidRequest):
        body = fields(*reported)
        assert type(body.get("n", 0)) is int
        assert math.isfinite(body.get("temperature", 0.0))
        assert body.keys() <= {name.removesuffix("[]") for name, _ in reported}


def test_an_endless_name_is_told_short() -> None:
    with pytest.raises(InvalidRequest) as caught:
        fields(("x" * 4000, "a"), ("x" * 4000, "b"))
    assert caught.value.param == "x" * 64
    assert len(caught.value.message) < 200


def test_files_are_found_in_their_order_and_counted() -> None:
    first, second, mask = file("image"), file("image"), file("mask")
    form = ReceivedForm((), (first, mask, second))
    assert parse_files(form, "image", 2) == (first, second)
    assert parse_files(form, "file", 1) == ()
    with pytest.raises(InvalidRequest, match=r"at most 1 file$") as caught:
        parse_files(form, "image", 1)
    assert caught.value.param == "image"


def test_an_empty_file_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_files(ReceivedForm((), (file("image", 0),)), "image", 1)
    assert caught.value.param == "image"


def test_a_file_where_none_belongs_is_named() -> None:
    form = ReceivedForm((), (file("image"), file("p" * 100)))
    with pytest.raises(InvalidRequest) as caught:
        check_files(form, ("image", "mask"))
    assert caught.value.param == "p" * 64
    check_files(form, ("image", "p" * 100))
