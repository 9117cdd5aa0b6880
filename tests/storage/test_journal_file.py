"""The journal's file: nothing is lost when it is written anew, when the process is killed, or when the disk is full."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from structlog.testing import capture_logs

import gateway.storage.journal
from gateway.domain.ledger import UnfinishedRequest
from gateway.errors import StoreUnavailable
from gateway.storage.journal import RequestJournal
from tests.support.journal_entries import begin, find, interrupted, opened
from tests.support.request_records import make_row, make_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.journal"


@contextmanager
def full_disk(size: int) -> Iterator[Sequence[Any]]:
    """No file of this process grows beyond ``size`` bytes; of a write only the part up to there is taken.

    What is logged goes into the list that it gives: nothing but the journal writes to a file meanwhile.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as reported:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield reported
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def count_open(path: Path) -> int:
    """Descriptors that this process has of the file, its drafts and what it was before."""
    opened_now = [item.readlink() for item in Path("/proc/self/fd").iterdir() if item.is_symlink()]
    return sum(str(name).startswith(str(path)) for name in opened_now)


def test_a_killed_process_leaves_what_it_had_noted(path: Path) -> None:
    """A process that is killed after any of its steps: nothing that it had noted and not given up is missing."""
    noted: dict[str, bool] = {}
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            step, name = line.split()
            if step == "forgets":
                del noted[name]
            else:
                noted[name] = step == "settled"
            if count == 400:
                process.kill()
    assert process.returncode == -9
    with opened(path) as journal:
        left = {item.row.id: item.ended for item in journal.leftovers}
    assert len(noted) > 3
    last = next(reversed(noted))
    noted[last] = noted[last] or left[last]  # killed after it had settled the call, before it said that
    assert {name: left.get(name) for name in noted} == noted


BUSY = """
import os, sys
from pathlib import Path
from gateway.storage.journal import RequestJournal
from tests.support.journal_entries import begin
from tests.support.request_records import make_row
journal = RequestJournal(Path(sys.argv[1]), rotate_bytes=3000)
for number in range(10**6):
    row = make_row(number)
    journal.start_at_once(begin(row))
    os.write(1, f"started {row.id}\\n".encode())
    if number % 7 == 6:
        continue
    journal.record_end(row)
    os.write(1, f"settled {row.id}\\n".encode())
    if number % 3 == 2:
        os.write(1, f"forgets {row.id}\\n".encode())
        journal.forget([row.id])
"""
"""Notes calls for ever, and says each step when it is done; that it forgets one, before."""


def test_a_journal_that_has_grown_is_written_anew_with_what_is_open(path: Path) -> None:
    with opened(path, rotate_bytes=10_000) as journal:
        journal.start_at_once(begin(make_row("long")))
        sizes = []
        for number in range(100):
            journal.start_at_once(begin(make_row(number)))
            journal.record_end(make_row(number))
            journal.forget([f"req_{number}"])
            sizes.append(path.stat().st_size)
            assert find(path).get("req_long") is False
        assert max(sizes) < 12_000
        assert sum(later < earlier for earlier, later in pairwise(sizes)) > 2
        assert path.stat().st_mode & 0o777 == 0o600
        assert count_open(path) == 1
    assert find(path) == {"req_long": False}
    assert count_open(path) == 0


def test_what_stays_open_is_not_written_anew_again_and_again(path: Path) -> None:
    """Where what is open is more than a file may grow by: only when it has grown by as much again."""
    with opened(path, rotate_bytes=2_000) as journal:
        for row in make_rows(*range(50)):
            journal.start_at_once(begin(row))
        files = set()
        for _ in range(100):
            journal.forget(["req_0"])
            files.add(path.stat().st_ino)
        assert len(files) == 1
        assert len(find(path)) == 49
        for row in make_rows(*"abcdefghijkl"):
            journal.record_end(row)
        journal.forget(f"req_{number}" for number in range(50))
        assert len(find(path)) == 12


@contextmanager
def watch(look: Callable[[], None]) -> Iterator[None]:
    """``look`` before every step that the interpreter takes in the journal's code."""
    before = sys.gettrace()

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != gateway.storage.journal.__file__:
            return None
        frame.f_trace_opcodes = True
        look()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_a_process_that_is_killed_while_it_writes_the_file_anew_loses_nothing(path: Path) -> None:
    """The folder as it is at every step of it: the next process finds every open call as it was noted last."""
    draft = path.with_name("requests.journal.new")
    states: list[tuple[bytes, bytes | None]] = []

    def look() -> None:
        state = path.read_bytes(), draft.read_bytes() if draft.exists() else None
        if state not in states:
            states.append(state)

    journal = RequestJournal(path, rotate_bytes=100)
    for row in make_rows(1, 2, 3):
        journal.start_at_once(begin(row))
    journal.record_end(make_row(2))
    old = path.read_bytes()
    with watch(look):
        journal.forget(["req_3"])
    journal.close()
    new = path.read_bytes()
    assert states == [(old, None), (old, b""), (old, new), (new, None)]
    for number, (content, beside) in enumerate(states):
        folder = path.parent / str(number)
        folder.mkdir()
        (folder / path.name).write_bytes(content)
        if beside is not None:
            (folder / draft.name).write_bytes(beside[: len(beside) // 2])
        with opened(folder / path.name) as again:
            found = {left.row.id: left for left in again.leftovers}
            assert found.pop("req_3", None) in (None, UnfinishedRequest(interrupted(make_row(3)), False))
            assert found == {
                "req_1": UnfinishedRequest(interrupted(make_row(1)), False),
                "req_2": UnfinishedRequest(make_row(2), True),
            }
        assert [item.name for item in folder.iterdir()] == [path.name]


def test_a_draft_that_was_left_is_no_part_of_the_next(path: Path) -> None:
    path.with_name("requests.journal.new").write_bytes(b"left\n" * 1_000)
    with opened(path) as journal:
        journal.start_at_once(begin(make_row(1)))
        assert find(path) == {"req_1": False}
    assert find(path) == {"req_1": False}


def block_draft(path: Path) -> None:
    path.with_name("requests.journal.new").mkdir()


def unblock_draft(path: Path) -> None:
    path.with_name("requests.journal.new").rmdir()


def fill_draft(path: Path) -> None:
    path.with_name("requests.journal.new").symlink_to("/dev/full")


def empty_draft(path: Path) -> None:
    """Nothing to do: a draft that failed does not stay on a disk that is full."""
    assert not path.with_name("requests.journal.new").is_symlink()


FAULTS = pytest.mark.parametrize(
    ("break_it", "mend_it"), [(block_draft, unblock_draft), (fill_draft, empty_draft)], ids=["cannot open", "disk full"]
)


@FAULTS
def test_a_file_that_cannot_be_written_anew_stays_and_is_written_on(
    path: Path, break_it: Callable[[Path], None], mend_it: Callable[[Path], None]
) -> None:
    with opened(path, rotate_bytes=1_000) as journal:
        for row in make_rows(*range(10)):
            journal.start_at_once(begin(row))
        break_it(path)
        file = path.stat().st_ino
        with capture_logs() as reported:
            journal.forget(["req_0"])
            journal.start_at_once(begin(make_row("more")))
        assert [line["event"] for line in reported] == ["journal_write_failed", "journal_write_recovered"]
        assert find(path).keys() >= {f"req_{number}" for number in range(1, 10)} | {"req_more"}
        mend_it(path)
        journal.forget(["req_1"])  # not tried again at once: it has grown by a line only
        assert path.stat().st_ino == file
        for row in make_rows(*"abcdef"):
            journal.start_at_once(begin(row))
            journal.record_end(row)
        journal.forget(["req_2"])
        assert path.stat().st_ino != file
        assert find(path).keys() == {f"req_{name}" for name in (*range(3, 10), "more", *"abcdef")}
        assert count_open(path) == 1


@FAULTS
def test_a_journal_that_cannot_be_written_anew_at_the_end_leaves_what_it_has(
    path: Path, break_it: Callable[[Path], None], mend_it: Callable[[Path], None]
) -> None:
    journal = RequestJournal(path)
    journal.start_at_once(begin(make_row(1)))
    journal.record_end(make_row(2))
    break_it(path)
    with capture_logs():
        journal.close()
    assert count_open(path) == 0
    mend_it(path)
    assert find(path) == {"req_1": False, "req_2": True}


@FAULTS
def test_a_journal_that_cannot_be_opened_is_left_as_it_is(
    path: Path, break_it: Callable[[Path], None], mend_it: Callable[[Path], None]
) -> None:
    with opened(path) as journal:
        journal.record_end(make_row(1))
    content = path.read_bytes()
    break_it(path)
    with pytest.raises(OSError, match=r"Is a directory|No space left"):
        RequestJournal(path)
    assert path.read_bytes() == content
    assert count_open(path) == 0
    mend_it(path)
    assert find(path) == {"req_1": True}


def test_a_file_that_is_written_anew_in_part_only_does_not_take_the_place_of_the_whole_one(path: Path) -> None:
    with opened(path, rotate_bytes=1_000) as journal:
        for row in make_rows(*range(10)):
            journal.start_at_once(begin(row))
        content = path.read_bytes()
        with full_disk(len(content) // 2):
            journal.forget(["req_0"])
        assert path.read_bytes() == content
        assert count_open(path) == 1
        journal.start_at_once(begin(make_row("more")))
        assert find(path).keys() == {f"req_{name}" for name in (*range(10), "more")}
    assert find(path).keys() == {f"req_{name}" for name in (*range(1, 10), "more")}


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_call_that_cannot_be_noted_whole_is_refused_and_leaves_no_trace(path: Path, room: int) -> None:
    with opened(path) as journal:
        journal.start_at_once(begin(make_row(1)))
        content = path.read_bytes()
        with full_disk(len(content) + room):
            for _ in range(3):
                with pytest.raises(StoreUnavailable) as caught:
                    journal.start_at_once(begin(make_row(2)))
        assert caught.value.retry_after_s
        assert path.read_bytes() == content
        journal.start_at_once(begin(make_row(3)))
        assert find(path) == {"req_1": False, "req_3": False}
    assert find(path) == {"req_1": False, "req_3": False}


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_call_that_ends_on_a_full_disk_is_noted_when_the_file_is_written_anew(path: Path, room: int) -> None:
    with opened(path) as journal:
        journal.start_at_once(begin(make_row(1)))
        content = path.read_bytes()
        with full_disk(len(content) + room):
            journal.record_end(make_row(1))
        assert path.read_bytes() == content
        assert find(path) == {"req_1": False}
        journal.start_at_once(begin(make_row(2)))
        assert find(path) == {"req_1": False, "req_2": False}
    assert find(path) == {"req_1": True, "req_2": False}


def test_a_full_disk_is_told_once_and_so_is_its_end(path: Path) -> None:
    with opened(path) as journal:
        with full_disk(path.stat().st_size) as reported:
            for row in make_rows(1, 2, 3):
                journal.record_end(row)
        with capture_logs() as reported_later:
            for row in make_rows(4, 5):
                journal.start_at_once(begin(row))
    assert [line["event"] for line in reported] == ["journal_write_failed"]
    assert [line["event"] for line in reported_later] == ["journal_write_recovered"]


def test_what_comes_after_the_end_is_written_nowhere(path: Path) -> None:
    """The descriptor is another file's by then."""
    journal = RequestJournal(path)
    journal.close()
    others = [path.with_name(f"other{number}") for number in range(5)]
    with ExitStack() as stack, capture_logs():
        for other in others:
            stack.enter_context(other.open("wb"))
        journal.record_end(make_row(1))
        with pytest.raises(StoreUnavailable):
            journal.start_at_once(begin(make_row(2)))
    assert [other.stat().st_size for other in others] == [0] * 5
