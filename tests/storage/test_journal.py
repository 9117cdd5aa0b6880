"""The journal: what was noted is found by the next process, call by call, and nothing else is."""

from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.domain.ledger import UnfinishedRequest
from gateway.domain.request_log import RequestRecord
from tests.support.journal_entries import begin, find, interrupted, opened, read_again
from tests.support.request_records import ROW, make_row, make_rows
from tests.support.taken_memory import measure_bytes_each

FIELDS = [field.name for field in attrs.fields(RequestRecord)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.journal"


def test_a_new_journal_is_empty_and_its_owners_alone(path: Path) -> None:
    path.touch(mode=0o644)
    with opened(path) as journal:
        assert journal.leftovers == []
        assert path.stat().st_mode & 0o777 == 0o600
        assert find(path) == {}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in path.parent.iterdir() if item != path] == ["copy.journal"]


def test_a_note_is_read_back_as_it_was_written(path: Path) -> None:
    bare = make_row("bare", channel=None, error_code=None, first_byte_ms=None, client_request_id=None, stream=False)
    with opened(path) as journal:
        journal.start_at_once(begin(ROW))
        journal.record_end(bare)
        assert read_again(path.read_bytes(), path.parent) == [
            UnfinishedRequest(interrupted(ROW), False),
            UnfinishedRequest(bare, True),
        ]


def test_an_open_request_takes_little_more_memory_than_its_entry(path: Path) -> None:
    rows = [make_row(f"request-{number}") for number in range(200)]
    with opened(path) as journal:

        def note(number: int) -> None:
            journal.start_at_once(begin(rows[number]))
            journal.record_end(rows[number])

        assert measure_bytes_each(note) < 2_000  # an entry has some 400 bytes


_TEXT = st.text() | st.sampled_from(["\n", '{"fields":[]}\n[1,', "\u2028\r\n\x00", "日本", "\U0001f600"])
_NUMBER = st.integers(0, 2**63 - 1)


@given(
    texts=st.tuples(_TEXT, _TEXT, _TEXT, _TEXT | st.none()), numbers=st.tuples(_NUMBER, _NUMBER, st.none() | _NUMBER)
)
def test_whatever_a_row_says_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    texts: tuple[str, str, str, str | None],
    numbers: tuple[int, int, int | None],
) -> None:
    fields: dict[str, Any] = {
        **dict(zip(("id", "account", "model", "client_request_id"), texts, strict=True)),
        **dict(zip(("cost_nanos", "reserved_nanos", "first_byte_ms"), numbers, strict=True)),
    }
    row = attrs.evolve(ROW, **fields)
    folder = tmp_path_factory.mktemp("journal")
    with opened(folder / "x") as journal:
        journal.start_at_once(begin(row))
        journal.record_end(row)
        journal.record_end(make_row("after"))
    with opened(folder / "x") as again:
        assert again.leftovers[0] == UnfinishedRequest(row, True)
        assert again.leftovers[-1].row.id == "req_after"


def test_the_last_note_of_a_call_counts(path: Path) -> None:
    one, two, three = make_rows(1, 2, 3)
    with opened(path) as journal:
        for row in (one, two, three):
            journal.start_at_once(begin(row))
        journal.record_end(two)
        assert read_again(path.read_bytes(), path.parent) == [
            UnfinishedRequest(interrupted(one), False),
            UnfinishedRequest(two, True),
            UnfinishedRequest(interrupted(three), False),
        ]


def test_what_is_forgotten_is_not_left_and_the_rest_is(path: Path) -> None:
    with opened(path) as journal:
        for row in make_rows(1, 2, 3):
            journal.start_at_once(begin(row))
            journal.record_end(row)
        journal.forget(["req_1", "req_3", "never heard of"])
    assert find(path) == {"req_2": True}
    with opened(path) as journal:
        journal.forget(["req_2"])
    assert find(path) == {}


def test_what_was_left_stays_until_it_is_forgotten(path: Path) -> None:
    """However many processes start and end, or are killed, without having stored it."""
    with opened(path) as journal:
        journal.start_at_once(begin(make_row(1)))
        journal.record_end(make_row(2))
    for number in range(3):
        with opened(path) as journal:
            assert len(journal.leftovers) == 2 + number
            journal.start_at_once(begin(make_row(f"of {number}")))
            assert find(path) == {
                "req_1": False,
                "req_2": True,
                **{f"req_of {index}": False for index in range(number + 1)},
            }


def test_a_last_line_that_was_cut_off_is_skipped_and_the_one_before_counts(path: Path) -> None:
    with opened(path) as journal:
        journal.record_end(make_row(1))
        journal.start_at_once(begin(make_row(2)))
        whole = path.read_bytes()
        journal.record_end(make_row(2))
        longer = path.read_bytes()
    for size in range(len(whole), len(longer) - 1):
        found = read_again(longer[:size], path.parent)
        assert [(left.row.id, left.ended) for left in found] == [("req_1", True), ("req_2", False)]


def test_after_a_line_that_was_cut_off_notes_are_whole(path: Path) -> None:
    with opened(path) as journal:
        journal.record_end(make_row(1))
        journal.start_at_once(begin(make_row(2)))
        content = path.read_bytes()
    path.write_bytes(content[:-30])
    with opened(path) as journal:
        journal.start_at_once(begin(make_row(3)))
        assert find(path) == {"req_1": True, "req_3": False}


_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5)
_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner)).map(
    orjson.dumps
)
_KEYS = st.dictionaries(st.text(max_size=2), st.none(), min_size=len(FIELDS) + 1, max_size=len(FIELDS) + 1)
_GARBAGE = (
    st.binary()
    | _JSON
    | _KEYS.map(orjson.dumps)
    | st.lists(_SCALARS, min_size=len(FIELDS) - 1, max_size=len(FIELDS)).map(orjson.dumps)
)


@given(garbage=st.lists(_GARBAGE, min_size=3, max_size=3))
def test_garbage_between_the_notes_hides_none_of_them(
    tmp_path_factory: pytest.TempPathFactory, garbage: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    with opened(folder / "x") as journal:
        journal.start_at_once(begin(make_row(1)))
        journal.record_end(make_row(2))
        head, one, two, _ = (folder / "x").read_bytes().split(b"\n")
    before, between, after = garbage
    found = read_again(b"\n".join((head, before, one, between, two, after)), folder)
    assert found == [UnfinishedRequest(interrupted(make_row(1)), False), UnfinishedRequest(make_row(2), True)]


@pytest.mark.parametrize("head", [b"", b"{}", b"[]", b"5", b'{"fields":5}', b'{"fields":[[1]]}', b'{"fields":["id"]}'])
def test_under_a_head_that_names_no_fields_nothing_is_read_and_the_file_is_kept(path: Path, head: bytes) -> None:
    with opened(path) as journal:
        journal.record_end(make_row(1))
        journal.record_end(make_row(2))
        _, rest = path.read_bytes().split(b"\n", 1)
    for number in (1, 2):
        path.write_bytes(head + b"\n" + rest)
        with capture_logs() as reported, opened(path) as journal:
            assert journal.leftovers == []
            journal.start_at_once(begin(make_row(3)))
            assert find(path) == {"req_3": False}
        kept = path.with_name(f"{path.name}.unread-{number}")
        assert kept.read_bytes() == head + b"\n" + rest, "it is somebody's money"
        (line,) = (line for line in reported if line["event"] == "journal_lines_skipped")
        assert (line["log_level"], line["rows"], line["path"]) == ("error", 2, str(kept))
        assert "A backup may have them" in line["reason"]


def test_a_journal_of_which_only_a_part_of_the_first_line_is_left_is_kept(path: Path) -> None:
    with opened(path) as journal:
        journal.record_end(make_row(1))
    torn = path.read_bytes()[:20]
    path.write_bytes(torn)
    with capture_logs() as lines, opened(path) as journal:
        assert journal.leftovers == []
    assert path.with_name(f"{path.name}.unread-1").read_bytes() == torn
    assert [line["rows"] for line in lines] == [1]


def test_fields_are_found_by_name(path: Path) -> None:
    """Another version may have had them in another order, and may not have had those that need no value."""
    values = attrs.asdict(ROW)
    names = [name for name in reversed(FIELDS) if name != "client_request_id"]
    lines = ({"fields": names}, [1, *(values[name] for name in names)])
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)) + b"\n")
    with opened(path) as journal:
        assert journal.leftovers == [UnfinishedRequest(attrs.evolve(ROW, client_request_id=None), True)]


def test_a_start_that_an_earlier_version_noted_is_found_and_kept(path: Path) -> None:
    """As the row that would be left of it."""
    rows = [interrupted(row) for row in make_rows(1, 2)]
    notes = ([0, *(getattr(row, name) for name in FIELDS)] for row in rows)
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in ({"fields": FIELDS}, *notes)))
    for _ in range(2):
        with opened(path) as journal:
            assert journal.leftovers == [UnfinishedRequest(row, False) for row in rows]


def test_ten_thousand_open_calls_are_left_and_forgotten(path: Path) -> None:
    rows = make_rows(*range(10_000))
    with opened(path, rotate_bytes=2**20) as journal:
        for row in rows:
            journal.start_at_once(begin(row))
        for row in rows[::2]:
            journal.record_end(row)
        left = [one.row for one in read_again(path.read_bytes(), path.parent)]
        assert left == [row if number % 2 == 0 else interrupted(row) for number, row in enumerate(rows)]
        journal.forget(row.id for row in rows[1:])
        assert find(path) == {"req_0": True}
        journal.forget(["req_0"])
    assert find(path) == {}
