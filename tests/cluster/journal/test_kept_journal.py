"""What the store has had for less than two minutes can be read from the journal of a node."""

from pathlib import Path

import pytest

from gateway.cluster.journal.kept_journal import RETENTION_S, KeptJournal, read_ended_requests
from gateway.storage.journal import RequestJournal
from tests.support.request_records import make_row


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def find_kept(journal: KeptJournal) -> list[str]:
    """The ids of the rows that the store has had, each once."""
    return sorted(
        {
            row.id.removeprefix("req_")
            for path in journal.keep_all()
            for row in journal.select_stored(read_ended_requests(path))
        }
    )


def test_what_is_stored_is_kept_for_some_time_after_its_file_was_written_anew(tmp_path: Path) -> None:
    clock = Clock()
    journal = KeptJournal(tmp_path / "journal", rotate_bytes=1, now=clock)
    for name in ("1", "2", "3"):
        journal.record_end(make_row(name))
    journal.forget(["req_1"])
    assert find_kept(journal) == ["1"]
    clock.now_s += RETENTION_S / 2
    journal.forget(["req_2"])
    assert find_kept(journal) == ["1", "2"]
    clock.now_s += RETENTION_S / 2 + 1
    assert find_kept(journal) == ["2"]
    clock.now_s += RETENTION_S + 1
    assert find_kept(journal) == []
    assert [left.row.id for left in RequestJournal(tmp_path / "journal").leftovers] == ["req_3"]


def test_a_closed_journal_leaves_one_file_and_one_of_a_killed_process_is_cleared_by_the_next(tmp_path: Path) -> None:
    journal = KeptJournal(tmp_path / "journal", rotate_bytes=1)
    journal.record_end(make_row("1"))
    journal.forget(["req_1"])
    assert len(list(tmp_path.iterdir())) > 1
    KeptJournal(tmp_path / "journal").close()
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_without_links_nothing_is_kept_and_everything_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = KeptJournal(tmp_path / "journal", rotate_bytes=1)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    journal.record_end(make_row("1"))
    journal.forget(["req_1"])
    assert find_kept(journal) == []
