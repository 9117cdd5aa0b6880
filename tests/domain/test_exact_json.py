"""JSON is read and written without losing a digit, and what orjson refuses is read as far as it is common."""

import contextlib
import copy
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import exact_json
from tests.support.table_rows import table_rows
from tests.support.taken_memory import measure_bytes_each

NUMBERS = [
    "25227143063332189585438", "-25227143063332189585438", "18446744073709551615", "18446744073709551616",
    "-9223372036854775808", "-9223372036854775809", "9007199254740993", "-0", "-0.0", "1.0", "1", "0", "1e400",
    "-1E+400", "9" * 5000, "1234567890123456789", "0.1",
]  # fmt: skip


@table_rows("shape", ['{"a":%s}', "[%s]", '[0,%s,{"b":[%s]}]', '{"a": %s, "b": "x"}'])
@table_rows("number", NUMBERS)
def test_every_number_keeps_its_digits(shape: str, number: str) -> None:
    text = shape.replace("%s", number)
    assert exact_json.dumps(exact_json.loads(text.encode())).decode() == text.replace(": ", ":").replace(", ", ",")


@table_rows(
    ("raw", "value"),
    [
        (rb'{"a":"x\ud83dy"}', {"a": "x\ufffdy"}),
        (rb'{"\udc00":"\ud83d\ude00"}', {"\ufffd": "\U0001f600"}),
        (rb'["\\ud83d","\\\ud83d"]', ["\\ud83d", "\\\ufffd"]),
        (rb'["\ud83d\ud83d\ude00"]', ["\ufffd\U0001f600"]),
        (b"[NaN,1]", [None, 1]),
        (b'{"a":-Infinity,"b":"NaN"}', {"a": None, "b": "NaN"}),
        (b'{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_what_is_refused_but_common_is_read(raw: bytes, value: object) -> None:
    assert orjson.loads(exact_json.dumps(exact_json.loads(raw))) == value


@table_rows("text", ["{", '{"a":NaN}', "[-Infinity]", "[" * 5000])
def test_arguments_that_a_tool_cannot_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        exact_json.load_arguments(text)
    assert (
        exact_json.dumps(exact_json.load_arguments('{"a":1e400,"b":"\\ud83d"}')) == '{"a":1e400,"b":"\ufffd"}'.encode()
    )


@table_rows(
    "raw", [b"", b"{", b'{"a":}', b'"\xed\xa0\x80"', b"[" * 5000, b"nan", b"'a'", b"[1,]", b'"\x01"', b"01", b"\xff"]
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        exact_json.loads(raw)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(JSON, st.booleans())
def test_any_value_returns_with_the_same_digits(value: Any, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    written = exact_json.dumps(exact_json.loads(raw))
    assert json.loads(written) == value
    assert json.loads(exact_json.dumps(copy.deepcopy(exact_json.loads(raw)))) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(raw: bytes) -> None:
    with contextlib.suppress(orjson.JSONDecodeError):
        exact_json.dumps(exact_json.loads(raw))


@table_rows("length", [1, 100, 5_000, 70_000])
def test_a_trimmed_copy_takes_its_length_of_memory(length: int) -> None:
    value = {"text": "x" * length}
    assert exact_json.trim(exact_json.dumps(value)) == exact_json.dumps(value)
    assert measure_bytes_each(lambda _: exact_json.trim(exact_json.dumps(value))) < length + 1_000


def test_another_type_is_not_written() -> None:
    with pytest.raises(orjson.JSONEncodeError):
        exact_json.dumps({"a": object()})
