"""The journal: a file of the data folder with every request that the database does not have yet.

A request does not wait for its commit, which takes milliseconds, and the process can end before it. So each request is
written to the journal before it is sent and again when it has ended, with one ``write`` each (about a microsecond). The
kernel has these bytes, so they survive ``kill -9``. They need not survive a power failure; the database's commits do.

The first line has the field names. Every other line is one entry: ``[2 started, values…]`` with the known fields of a
started request, or ``[0 interrupted | 1 settled, values…]`` with its row. The file is read once, at the next start; the
last entry of a request counts. A file that has grown is rewritten with the entries that still matter. A request that an
earlier process only started becomes an interrupted row; earlier versions wrote every start as such a row.
"""

import os
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NoReturn

import attrs
import orjson
import structlog

from gateway.domain.ledger import UnfinishedRequest
from gateway.domain.request_log import RequestRecord, RequestStart, parse_record
from gateway.errors import StoreUnavailable

ROTATE_BYTES = 4 * 1024 * 1024
_FIELDS = tuple(field.name for field in attrs.fields(RequestRecord))
_READ_VALUES = attrgetter(*_FIELDS)
_HEAD_LINE = orjson.dumps({"fields": _FIELDS, "started": RequestStart._fields}, option=orjson.OPT_APPEND_NEWLINE)
_INTERRUPTED_STATE, _SETTLED_STATE, _STARTED_STATE = 0, 1, 2
_NOTE_BYTES = 512
"""How many bytes ``check_writable`` writes: the size of about two entries."""
_OWNER_ONLY_MODE = 0o600
_SKIPPED_WARNING = "The journal was damaged; the lines may be charges. A backup may have them whole"

_Names = tuple[Sequence[str], Sequence[str]]
"""The field names of a row, and those of a started request."""

log = structlog.stdlib.get_logger(__name__)


class RequestJournal:
    """The journal in the file ``path``. ``leftovers`` are requests of an earlier process."""

    def __init__(self, path: Path, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._path = path
        self._rotate_bytes = self._rotate_at = rotate_bytes
        self.leftovers = _read(path)
        self._open_notes = {
            unfinished_request.row.id: _write_note(unfinished_request) for unfinished_request in self.leftovers
        }
        self._size = 0
        self.failing = self._is_torn = False
        self._file = self._write_anew()

    def add_leftovers(self, unfinished_requests: Iterable[UnfinishedRequest]) -> None:
        """Add requests that an earlier process left elsewhere, except those that the journal has."""
        known_ids = {unfinished_request.row.id for unfinished_request in self.leftovers}
        self.leftovers += [
            unfinished_request
            for unfinished_request in unfinished_requests
            if unfinished_request.row.id not in known_ids
        ]

    def start_at_once(self, start: RequestStart) -> bool:
        """Record a request before it is sent. Return False if that cannot be done at once; ``start`` must then do it.

        Raises ``StoreUnavailable``; the request must then not be sent.
        """
        note = orjson.dumps((_STARTED_STATE, *start)) + b"\n"  # a copy: orjson's own bytes would hold 4 KB
        try:
            self._append(note)
        except OSError as error:
            self._report(error)
            raise StoreUnavailable("The gateway cannot record requests at the moment", retry_after_s=5) from error
        self._open_notes[start.id] = note
        return True

    async def start(self, start: RequestStart) -> bool:
        """Record a request that ``start_at_once`` did not, and return True.

        Raises ``StoreUnavailable``; the request must then not be sent.
        """
        return self.start_at_once(start)

    def start_soon(self, start: RequestStart) -> None:
        """Record a request that a provider has begun on its own, without waiting for a note in the database.

        Raises ``StoreUnavailable`` if the file cannot be written.
        """
        self.start_at_once(start)

    def withdraw(self, request_id: str) -> None:
        self.forget([request_id])

    def record_end(self, row: RequestRecord) -> None:
        """Record the end of a request. Never raises: the row of a failed write still waits in memory."""
        note = orjson.dumps((_SETTLED_STATE, *_READ_VALUES(row))) + b"\n"
        self._open_notes[row.id] = note
        try:
            self._append(note)
        except OSError as error:
            self._report(error)

    def forget(self, ids: Iterable[str]) -> None:
        for request_id in ids:
            self._open_notes.pop(request_id, None)
        if self._size > self._rotate_at:
            self.renew()

    def check_writable(self) -> None:
        try:
            self._append(b"\n" * _NOTE_BYTES)
            os.ftruncate(self._file, self._size - _NOTE_BYTES)
        except OSError as error:
            raise StoreUnavailable("The gateway's journal cannot be written to", retry_after_s=5) from error
        self._size -= _NOTE_BYTES

    def close(self) -> None:
        """Rewrite the file for the next process, and close it."""
        self.renew()
        os.close(self._file)
        self._file = -1  # another file may get the number

    def _append(self, note: bytes) -> None:
        content = b"\n" + note if self._is_torn else note
        try:
            if os.write(self._file, content) != len(content):
                _fail_partial_write()
        except OSError:
            self._is_torn = True  # if truncating fails, the next entry starts a new line
            os.ftruncate(self._file, self._size)
            self._is_torn = False
            raise
        if self._is_torn:
            self._is_torn = False
            self._size = os.fstat(self._file).st_size
        else:
            self._size += len(note)
        if self.failing:
            self.failing = False
            log.info("journal_write_recovered")

    def _report(self, error: OSError) -> None:
        if not self.failing:
            self.failing = True
            log.error("journal_write_failed", error=str(error))

    def renew(self) -> None:
        """Rewrite the file. If that fails, keep the old one, and retry when it has grown by ``rotate_bytes`` more."""
        self._rotate_at = self._size + self._rotate_bytes
        try:
            new_file = self._write_anew()
        except OSError as error:
            self._report(error)
            return
        os.close(self._file)
        self._file = new_file
        self._rotate_at = self._size + self._rotate_bytes

    def _write_anew(self) -> int:
        """Replace the file with one that has only the entries that matter; return its descriptor.

        Raises ``OSError`` if it cannot be written; the old file then stays.
        """
        draft = self._path.with_name(f"{self._path.name}.new")
        content = b"".join((_HEAD_LINE, *self._open_notes.values()))
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, _OWNER_ONLY_MODE
        )
        try:
            if os.write(descriptor, content) != len(content):
                _fail_partial_write()
            draft.rename(self._path)
        except OSError:
            os.close(descriptor)
            draft.unlink(missing_ok=True)
            raise
        self._is_torn = False
        self._size = len(content)
        return descriptor


def _fail_partial_write() -> NoReturn:
    raise OSError("the disk accepted only a part of the entry")


def _write_note(unfinished_request: UnfinishedRequest) -> bytes:
    kind = _SETTLED_STATE if unfinished_request.ended else _INTERRUPTED_STATE
    return orjson.dumps((kind, *_READ_VALUES(unfinished_request.row))) + b"\n"


def _read(path: Path) -> list[UnfinishedRequest]:
    try:
        requests, skipped_count = parse_journal(path.read_bytes())
    except FileNotFoundError:
        return []
    if skipped_count:
        _keep_aside(path, skipped_count)
    return requests


def parse_journal(content: bytes) -> tuple[list[UnfinishedRequest], int]:
    """Return each request's last entry, and the number of unreadable entries.

    The number is 0 if only the last entry is truncated, and at least 1 if the line with the field names is damaged.
    """
    requests: dict[str, UnfinishedRequest] = {}
    skipped_numbers: list[int] = []
    head, *lines = content.split(b"\n")
    names = _read_head(head)
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            unfinished_request = _read_note(line, names)
        except (orjson.JSONDecodeError, TypeError, ValueError):
            skipped_numbers.append(number)
            continue
        requests[unfinished_request.row.id] = unfinished_request
    if head and not names[0]:  # the first line is written together with the file, so only damage truncates it
        return list(requests.values()), max(len(skipped_numbers), 1)
    return list(requests.values()), 0 if skipped_numbers == [len(lines) - 1] else len(skipped_numbers)


def _read_head(head: bytes) -> _Names:
    try:
        fields = orjson.loads(head)
        return fields["fields"], fields.get("started", ())
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return (), ()


def _read_note(line: bytes, names: _Names) -> UnfinishedRequest:
    """Parse an entry. Raises ``ValueError`` or ``TypeError`` if the line is not an entry."""
    note = orjson.loads(line)
    if not isinstance(note, list) or not note or note[0] not in (_INTERRUPTED_STATE, _SETTLED_STATE, _STARTED_STATE):
        raise ValueError("not a note")  # a JSON object could be unpacked, too
    kind, *values = note
    row_names, start_names = names
    if kind == _STARTED_STATE:
        return UnfinishedRequest(RequestStart(**dict(zip(start_names, values, strict=True))).interrupt(), ended=False)
    return UnfinishedRequest(parse_record(dict(zip(row_names, values, strict=True))), ended=kind == _SETTLED_STATE)


def _keep_aside(path: Path, skipped_count: int) -> None:
    """Set a journal with unreadable lines aside for the operator: the lines may be charges."""
    number = 1
    while (kept_path := path.with_name(f"{path.name}.unread-{number}")).exists():
        number += 1
    path.rename(kept_path)
    log.error("journal_lines_skipped", rows=skipped_count, path=str(kept_path), reason=_SKIPPED_WARNING)
