"""The input of a batch: every line is read once, in order, whatever it contains."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches import input_file
from gateway.batches.input_file import CheckedInput, check_input, read_lines
from gateway.domain.batch import MAX_ERRORS, MAX_LINES, BatchLine
from gateway.errors import ModelNotFound
from gateway.formats.batches.openai import LineError, parse_line
from gateway.memory_budget import MemoryBudget

CHAT = "/v1/chat/completions"
LONGEST = 4096
MEMORY = 1024 * 1024
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def make_line(custom_id: Any = "a", **changed: Any) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"model": "m"}}
    return orjson.dumps({**line, **changed})


def parse(raw: bytes) -> BatchLine | LineError:
    try:
        return parse_line(raw, CHAT)
    except LineError as error:
        return error


def read(path: Path, lines: list[bytes], longest: int = LONGEST) -> list[tuple[int, Any]]:
    path.write_bytes(b"\n".join(lines))

    async def collect() -> list[tuple[int, Any]]:
        return [parsed async for parsed in read_lines(path, CHAT, longest, MemoryBudget(MEMORY))]

    return asyncio.run(collect())


def check(path: Path, lines: list[bytes]) -> CheckedInput:
    path.write_bytes(b"\n".join(lines))

    def find_error(line: BatchLine) -> ModelNotFound | None:
        return None if line.model == "m" else ModelNotFound("no")

    async def run() -> CheckedInput:
        return await check_input(read_lines(path, CHAT, LONGEST, MemoryBudget(MEMORY)), find_error)

    return asyncio.run(run())


@given(field=st.sampled_from(["custom_id", "method", "url", "body"]), value=VALUES)
def test_a_line_is_a_request_or_an_error_that_names_its_field(field: str, value: object) -> None:
    parsed = parse(make_line(**{field: value}))
    if isinstance(parsed, LineError):
        assert str(parsed.param).split(".")[0] == field
    else:
        assert isinstance(parsed.custom_id, str)
        assert parsed.custom_id
        assert isinstance(parsed.model, str)


@given(raw=st.binary(max_size=60) | VALUES.map(orjson.dumps))
def test_any_bytes_are_a_request_or_an_error(raw: bytes) -> None:
    with pytest.raises(LineError):
        parse_line(raw, CHAT)


def test_every_line_keeps_its_number(tmp_path: Path) -> None:
    count = input_file.PIECE_LINES * 3 + 1
    lines = [b"" if number % 7 == 0 else make_line(f"c{number}") for number in range(1, count + 1)]
    found = read(tmp_path / "lines", lines)
    assert [(number, line.custom_id) for number, line in found] == [
        (number, f"c{number}") for number in range(1, count + 1) if number % 7
    ]


@pytest.mark.parametrize("more", [0, 1, 2, 3, LONGEST, LONGEST * 3])
def test_a_line_beyond_the_limit_is_an_error_and_the_next_is_read(tmp_path: Path, more: int) -> None:
    bare = len(make_line(user=""))
    long = make_line(user="x" * (LONGEST - bare + more))
    assert len(long) == LONGEST + more
    (_, first), (number, last) = read(tmp_path / "lines", [long, make_line("b")])
    assert (number, last.custom_id) == (2, "b")
    assert isinstance(first, LineError) == (more > 0)


def test_the_mark_of_an_editor_and_its_line_ends_do_no_harm(tmp_path: Path) -> None:
    found = read(tmp_path / "lines", [b"\xef\xbb\xbf" + make_line("a") + b"\r", make_line("b") + b"\r", b"\r", b""])
    assert [(number, line.custom_id) for number, line in found] == [(1, "a"), (2, "b")]


def test_errors_are_reported_to_a_limit(tmp_path: Path) -> None:
    checked = check(tmp_path / "lines", [b"x"] * (MAX_ERRORS + 5) + [make_line()])
    assert checked.total == MAX_ERRORS + 6
    assert [error.line for error in checked.errors] == list(range(1, MAX_ERRORS + 1))


def test_too_many_lines_are_refused(tmp_path: Path) -> None:
    lines = [make_line(str(number)) for number in range(MAX_LINES + 1)]
    assert check(tmp_path / "lines", lines[:-1]).errors == ()
    assert [error.code for error in check(tmp_path / "lines", lines).errors] == ["too_many_lines"]


def test_the_model_of_a_batch_is_known_if_there_is_one(tmp_path: Path) -> None:
    assert check(tmp_path / "lines", [make_line("a"), make_line("b")]).model == "m"
    other = make_line("b", body={"model": "other"})
    mixed = check(tmp_path / "lines", [make_line("a"), other])
    assert (mixed.model, [(error.line, error.param) for error in mixed.errors]) == (None, [(2, "body.model")])
