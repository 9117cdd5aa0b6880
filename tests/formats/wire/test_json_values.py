"""A request's body: read strictly, whatever it is made of."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.wire import json_values as strict_json
from tests.support.table_rows import table_rows

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"', ":", "a:b", '"x":', "\\"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)


def read_or_refuse(raw: bytes) -> dict[str, Any] | None:
    """None where it was refused; any exception but ``InvalidRequest`` is a bug."""
    try:
        return strict_json.parse_json_object(raw)
    except InvalidRequest:
        return None


@given(OBJECTS)
def test_any_object_without_duplicates_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert strict_json.parse_json_object(orjson.dumps(value)) == value


@given(OBJECTS, st.sampled_from([orjson.OPT_INDENT_2, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE]))
def test_white_space_changes_nothing(value: dict[str, Any], option: int) -> None:
    assert strict_json.parse_json_object(orjson.dumps(value, option=option)) == value


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b'{"a":"\xc3\x28"}')
@example(b'{"a"')
@example(b'{"\\u0061":1,"a":2}')
def test_garbage_is_refused_or_read_and_nothing_else(raw: bytes) -> None:
    value = read_or_refuse(raw)
    if value is not None:
        orjson.loads(orjson.dumps(value))


@given(st.text('{}[]":,\\ a1\n', max_size=40))
def test_text_that_is_nearly_json_agrees_with_a_second_reader(text: str) -> None:
    value = read_or_refuse(text.encode())
    if value is not None:
        assert value == orjson.loads(text)
        assert orjson.loads(orjson.dumps(value)) == value


@given(OBJECTS.filter(bool), st.data())
def test_a_repeated_top_level_key_is_refused_and_named(value: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    again = orjson.dumps({name: data.draw(VALUES)})
    raw = orjson.dumps(value)[:-1] + b"," + again[1:]
    with pytest.raises(InvalidRequest) as caught:
        strict_json.parse_json_object(raw)
    assert caught.value.param == name


@given(OBJECTS.filter(bool), st.lists(st.sampled_from(["list", "object"]), min_size=1, max_size=6))
def test_a_repeated_key_is_refused_at_any_depth(value: dict[str, Any], wrappers: list[str]) -> None:
    name = next(iter(value))
    raw = orjson.dumps(value)[:-1] + b"," + orjson.dumps({name: 1})[1:]
    for wrapper in wrappers:
        raw = b"[" + raw + b"]" if wrapper == "list" else b'{"inner: {":' + raw + b"}"
    with pytest.raises(InvalidRequest, match="duplicate"):
        strict_json.parse_json_object(b'{"outer":' + raw + b"}")


SPELLINGS = st.lists(
    st.sampled_from(
        [b"a", b":", b"\\u003a", b"\\u003A", b"\\u003c", b"\\u0061", b"\\\\", b"\\\\u003a", b'\\"', b"\\n", b"{"]
    ),
    max_size=4,
).map(lambda pieces: b'"' + b"".join(pieces) + b'"')
"""Strings as they may be written, with colons and what looks like one."""
SPACES = st.sampled_from([b"", b"", b" ", b"\n"])


@st.composite
def write_object(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    """An object in bytes; a key may be there twice, and be spelled in two ways."""
    members = draw(st.lists(st.tuples(SPELLINGS, SPACES, SPACES, inner), max_size=3))
    return b"{" + b",".join(name + one + b":" + two + value for name, one, two, value in members) + b"}"


WRITTEN = write_object(
    st.recursive(
        SPELLINGS | st.sampled_from([b"1", b"1.50", b"null"]),
        lambda inner: (
            write_object(inner) | st.lists(inner, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]")
        ),
        max_leaves=6,
    )
)


@given(WRITTEN)
@example(b'{"a":1,"\\u0061":":","b":"\\u003a"}')
@example(b'{"a":1,"a":"\\u003a"}')
def test_a_key_is_a_duplicate_where_a_second_reader_sees_it_twice(raw: bytes) -> None:
    repeated = False

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        repeated = repeated or len(pairs) > len(dict(pairs))
        return dict(pairs)

    value = json.loads(raw, object_pairs_hook=note)
    assert read_or_refuse(raw) == (None if repeated else value)


@table_rows(
    ("raw", "param"),
    [
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"model" : "a", "x": ":", "model"\n:"b"}', "model"),
        (b'{"\\u006dodel":"a","model":"b"}', "model"),
        (b'{"a":{"b":1,"b":2}}', None),
        (b'{"a":[{"b":1},{"c":1,"c":1}]}', None),
        (b'{"":1,"":2}', ""),
        (b'{"\\"":1,"\\"":2}', '"'),
    ],
)
def test_a_duplicate_is_named_where_it_stands_at_the_top(raw: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest, match="duplicate") as caught:
        strict_json.parse_json_object(raw)
    assert caught.value.param == param


@table_rows(
    "raw",
    [
        b'{"a":{"a":{"a":1}}}',
        b'{"a":[{"a":1},{"a":1}]}',
        b'{"a":"{\\"a\\":1,\\"a\\":2}"}',
        b'{"a":"a","b":"a"}',
        b'{"a": ":::::"}',
        b'{"a:b":1,"a":":b"}',
    ],
)
def test_the_same_name_in_other_places_is_no_duplicate(raw: bytes) -> None:
    assert strict_json.parse_json_object(raw) == orjson.loads(raw)


@table_rows(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"  \n", id="blank"),
        pytest.param(b"{", id="open"),
        pytest.param(b'{"a":1}}', id="more after the end"),
        pytest.param(b'{"a":1}{"b":1}', id="two objects"),
        pytest.param(b'{"a":1,}', id="trailing comma"),
        pytest.param(b"{'a':1}", id="single quotes"),
        pytest.param(b'{"a":1 /* c */}', id="comment"),
        pytest.param(b'{"a":NaN}', id="NaN"),
        pytest.param(b'{"a":-Infinity}', id="Infinity"),
        pytest.param(b'{"a":1e999}', id="over a double"),
        pytest.param(b'{"a":01}', id="leading zero"),
        pytest.param(b'{"a":"\\ud800"}', id="lone surrogate"),
        pytest.param(b'{"a":"\\udc00\\ud800"}', id="surrogates in the wrong order"),
        pytest.param(b'{"\\ud800":1}', id="lone surrogate in a key"),
        pytest.param(b'{"a":"\xed\xa0\x80"}', id="surrogate as UTF-8"),
        pytest.param(b'{"a":"\xc0\xaf"}', id="overlong UTF-8"),
        pytest.param(b'{"a":"\n"}', id="raw control character"),
        pytest.param(b'\xef\xbb\xbf{"a":1}', id="BOM"),
        pytest.param('{"a":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param('{"a":1}'.encode("utf-32-le"), id="UTF-32"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="array"),
        pytest.param(b'"text"', id="string"),
        pytest.param(b"12", id="number"),
    ],
)
def test_what_is_not_one_strict_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        strict_json.parse_json_object(raw)


@table_rows("number", [2**53 + 1, 2**63, 2**64 - 1, 2**70, -(2**70), 10**300])
def test_a_great_integer_is_read_and_can_be_written_again(number: int) -> None:
    value = strict_json.parse_json_object(b'{"seed":%d}' % number)
    assert orjson.loads(orjson.dumps(value)) == value
    assert float(value["seed"]) == float(number)


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    """An object whose deepest container stands at ``depth``, the object itself at 1."""
    return b'{"a":' + opening * (depth - 1) + b"0" + closing * (depth - 1) + b"}"


@table_rows(("opening", "closing"), [(b"[", b"]"), (b'{"b":', b"}")])
def test_depth_is_bounded_exactly(opening: bytes, closing: bytes) -> None:
    value = strict_json.parse_json_object(nested(strict_json.MAX_DEPTH, opening, closing))
    orjson.dumps(value)
    for depth in (strict_json.MAX_DEPTH + 1, 253, 254, 255, 256, 1023, 1024, 1025, 10_000, 40_000):
        with pytest.raises(InvalidRequest):
            strict_json.parse_json_object(nested(depth, opening, closing))


def test_a_bomb_of_brackets_without_an_end_is_refused() -> None:
    for raw in (b"[" * 10_000, b'{"a":' * 10_000, b"[" * 200_000, b"{" * 200_000):
        assert read_or_refuse(raw) is None


def test_the_number_of_containers_is_bounded_exactly() -> None:
    full = b'{"a":[' + b",".join([b"{}"] * (strict_json.MAX_CONTAINERS - 2)) + b"]}"
    assert len(strict_json.parse_json_object(full)["a"]) == strict_json.MAX_CONTAINERS - 2
    with pytest.raises(InvalidRequest, match="objects and arrays"):
        strict_json.parse_json_object(full.replace(b"[", b"[[],", 1))
    with pytest.raises(InvalidRequest, match="objects and arrays"):
        strict_json.parse_json_object(b'{"a":[' + b",".join([b"{}"] * 700_000) + b"]}")


def test_the_number_of_strings_and_of_values_is_bounded_exactly() -> None:
    strings = b'{"a":[' + b",".join([b'""'] * (strict_json.MAX_STRINGS - 1)) + b"]}"
    assert len(strict_json.parse_json_object(strings)["a"]) == strict_json.MAX_STRINGS - 1
    with pytest.raises(InvalidRequest, match="strings and keys"):
        strict_json.parse_json_object(strings.replace(b"[", b'["",', 1))
    numbers = b'{"a":[' + b",".join([b"0"] * (strict_json.MAX_VALUES + 1)) + b"]}"
    assert len(strict_json.parse_json_object(numbers)["a"]) == strict_json.MAX_VALUES + 1
    with pytest.raises(InvalidRequest, match="values"):
        strict_json.parse_json_object(numbers.replace(b"[", b"[0,", 1))


def test_brackets_inside_strings_are_no_containers() -> None:
    text = '{["\\' * 2 * strict_json.MAX_CONTAINERS
    assert strict_json.parse_json_object(orjson.dumps({"a": text})) == {"a": text}


def test_a_string_without_an_end_costs_no_more_than_its_length() -> None:
    # Were every quote in it a new beginning, this body would take six seconds, and one of 2 MB a day.
    raw = b"[" * (strict_json.MAX_CONTAINERS + 1) + b'"' + b'\\"' * 30_000
    began = time.process_time()
    assert read_or_refuse(raw) is None
    assert time.process_time() - began < 2


MB = 2**20
LARGEST = 16 * MB
LARGE: dict[str, Callable[[], bytes]] = {
    "lines": lambda: b'{"x":"' + b"one more line\\n" * (LARGEST // 15) + b'"}',
    "escapes": lambda: b'{"x":"' + b'\\"xxx' * (LARGEST // 5) + b'"}',
    "backslashes": lambda: b'{"x":"' + b"\\\\xxxxxxx" * (LARGEST // 9) + b'"}',
    "nothing but escaped quotes": lambda: b'{"x":"' + b'\\"' * (LARGEST // 2) + b'"}',
    "braces in a string": lambda: b'{"x":"' + b"{" * LARGEST + b'"}',
    "long numbers": lambda: b'{"x":[' + b",".join([b"0." + b"1" * 48] * (LARGEST // 51)) + b"]}",
    "short strings": lambda: b'{"x":[' + b",".join([b'"' + b"x" * 330 + b'"'] * 48_000) + b"]}",
    "objects": lambda: b'{"x":[' + b",".join([b'{"a":"' + b"x" * 800 + b'"}'] * 19_000) + b"]}",
}


def find_longest_step(work: Callable[[], object]) -> float:
    """CPU time in seconds of the longest call into C."""
    longest = began = 0.0

    def note(_frame: Any, event: str, _called: Any) -> None:
        nonlocal longest, began
        if event == "c_call":
            began = time.thread_time()
        elif event in {"c_return", "c_exception"}:
            longest = max(longest, time.thread_time() - began)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return longest


@pytest.fixture(scope="module")
def prose() -> bytes:
    return b'{"x":"' + b"the quick brown fox " * (LARGEST // 20) + b'"}'


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE)
def test_no_step_holds_the_interpreter_for_much_longer_than_parsing_does(case: str, prose: bytes) -> None:
    """A thread that parses lets others in between the steps, each of which is one call into C."""
    raw = LARGE[case]()
    best = float("inf")
    for _ in range(12):  # other tests share the cores: one undisturbed try shows what the steps take
        parsing_s = find_longest_step(lambda: orjson.loads(prose))  # at the same moment as the step
        best = min(best, find_longest_step(lambda: read_or_refuse(raw)) / parsing_s)
        if best < 2:
            break
    print(f"{case}: the longest step takes {best:.1f} times as long as parsing the largest body")  # noqa: T201
    assert best < 2


@table_rows("text", [b'\\"', b"\\\\", b"\\n", b"\\u6f22"])
def test_more_escapes_than_anybody_writes_are_refused(text: bytes) -> None:
    count = strict_json.MAX_ESCAPES // text.count(b"\\")
    strict_json.parse_json_object(b'{"x":"' + text * count + b'"}')
    with pytest.raises(InvalidRequest, match="escapes"):
        strict_json.parse_json_object(b'{"x":"' + text * (count + 1) + b'"}')
