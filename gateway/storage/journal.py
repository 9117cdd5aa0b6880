"""The journal: a file of the data folder that knows of every call the database does not know of yet.

A commit takes milliseconds and a call does not wait for it; but a process can end between the two. So every call is
noted here before it is made and again when it has ended, in one ``write`` each (about a microsecond): what was written
is the kernel's, and outlives ``kill -9``. A power cut it need not outlive; the database's commits do.

The file is one line of field names, then a line a note: ``[2 started, values…]`` of what is known of a call by then,
``[0 interrupted | 1 settled, values…]`` of its row. It is read once, at the next start; a call's last note counts.
When it has grown, it is written anew with the notes that still matter. A call that an earlier process had only started
is noted as the interrupted row that it is; earlier versions noted every start so.
"""

import os
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path

import attrs
import orjson
import structlog

from gateway.domain.ledger import UnfinishedRequest
from gateway.domain.request_log import RequestRecord, RequestStart
from gateway.errors import StoreUnavailable

ROTATE_BYTES = 4 * 1024 * 1024
_FIELDS = tuple(field.name for field in attrs.fields(RequestRecord))
_VALUES = attrgetter(*_FIELDS)
_HEAD = orjson.dumps({"fields": _FIELDS, "started": RequestStart._fields}, option=orjson.OPT_APPEND_NEWLINE)
_INTERRUPTED, _SETTLED, _STARTED = 0, 1, 2
_NOTE_BYTES = 512
"""About two notes."""
_OWNER_ONLY = 0o600

_Names = tuple[Sequence[str], Sequence[str]]
"""Of a row's fields, and of those of a call that has started."""

log = structlog.stdlib.get_logger(__name__)


class RequestJournal:
    """``domain.ledger.Journal`` in the file ``path``. Close it after the last row is stored.

    Attributes:
        leftovers: what an earlier process had noted and not forgotten.
        failing: the last note could not be written.
    """

    def __init__(self, path: Path, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self._path = path
        self._rotate_bytes = self._rotate_at = rotate_bytes
        self.leftovers = _read(path)
        self._open = {left.row.id: _write_note(left) for left in self.leftovers}
        self._size = 0
        self.failing = self._torn = False
        self._file = self._write_anew()

    def start(self, call: RequestStart) -> None:
        """A call is about to be made. Raises ``StoreUnavailable``."""
        note = orjson.dumps((_STARTED, *call), option=orjson.OPT_APPEND_NEWLINE)
        try:
            self._append(note)
        except OSError as error:
            self._report(error)
            raise StoreUnavailable("The gateway cannot record requests at the moment", retry_after_s=5) from error
        self._open[call.id] = note

    def settle(self, row: RequestRecord) -> None:
        """A call has ended."""
        self._open[row.id] = note = _write_row(_SETTLED, row)
        try:
            self._append(note)
        except OSError as error:
            self._report(error)

    def forget(self, ids: Iterable[str]) -> None:
        """The store has these rows now."""
        for request_id in ids:
            self._open.pop(request_id, None)
        if self._size > self._rotate_at:
            self.renew()

    def check_writable(self) -> None:
        """Raise ``StoreUnavailable`` where a note could not be written now."""
        try:
            self._append(b"\n" * _NOTE_BYTES)
            os.ftruncate(self._file, self._size - _NOTE_BYTES)
        except OSError as error:
            raise StoreUnavailable("The gateway's journal cannot be written to", retry_after_s=5) from error
        self._size -= _NOTE_BYTES

    def close(self) -> None:
        """Leave what the next process has to know."""
        self.renew()
        os.close(self._file)
        self._file = -1  # a number that is another file's by now must not be written to

    def _append(self, note: bytes) -> None:
        try:
            _write_whole(self._file, b"\n" + note if self._torn else note)
        except OSError:
            self._torn = True  # unless it can be taken back; the next note begins a line of its own
            os.ftruncate(self._file, self._size)
            self._torn = False
            raise
        if self._torn:
            self._torn = False
            self._size = os.fstat(self._file).st_size
        else:
            self._size += len(note)
        if self.failing:
            self.failing = False
            log.info("journal_written_again")

    def _report(self, error: OSError) -> None:
        if not self.failing:
            self.failing = True
            log.error("journal_not_written", error=str(error))

    def renew(self) -> None:
        """Write the file anew; where that fails, go on with the old one and try again when it has grown as much."""
        self._rotate_at = self._size + self._rotate_bytes
        try:
            renewed = self._write_anew()
        except OSError as error:
            self._report(error)
            return
        os.close(self._file)
        self._file = renewed
        self._rotate_at = self._size + self._rotate_bytes

    def _write_anew(self) -> int:
        """A file with the notes that matter, in place of the one there is; returns its descriptor."""
        draft = self._path.with_name(f"{self._path.name}.new")
        content = b"".join((_HEAD, *self._open.values()))
        made = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            _write_whole(made, content)
            draft.rename(self._path)
        except OSError:
            os.close(made)
            draft.unlink(missing_ok=True)
            raise
        self._torn = False
        self._size = len(content)
        return made


def _write_whole(file: int, content: bytes) -> None:
    """Raises ``OSError`` where the disk took only a part of it."""
    if os.write(file, content) != len(content):
        raise OSError("the journal could not be written whole")


def _write_row(kind: int, row: RequestRecord) -> bytes:
    return orjson.dumps((kind, *_VALUES(row)), option=orjson.OPT_APPEND_NEWLINE)


def _write_note(left: UnfinishedRequest) -> bytes:
    return _write_row(_SETTLED if left.settled else _INTERRUPTED, left.row)


def _read(path: Path) -> list[UnfinishedRequest]:
    """The last note of every call. A line that is none is skipped: the last one may have been cut off."""
    try:
        head, *lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found: dict[str, UnfinishedRequest] = {}
    skipped: list[int] = []
    names = _read_head(head)
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            left = _read_note(line, names)
        except (orjson.JSONDecodeError, TypeError, ValueError):
            skipped.append(number)
            continue
        found[left.row.id] = left
    if skipped and skipped != [len(lines) - 1]:
        _keep_aside(path, len(skipped))
    return list(found.values())


def _read_head(head: bytes) -> _Names:
    """The names of the fields; none where there is no such line."""
    try:
        told = orjson.loads(head)
        return told["fields"], told.get("started", ())
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return (), ()


def _read_note(line: bytes, names: _Names) -> UnfinishedRequest:
    """Raises ``ValueError`` or ``TypeError`` where it is none."""
    note = orjson.loads(line)
    if not isinstance(note, list) or not note or note[0] not in (_INTERRUPTED, _SETTLED, _STARTED):
        raise ValueError("not a note")  # an object has an order, too
    kind, *values = note
    of_row, of_started = names
    if kind == _STARTED:
        return UnfinishedRequest(RequestStart(**dict(zip(of_started, values, strict=True))).interrupt(), settled=False)
    return UnfinishedRequest(RequestRecord(**dict(zip(of_row, values, strict=True))), settled=kind == _SETTLED)


def _keep_aside(path: Path, skipped: int) -> None:
    """A journal with lines that cannot be read is somebody's money: it is kept for a person to look at."""
    number = 1
    while (kept := path.with_name(f"{path.name}.unread-{number}")).exists():
        number += 1
    path.rename(kept)
    log.error("journal_lines_skipped", rows=skipped, path=str(kept))
