"""The store of answers that are given again: a SQLite file of its own, and the newest answers in memory.

Why not the segments of kept bodies: an answer is looked up by a digest, replaced, and deleted one by one by age, user
or account, in whatever order. A table does all of that in one transaction, which ``kill -9`` leaves whole or undone.
Why not the gateway's database: answers may be gigabytes that no backup needs, and must not delay charges.

In the file, an answer is sealed with the data key of its account. A power failure may damage the file: it is then made
anew.
"""

import asyncio
import sqlite3
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import attrs
import orjson
import structlog

from gateway.domain.cached_answer import FORMS, CachedAnswer, CacheStatus
from gateway.domain.usage import Usage, UsageDetails
from gateway.frozen import frozen
from gateway.storage.bodies.data_keys import DataKeys
from gateway.storage.encryption import DecryptionFailed, SecretBox

MAX_MEMORY_BYTES = 32 * 1024 * 1024
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Maximum bytes of answers that wait to be written; further answers are only kept in memory."""
FIND_TIMEOUT_S = 0.2
"""How long a request waits for the file, which may be busy, or on a disk that does not answer."""
PORTION_BYTES = 8 * 1024 * 1024
"""Maximum bytes that one transaction deletes; reads get in between."""
SWEEP_INTERVAL_S = 60.0
_ANSWER_BYTES = 1_024
"""Bytes that an answer takes in memory beside its body."""
_FILE = "answers.db"
_KEYS_FOLDER = "keys"
_LENGTH_BYTES = 4
_COMPRESSION_LEVEL = 1
_PORTION_ROWS = 1_000
_PAGE_BYTES = 4_096
"""Maximum bytes that a row takes on the disk beside its sealed answer."""
_WINDOW_ROWS = 2_000
"""Number of rows that one step of a deletion examines."""
_MAX_FAILED_DELETIONS = 1_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    digest TEXT NOT NULL, form TEXT NOT NULL, account_id INTEGER NOT NULL, key_id INTEGER NOT NULL,
    end_user TEXT NOT NULL, stored_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, sealed BLOB NOT NULL,
    PRIMARY KEY (digest, form)
);
CREATE INDEX IF NOT EXISTS answers_by_expiry ON answers (expires_ms);
CREATE INDEX IF NOT EXISTS answers_by_account ON answers (account_id);
"""
_PUT = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_FIND_OLDEST = "SELECT rowid, length(sealed) FROM answers ORDER BY rowid LIMIT ?"
_FIND_EXPIRED = "SELECT rowid, length(sealed) FROM answers WHERE expires_ms <= ? LIMIT ?"
_FIND_OWNERS = "SELECT rowid, length(sealed), account_id, end_user, stored_ms FROM answers WHERE rowid BETWEEN ? AND ?"
_TEXT_FIELDS = ("media_type", "answered", "source", "adapted")

T = TypeVar("T")

log = structlog.stdlib.get_logger(__name__)


@frozen
class _Deletion:
    """A deletion of the answers that match each of the first three fields that is not None.

    With ``before_ms``, an answer matches if it was stored before that time. ``at_ms``: when the deletion was asked for;
    answers that are stored later are not deleted. Times are Unix milliseconds.
    """

    account_id: int | None
    end_users: Collection[str] | None
    before_ms: int | None
    at_ms: int

    def covers(self, account_id: int, end_user: str, stored_ms: int) -> bool:
        return (
            self.account_id in {None, account_id}
            and (self.end_users is None or end_user in self.end_users)
            and (self.before_ms is None or stored_ms < self.before_ms)
        )


class AnswerCache:
    """The answers of this node.

    One thread does all work on the file, in the order in which it is asked.

    Args:
        secret_box: has the master key.
        find_max_bytes: returns the most bytes of the file.
        keeps_stored: whether to keep what an earlier process has stored.
    """

    def __init__(
        self,
        folder: Path,
        secret_box: SecretBox,
        *,
        find_max_bytes: Callable[[], int],
        clock: Callable[[], float],
        keeps_stored: bool = True,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._folder = folder
        self._data_keys = DataKeys(folder / _KEYS_FOLDER, secret_box)
        self._find_max_bytes = find_max_bytes
        self._clock = clock
        self._keeps_stored = keeps_stored
        self._max_memory_bytes = max_memory_bytes
        self._thread = ThreadPoolExecutor(1, "cache")
        self._connection: sqlite3.Connection | None = None
        self._memory: OrderedDict[tuple[str, str], CachedAnswer] = OrderedDict()
        self._memory_bytes = 0
        self._waiting: list[CachedAnswer] = []
        self._waiting_bytes = 0
        self._deletions: list[_Deletion] = []
        self._running_tasks: set[asyncio.Task[int]] = set()
        self._deletion_count = 0
        self._is_closed = False
        self._problem = ""

    def find_in_memory(self, digest: str) -> list[CachedAnswer]:
        """Return the forms of an answer that are in memory and have not expired."""
        now_ms, answers = self._now_ms(), []
        for form in FORMS:
            answer = self._memory.get((digest, form))
            if answer is not None and answer.expires_ms > now_ms:
                self._memory.move_to_end((digest, form))
                answers.append(answer)
        return answers

    async def find(self, digest: str) -> list[CachedAnswer]:
        """Return the stored forms of an answer that have not expired.

        The list is empty if the file cannot be read within ``FIND_TIMEOUT_S``, or answers are deleted meanwhile.
        """
        deletion_count = self._deletion_count
        answers: list[CachedAnswer] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(FIND_TIMEOUT_S):
                answers = await self._in_thread(self._read, digest)
        if deletion_count != self._deletion_count:  # these may be among the deleted ones
            return []
        return [self._keep_newest(answer) for answer in answers if not self._is_deleted(answer)]

    def put(self, answer: CachedAnswer) -> None:
        """Store an answer at once in memory, and soon on disk.

        One that is too large for memory is only on disk. While too much waits to be written, it is only in memory.
        """
        if self._is_closed:
            return
        self._remember(answer)
        size = _measure(answer)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            return
        self._waiting.append(answer)
        self._waiting_bytes += size
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._write_waiting)

    async def delete(
        self, *, account_id: int | None = None, end_users: Collection[str] | None = None, before_ms: int | None = None
    ) -> int:
        """Delete the answers that match every argument that is given; return how many were on disk.

        Without arguments, all are deleted. ``before_ms``, in Unix milliseconds: those that were stored before. This
        process does not give them again, even if the disk fails. Raises ``OSError`` if some may still be on disk.
        """
        deletion = _Deletion(account_id, end_users, before_ms, self._now_ms())
        self._deletion_count += 1
        for key, answer in list(self._memory.items()):
            if deletion.covers(answer.account_id, answer.end_user, answer.stored_ms):
                self._forget(key)
        del self._deletions[:-_MAX_FAILED_DELETIONS]
        self._deletions.append(deletion)  # until it is done; one that fails stays
        task = asyncio.get_running_loop().create_task(self._delete_all(deletion))
        self._running_tasks.add(task)
        task.add_done_callback(self._forget_task)
        return await asyncio.shield(task)

    def _forget_task(self, task: asyncio.Task[int]) -> None:
        self._running_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # keeps asyncio from logging the exception: the caller may be cancelled

    async def _delete_all(self, deletion: _Deletion) -> int:
        if deletion.account_id is not None and deletion.end_users is None and deletion.before_ms is None:
            # First: without it nothing can be read, whatever is left on the disk.
            await self._in_thread(self._data_keys.destroy, deletion.account_id)
        deleted, (row, last) = 0, await self._in_thread(self._find_range)
        while row <= last:
            if self._is_closed:
                raise OSError("The gateway stops: not all answers are deleted")
            count, row = await self._in_thread(self._delete_from, deletion, row, last)
            deleted += count
        while not self._is_closed and await self._in_thread(self._vacuum):
            pass
        self._deletions.remove(deletion)
        return deleted

    async def sweep(self) -> None:
        """Delete answers that have expired, or that exceed the bound of the file."""
        now_ms = self._now_ms()
        for key in [key for key, answer in self._memory.items() if answer.expires_ms <= now_ms]:
            self._forget(key)
        while not self._is_closed and await self._in_thread(self._sweep):
            pass

    async def run(self) -> None:
        """Delete what expires, until the store is closed."""
        while not self._is_closed:
            await self.sweep()
            await asyncio.sleep(SWEEP_INTERVAL_S)

    async def describe(self) -> CacheStatus:
        answers, used_bytes, oldest_ms = await self._in_thread(self._count)
        return CacheStatus(answers, used_bytes, self._memory_bytes, oldest_ms, self._problem)

    async def close(self) -> None:
        """Write what waits, and stop."""
        if not self._is_closed:
            closing = self._in_thread(self._close)
            self._is_closed = True
            await closing
            self._thread.shutdown()

    # --- memory: on the event loop

    def _remember(self, answer: CachedAnswer) -> None:
        key, size = (answer.digest, answer.form), _measure(answer)
        self._forget(key)
        if size > self._max_memory_bytes // 4:
            return
        self._memory[key] = answer
        self._memory_bytes += size
        while self._memory_bytes > self._max_memory_bytes:
            self._forget(next(iter(self._memory)))

    def _is_deleted(self, answer: CachedAnswer) -> bool:
        """Return whether a deletion that is not done covers an answer."""
        return any(
            deletion.covers(answer.account_id, answer.end_user, answer.stored_ms) and answer.stored_ms <= deletion.at_ms
            for deletion in self._deletions
        )

    def _keep_newest(self, answer: CachedAnswer) -> CachedAnswer:
        """Remember an answer that was read. Return the one in memory instead if that was put meanwhile."""
        kept_answer = self._memory.get((answer.digest, answer.form))
        if kept_answer is not None and kept_answer.stored_ms >= answer.stored_ms:
            return kept_answer
        self._remember(answer)
        return answer

    def _forget(self, key: tuple[str, str]) -> None:
        answer = self._memory.pop(key, None)
        if answer is not None:
            self._memory_bytes -= _measure(answer)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _write_waiting(self) -> None:
        """Let the thread write what waits, before anything that it is asked later."""
        answers, self._waiting = self._waiting, []
        if answers and not self._is_closed:
            size = sum(map(_measure, answers))
            writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, answers)
            writing.add_done_callback(lambda _: self._note_written(size))

    def _note_written(self, size: int) -> None:
        self._waiting_bytes -= size

    def _in_thread(self, work: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        self._write_waiting()
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    # --- the file: in the thread

    def _open(self) -> sqlite3.Connection:
        """Return the connection. A damaged file is made anew. Raises ``sqlite3.Error``, ``OSError``."""
        if self._connection is None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._keeps_stored:
                self._remove_file()
            self._data_keys.remove_dead()
            try:
                self._connection = self._connect()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._discard_file(error)
                self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        path = self._folder / _FILE
        path.touch(mode=0o600)
        connection = sqlite3.connect(path, check_same_thread=False)
        try:
            for pragma in (
                "auto_vacuum = INCREMENTAL",
                "journal_mode = TRUNCATE",
                "synchronous = OFF",  # ``kill -9`` loses nothing; after a power failure the file may be made anew
                "secure_delete = ON",
            ):
                connection.execute(f"PRAGMA {pragma}")
            connection.executescript(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _discard_file(self, error: Exception) -> None:
        log.warning("cache_damaged", error=str(error), reason="the file of cached answers is made anew")
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
        self._remove_file()

    def _remove_file(self) -> None:
        for name in (_FILE, f"{_FILE}-journal"):
            (self._folder / name).unlink(missing_ok=True)

    def _note_failure(self, error: Exception) -> None:
        """Note why the file cannot be used. A damaged one is made anew at the next use."""
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            with suppress(OSError):
                self._discard_file(error)
        elif not self._problem:
            log.warning("cache_failed", error=str(error), reason="answers cannot be stored on disk")
        self._problem = str(error)

    def _read(self, digest: str) -> list[CachedAnswer]:
        query = "SELECT form, account_id, key_id, end_user, stored_ms, expires_ms, sealed FROM answers WHERE digest = ?"
        try:
            rows = self._open().execute(query, (digest,)).fetchall()
        except (sqlite3.Error, OSError) as error:
            self._note_failure(error)
            return []
        answers, now_ms = [], self._now_ms()
        for form, account_id, key_id, end_user, stored_ms, expires_ms, sealed in rows:
            owner = {"account_id": account_id, "key_id": key_id, "end_user": end_user}
            times = {"stored_ms": stored_ms, "expires_ms": expires_ms}
            try:
                box = self._data_keys.find_box(account_id)
                packed = None if box is None else box.open(sealed, context=_name_context(digest, form))
                if packed is not None and form in FORMS and expires_ms > now_ms:
                    answers.append(CachedAnswer(digest=digest, form=form, **owner, **times, **_unpack(packed)))
            except (DecryptionFailed, OSError, zlib.error, TypeError, KeyError, ValueError):
                continue  # unreadable, or of another version
        return answers

    def _write(self, answers: Sequence[CachedAnswer]) -> None:
        try:
            rows = [self._build_row(answer) for answer in answers]
            connection = self._open()
            with connection:
                connection.executemany(_PUT, rows)
            self._keep_bound(connection, 2 * sum(len(answer.body) for answer in answers) + PORTION_BYTES)
            self._free_pages(connection)
        except (sqlite3.Error, OSError, DecryptionFailed) as error:
            self._note_failure(error)
        else:
            self._problem = ""

    def _build_row(self, answer: CachedAnswer) -> tuple[object, ...]:
        try:
            box = self._data_keys.open_box(answer.account_id)
        except DecryptionFailed:  # another master key sealed the data key: nothing under it can be read any more
            self._data_keys.destroy(answer.account_id)
            box = self._data_keys.open_box(answer.account_id)
        sealed = box.seal(_pack(answer), context=_name_context(answer.digest, answer.form))
        owner = answer.account_id, answer.key_id, answer.end_user
        return answer.digest, answer.form, *owner, answer.stored_ms, answer.expires_ms, sealed

    def _keep_bound(self, connection: sqlite3.Connection, max_deleted_bytes: int = PORTION_BYTES) -> bool:
        """Delete some of the oldest answers if the file is too large. Return whether more have to be deleted."""
        while (excess_bytes := _find_used_bytes(connection) - self._find_max_bytes()) > 0 and max_deleted_bytes > 0:
            rows = connection.execute(_FIND_OLDEST, (_PORTION_ROWS,)).fetchall()
            if not rows:
                return False
            max_deleted_bytes -= self._delete_rows(connection, rows, min(excess_bytes, PORTION_BYTES))[1]
        return excess_bytes > 0

    def _delete_rows(
        self, connection: sqlite3.Connection, rows: Sequence[tuple[int, int]], max_bytes: int = PORTION_BYTES
    ) -> tuple[int, int]:
        """Delete the first of ``rows`` (numbers and sizes) in one transaction; return how many, and their size."""
        deleted_rows: list[tuple[int]] = []
        size = 0
        for row, row_bytes in rows:
            if size >= max_bytes:
                break
            deleted_rows.append((row,))
            size += row_bytes + _PAGE_BYTES
        with connection:
            connection.executemany("DELETE FROM answers WHERE rowid = ?", deleted_rows)
        return len(deleted_rows), size

    def _free_pages(self, connection: sqlite3.Connection) -> bool:
        """Give some free pages back to the disk; return whether there are more."""
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.executescript(f"PRAGMA incremental_vacuum({PORTION_BYTES // page_bytes})")  # ``execute`` frees one
        return bool(connection.execute("PRAGMA freelist_count").fetchone()[0])

    def _vacuum(self) -> bool:
        with self._translate_errors():
            return self._free_pages(self._open())

    def _find_range(self) -> tuple[int, int]:
        """Return the numbers of the first and the last row; 1 and 0 if there are no rows."""
        with self._translate_errors():
            first, last = self._open().execute("SELECT min(rowid), max(rowid) FROM answers").fetchone()
        return (1, 0) if first is None else (first, last)

    def _delete_from(self, deletion: _Deletion, first: int, last: int) -> tuple[int, int]:
        """Delete some of the covered answers from row ``first`` on; return how many, and the row to go on with."""
        end = min(first + _WINDOW_ROWS - 1, last)
        with self._translate_errors():
            connection = self._open()
            owners = connection.execute(_FIND_OWNERS, (first, end)).fetchall()
            rows = [(row, size) for row, size, *owner in owners if deletion.covers(*owner)]
            count, _ = self._delete_rows(connection, rows)
        return count, end + 1 if count == len(rows) else rows[count][0]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise ``OSError`` if the file cannot be changed."""
        try:
            yield
        except sqlite3.Error as error:
            self._note_failure(error)
            raise OSError(f"The file of cached answers cannot be changed: {error}") from error

    def _sweep(self) -> bool:
        """Delete some answers that have expired or exceed the bound of the file; return whether there are more."""
        try:
            connection = self._open()
            rows = connection.execute(_FIND_EXPIRED, (self._now_ms(), _PORTION_ROWS)).fetchall()
            self._delete_rows(connection, rows)
            is_full = self._keep_bound(connection)
            return self._free_pages(connection) or is_full or bool(rows)
        except (sqlite3.Error, OSError) as error:
            self._note_failure(error)
            return False

    def _count(self) -> tuple[int, int, int | None]:
        query = "SELECT count(*), min(stored_ms) FROM answers WHERE expires_ms > ?"
        try:
            connection = self._open()
            count, oldest_ms = connection.execute(query, (self._now_ms(),)).fetchone()
            return count, _find_used_bytes(connection), oldest_ms
        except (sqlite3.Error, OSError) as error:
            self._note_failure(error)
            return 0, 0, None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _name_context(digest: str, form: str) -> str:
    return f"{digest}:{form}"


def _measure(answer: CachedAnswer) -> int:
    """Return what an answer takes in memory, in bytes."""
    return len(answer.body) + _ANSWER_BYTES


def _find_used_bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes of the file without those of free pages."""
    numbers = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    ]
    return int((numbers[0] - numbers[1]) * numbers[2])


def _pack(answer: CachedAnswer) -> bytes:
    head = orjson.dumps({name: getattr(answer, name) for name in _TEXT_FIELDS} | {"usage": attrs.asdict(answer.usage)})
    return zlib.compress(len(head).to_bytes(_LENGTH_BYTES, "big") + head + answer.body, _COMPRESSION_LEVEL)


def _unpack(packed: bytes) -> dict[str, Any]:
    """Return the fields of an answer that ``_pack`` has packed."""
    plain = zlib.decompress(packed)
    start = _LENGTH_BYTES + int.from_bytes(plain[:_LENGTH_BYTES], "big")
    fields: dict[str, Any] = orjson.loads(plain[_LENGTH_BYTES:start])
    usage, details = fields.pop("usage"), None
    if usage["details"] is not None:
        details = UsageDetails(**usage["details"])
    return {**fields, "usage": Usage(**{**usage, "details": details}), "body": plain[start:]}
