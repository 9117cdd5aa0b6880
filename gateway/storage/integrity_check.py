"""Checks a SQLite file for damage, on a separate read-only connection."""

import asyncio
import re
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

from gateway.storage.database import DatabaseStartupError
from gateway.storage.sqlite_database import is_damage

STEPS_PER_CHECK = 1_000
"""Instructions of SQLite's virtual machine, or pages of a table, between two checks of the deadline."""
CAN_STOP = sqlite3.sqlite_version_info >= (3, 41)
"""Whether SQLite checks the deadline while it reads the pages of a table. Before 3.41, it reads all of them first."""
READ_BYTES_PER_S = 20 * 1024 * 1024
"""Bytes per second that a disk reads in the order of a check, which is not that of the file, if none are cached."""
STOP_TIMEOUT_S = 1.0
MAX_PROBLEMS = 5
_REVISION = re.compile(r"[0-9]{4}\Z")
_FOREIGN_PROBLEM = "is the database of another program"
_CHECK_PRAGMAS = ("quick_check", "integrity_check")


async def check_integrity(path: Path, within_s: float) -> None:
    """Raise ``DatabaseStartupError`` if ``path`` belongs to another program, or damage is found in time.

    Pages are checked first, then whether indexes agree with their tables. If the file cannot be opened for another
    reason, ``open_database`` reports it. The check stops after ``within_s`` seconds. With a version of SQLite
    that cannot stop, a file that may take longer is not checked.
    """
    problems = await asyncio.to_thread(_check, path, within_s)
    if problems == [_FOREIGN_PROBLEM]:
        raise DatabaseStartupError(
            f"{path} {_FOREIGN_PROBLEM}: it is not touched. Name the gateway's own database (store.url), or restore it "
            "there"
        )
    if problems:
        raise DatabaseStartupError(
            f"The database {path} is damaged: {'; '.join(problems)}. Nothing was changed. Restore {path.name} from a "
            f"backup (gateway restore), and remove {path.name}-wal unless the backup has one. What can be saved from a "
            "damaged file sqlite3's command .recover saves. 'gateway doctor' checks the whole folder"
        )


async def find_damage(path: Path) -> list[str]:
    """Return up to ``MAX_PROBLEMS`` problems of the first damaged table; empty if no table is damaged.

    Checks the whole database, table by table, without a time limit. An error that is no damage ends the check without
    a problem. Raises ``sqlite3.Error`` if the file cannot be opened.
    """
    connection = sqlite3.connect(build_read_only_uri(path), uri=True, check_same_thread=False)
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def check() -> None:
        with closing(connection):
            problems = _check_tables(connection)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set_result, found, problems)

    # The process ends without waiting for a daemon: where ``CAN_STOP`` is False, a large table takes minutes.
    Thread(target=check, name="integrity", daemon=True).start()
    try:
        return await asyncio.shield(found)
    except asyncio.CancelledError:
        with suppress(sqlite3.ProgrammingError):  # the thread has just closed the connection
            connection.interrupt()
        await asyncio.wait([found], timeout=STOP_TIMEOUT_S)
        raise


def _set_result(found: asyncio.Future[list[str]], problems: list[str]) -> None:
    if not found.done():
        found.set_result(problems)


def _check(path: Path, within_s: float) -> list[str]:
    problems: list[str] = []
    if not path.exists():
        return problems
    try:
        with closing(sqlite3.connect(build_read_only_uri(path), uri=True)) as connection:
            if is_foreign(connection):
                return [_FOREIGN_PROBLEM]
            if not CAN_STOP and path.stat().st_size > within_s * READ_BYTES_PER_S:
                return []
            deadline_s = time.monotonic() + within_s
            connection.set_progress_handler(lambda: time.monotonic() > deadline_s, STEPS_PER_CHECK)
            for pragma in _CHECK_PRAGMAS:
                problems = problems or read_problems(connection, f"PRAGMA {pragma}({MAX_PROBLEMS})")
    except sqlite3.Error as error:
        if is_damage(error):
            return [str(error)]
    return problems


def _check_tables(connection: sqlite3.Connection) -> list[str]:
    # One table at a time: each check is a transaction, and a long one would delay checkpoints of the WAL.
    try:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            quoted_name = name.replace("'", "''")
            if problems := read_problems(connection, f"PRAGMA integrity_check('{quoted_name}')"):
                return problems[:MAX_PROBLEMS]
    except sqlite3.Error as error:
        if is_damage(error):
            return [str(error)]
    return []


def is_foreign(connection: sqlite3.Connection) -> bool:
    """Return whether a database is that of another program: it has tables, but not those of a gateway."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"alembic_version", "accounts", "requests"} <= tables:
        return bool(tables)
    version_row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return version_row is None or _REVISION.match(str(version_row[0])) is None


def read_problems(connection: sqlite3.Connection, pragma: str) -> list[str]:
    """Return the problems that a check of SQLite reports; empty if there are none."""
    messages = [" ".join(str(row[0]).split()) for row in connection.execute(pragma)]
    return [] if messages == ["ok"] else messages


def build_read_only_uri(path: Path) -> str:
    """Return the URI that opens a database read-only and creates no file."""
    # Without a WAL the file is complete, and SQLite need not create two more files to read it.
    wal = path.with_name(f"{path.name}-wal")
    return f"{path.absolute().as_uri()}?mode=ro{'' if wal.exists() else '&immutable=1'}"
