"""What a journal has noted, and what the next process would find of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.domain.ledger import UnfinishedRequest
from gateway.domain.request_log import RequestRecord, RequestStart
from gateway.storage.journal import RequestJournal


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[RequestJournal]:
    journal = RequestJournal(path, **options)
    try:
        yield journal
    finally:
        journal.close()


def read_again(content: bytes, folder: Path) -> list[UnfinishedRequest]:
    """What a process finds that starts with this file."""
    copy = folder / "copy.journal"
    copy.write_bytes(content)
    with opened(copy) as journal:
        return journal.leftovers


def find(path: Path) -> dict[str, bool]:
    """Which calls the next process would find if this one were killed now, and whether each had ended."""
    return {left.row.id: left.ended for left in read_again(path.read_bytes(), path.parent)}


def begin(row: RequestRecord) -> RequestStart:
    """The same call before it had ended."""
    return RequestStart(*(getattr(row, name) for name in RequestStart._fields))


def interrupted(row: RequestRecord) -> RequestRecord:
    """The same call if nothing more had been heard of it."""
    return begin(row).interrupt()
