"""The rows of the request log that one list may show, and the cursor from which the next list continues.

SQLite has one writer: rows become visible in the order of their sequences, and a follower's cursor is a sequence. On
PostgreSQL several nodes write, and a row may become visible after rows with higher sequences. There the cursor is a
snapshot, that is, the transactions that had ended; the next list has the rows of transactions that have ended since.
"""

import re
from typing import Any

import attrs
from sqlalchemy import BigInteger, ColumnElement, Row, Text, literal_column, or_, select
from sqlalchemy import func as sql

from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.storage.database import Database
from gateway.storage.schema import requests

MAX_RUNNING = 100
"""How many running transactions a cursor may contain, because it is sent in a request's URL."""
MAX_STEP = 20_000
"""How many transactions a follower's list searches at a time, because a cursor may be days old."""
_NUMBER, _SNAPSHOT = "[0-9]{1,19}", r"t[0-9]{1,19}(?:\.[0-9]{1,19}){0,200}"
_CURSOR = re.compile(rf"({_NUMBER}|{_SNAPSHOT})(?:-({_SNAPSHOT})-({_NUMBER})-({_NUMBER}))?", re.ASCII)
_MAX_TRANSACTION = 2**63 - 1

_sequence = requests.c.sequence
_txid = literal_column("requests.txid", BigInteger())
_next_txid = literal_column("pg_snapshot_xmax(pg_current_snapshot())::text::bigint", BigInteger())
_ENDS = (
    select(sql.min(_sequence)).scalar_subquery().label("first"),
    select(sql.max(_sequence)).scalar_subquery().label("newest"),
)
_ENDS_BY_SEQUENCE = select(*_ENDS)
_ENDS_BY_TRANSACTION = select(*_ENDS, literal_column("pg_current_snapshot()::text", Text()).label("snapshot"))


@frozen
class Window:
    """The rows that one list may show: sequences from ``low`` to below ``high`` that meet the ``conditions``.

    Attributes:
        newest: the cursor after every row that is visible now.
        since: the cursor at which the window begins; empty on SQLite, and in a list without a cursor.
        until: the cursor at which the window ends; empty like ``since``.
        is_cut: whether there may be rows after its end.
    """

    low: int
    high: int
    newest: str
    conditions: tuple[ColumnElement[bool], ...] = ()
    since: str = ""
    until: str = ""
    is_cut: bool = False

    def build_next_cursor(self, last_sequence: int, *, has_more: bool) -> str:
        """Return the cursor after row ``last_sequence``; after the whole window unless it ``has_more`` rows."""
        if not self.until:
            return str(last_sequence)
        return f"{self.since}-{self.until}-{last_sequence}-{self.high}" if has_more else self.until


@frozen
class Snapshot:
    """The transactions that have ended: those before ``end`` except the ``running`` ones, which are sorted."""

    end: int
    running: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "t" + ".".join(map(str, (self.end, *self.running)))

    def bound(self, earlier_snapshot: "Snapshot | None" = None) -> "Snapshot":
        """Return the snapshot without its last transactions if it is too long, or too far after ``earlier_snapshot``.

        All transactions of ``earlier_snapshot`` stay. The bounds are ``MAX_RUNNING`` and ``MAX_STEP``.
        """
        end = self.running[MAX_RUNNING] if len(self.running) > MAX_RUNNING else self.end
        if earlier_snapshot is not None:
            end = max(earlier_snapshot.end, min(end, earlier_snapshot.end + MAX_STEP))
        return Snapshot(min(end, self.end), tuple(transaction for transaction in self.running if transaction < end))

    def has(self) -> ColumnElement[bool]:
        """Return the condition that one of these transactions has written a row."""
        return (_txid < self.end) & _txid.not_in(self.running)

    def misses(self) -> ColumnElement[bool]:
        """Return the negation of ``has``, in a form that uses the index on transactions."""
        return or_(_txid >= self.end, _txid.in_(self.running)) if self.running else _txid >= self.end


@frozen
class PageCursor:
    """A parsed ``after``: rows after a sequence, or rows of transactions that a snapshot does not contain.

    Attributes:
        since: the sequence, or the snapshot, after which rows are shown.
        until: the snapshot at the end of a window that was shown in part; None if the whole window was shown.
        last: the sequence of the last row shown.
        high: the end of the window's sequences.
    """

    since: int | Snapshot
    until: Snapshot | None = None
    last: int = 0
    high: int = 0


async def open_window(database: Database, cursor_text: str | None) -> Window | None:
    """Return the rows that a list may show: all, or those after a cursor; None if a SQLite database has no rows.

    Raises ``InvalidRequest`` if ``cursor_text`` is not a cursor of this database.
    """
    cursor = None if cursor_text is None else parse_cursor(cursor_text)
    if database.kind == "sqlite":
        (ends,) = await database.read(_ENDS_BY_SEQUENCE)
        return _open_by_sequence(ends, cursor)
    (ends,) = await database.read(_ENDS_BY_TRANSACTION)
    current_snapshot = _parse_database_snapshot(ends.snapshot)
    if cursor is not None:
        return await _open_by_transaction(database, cursor, ends, current_snapshot)
    snapshot = current_snapshot.bound()
    # Rows of a restored dump may have transaction ids of another server, ahead of this one's: they are shown.
    is_visible = or_(snapshot.has(), _txid >= _next_txid)
    return Window(ends.first or 0, (ends.newest or 0) + 1, str(snapshot), (is_visible,))


def _open_by_sequence(ends: Row[Any], cursor: PageCursor | None) -> Window | None:
    since = 0 if cursor is None else cursor.since
    if isinstance(since, Snapshot) or (cursor is not None and cursor.until is not None):
        raise _make_cursor_error()
    if ends.newest is None:
        return None
    return Window(max(ends.first, since + 1), max(ends.newest, since) + 1, str(ends.newest))


async def _open_by_transaction(
    database: Database, cursor: PageCursor, ends: Row[Any], current_snapshot: Snapshot
) -> Window:
    since = cursor.since
    if (
        isinstance(since, Snapshot) and since.end > current_snapshot.end
    ):  # of a server replaced by a standby without its last rows
        since = attrs.evolve(since, end=current_snapshot.end)
    earlier_snapshot = since if isinstance(since, Snapshot) else None
    until = cursor.until or current_snapshot.bound(earlier_snapshot)
    conditions = (until.has(),) if earlier_snapshot is None else (earlier_snapshot.misses(), until.has())
    if cursor.until is not None:
        low, high = cursor.last + 1, cursor.high
    elif isinstance(since, int):
        low, high = since + 1, (ends.newest or 0) + 1
    else:
        # Not the bare column: PostgreSQL would scan the index on sequences, which may be long.
        span = select(sql.min(_sequence + 0).label("first"), sql.max(_sequence + 0).label("last"))
        (sequence,) = await database.read(span.where(*conditions))
        low, high = (0, 0) if sequence.first is None else (sequence.first, sequence.last + 1)
    newest = str(current_snapshot.bound())
    return Window(low, max(low, high), newest, conditions, str(since), str(until), is_cut=until != current_snapshot)


def parse_cursor(text: str) -> PageCursor:
    """Parse the text of a cursor. Raises ``InvalidRequest``."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise _make_cursor_error()
    since, until, last, high = match.groups()
    start = _parse_snapshot(since) if since.startswith("t") else _parse_number(since)
    if until is None:
        return PageCursor(start)
    return PageCursor(start, _parse_snapshot(until), _parse_number(last), _parse_number(high))


def _parse_snapshot(text: str) -> Snapshot:
    end, *running_transactions = map(_parse_number, text.removeprefix("t").split("."))
    return Snapshot(end, tuple(sorted(running_transactions)))


def _parse_number(text: str) -> int:
    number = int(text)
    if number > _MAX_TRANSACTION:
        raise _make_cursor_error()
    return number


def _parse_database_snapshot(text: str) -> Snapshot:
    _, end, running_transactions = text.split(":")
    return Snapshot(int(end), tuple(sorted(map(int, filter(None, running_transactions.split(","))))))


def _make_cursor_error() -> InvalidRequest:
    return InvalidRequest("'after' must be the 'next' or the 'newest' of an earlier answer", param="after")
