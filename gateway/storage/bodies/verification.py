"""Checks whether kept bodies are where the index says, without unsealing them: for ``doctor`` and for restored backups.

The head of every frame is read, which an erased or missing frame does not have; of the newest frames the checksum is
checked, too. Also reads the names of moved segments and the mark of the shared store, and removes from a restored
database the mark and the node of its rows.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from gateway.frozen import frozen
from gateway.storage.bodies.framing import HEAD_BYTES, FrameDamaged, check_head, parse_frame
from gateway.storage.bodies.segments import find_segment
from gateway.storage.integrity_check import build_read_only_uri

MAX_CHECKED_FRAMES = 500
"""Maximum of frames whose checksum is computed: for all frames of 10 GB that would take minutes."""
_IS_KEPT = (  # a backup may come from an untrusted source: only numbers that a gateway writes
    "typeof(segment) = 'integer' AND segment BETWEEN 0 AND 999999999999999 AND typeof(position) = 'integer' "
    "AND position BETWEEN 0 AND 1099511627776 AND typeof(bytes) = 'integer' AND bytes BETWEEN 12 AND 268435456 "
    "AND typeof(started_ms) = 'integer' AND typeof(account_id) = 'integer' AND expires_ms > 0 AND node = ''"
)
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_IS_MOVED = "EXISTS (SELECT 1 FROM body_segments AS m WHERE m.node = bodies.node AND m.segment = bodies.segment)"
_LIST_FRAMES = (
    "SELECT segment, position, bytes, account_id, started_ms FROM bodies WHERE {condition} ORDER BY segment, position"
)
_FIND_NEWEST = "SELECT started_ms FROM bodies WHERE {condition} ORDER BY started_ms DESC LIMIT 1 OFFSET ?"
_LIST_MOVED = "SELECT name FROM body_segments"


@frozen
class BodiesCheck:
    """What a check of kept bodies has found.

    Attributes:
        requests: the number of requests with kept bodies.
        oldest_ms: when the oldest of these requests began, in Unix milliseconds; None without one.
        damaged: the number of requests whose frame is missing or damaged.
        keyless: the number of requests whose account has no data key in the folder.
        problem: what is wrong with one of the damaged frames; empty without one.
    """

    requests: int = 0
    oldest_ms: int | None = None
    damaged: int = 0
    keyless: int = 0
    problem: str = ""


def check_bodies(database: Path, folder: Path) -> BodiesCheck:
    """Check the segments in ``folder`` against the index in a SQLite database; return what was found.

    Those that were moved to a shared store, and those of nodes of a cluster, are left out. Raises ``sqlite3.Error``,
    and ``OSError`` for a folder that cannot be read.
    """
    with closing(sqlite3.connect(build_read_only_uri(database), uri=True)) as connection:
        if connection.execute(_HAS_TABLE, ("bodies",)).fetchone() is None:
            return BodiesCheck()
        has_moved = connection.execute(_HAS_TABLE, ("body_segments",)).fetchone() is not None
        condition = f"{_IS_KEPT} AND NOT {_IS_MOVED}" if has_moved else _IS_KEPT
        newest = connection.execute(_FIND_NEWEST.format(condition=condition), (MAX_CHECKED_FRAMES,)).fetchone()
        checked_after_ms = 0 if newest is None else newest[0]
        keyed_accounts = {path.stem for path in (folder / "keys").glob("*.key")}
        requests = damaged = keyless = 0
        oldest_ms, problem = None, ""
        for row, row_problem in _check_frames(
            folder, connection.execute(_LIST_FRAMES.format(condition=condition)), checked_after_ms
        ):
            requests += 1
            keyless += str(row[3]) not in keyed_accounts
            oldest_ms = row[4] if oldest_ms is None else min(oldest_ms, row[4])
            damaged += bool(row_problem)
            problem = problem or row_problem
    return BodiesCheck(requests, oldest_ms, damaged, keyless, problem)


def list_moved(database: Path) -> set[str]:
    """Return the names of the segments that were moved to a shared store. Raises ``sqlite3.Error``."""
    with closing(sqlite3.connect(build_read_only_uri(database), uri=True)) as connection:
        if connection.execute(_HAS_TABLE, ("body_segments",)).fetchone() is None:
            return set()
        return {name for (name,) in connection.execute(_LIST_MOVED)}


def find_mark(database: Path) -> str:
    """Return the mark that a database has left in its shared store; empty without one. Raises ``sqlite3.Error``."""
    with closing(sqlite3.connect(build_read_only_uri(database), uri=True)) as connection:
        if connection.execute(_HAS_TABLE, ("body_store_marks",)).fetchone() is None:
            return ""
        row = connection.execute("SELECT mark FROM body_store_marks").fetchone()
        return "" if row is None else str(row[0])


def remove_mark(database: Path) -> None:
    """Delete the mark of a restored database: the original database owns the shared store.

    ``database`` is SQLite, of any version. Raises ``sqlite3.Error``.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        if connection.execute(_HAS_TABLE, ("body_store_marks",)).fetchone() is not None:
            connection.execute("DELETE FROM body_store_marks")


def release_node(database: Path, node: str) -> None:
    """Remove the node's id from the rows of ``node``, for the gateway that opens the segments next.

    ``database`` is SQLite, of any version. Raises ``sqlite3.Error``.
    """
    with closing(sqlite3.connect(database)) as connection, connection:
        if connection.execute(_HAS_TABLE, ("bodies",)).fetchone() is not None:
            connection.execute("UPDATE bodies SET node = '' WHERE node = ?", (node,))


def _check_frames(folder: Path, rows: Iterator[Any], checked_after_ms: int) -> Iterator[tuple[Any, str]]:
    """Yield each row with what is wrong with its frame; frames newer than ``checked_after_ms`` are read whole."""
    for number, group in groupby(rows, key=itemgetter(0)):
        path = find_segment(folder, number)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield from ((row, f"{path.name} is missing") for row in group)
            continue
        try:
            for row in group:
                problem = _find_problem(descriptor, row[1], row[2], reads_all=row[4] > checked_after_ms)
                yield row, f"{path.name}: {problem}" if problem else ""
        finally:
            os.close(descriptor)


def _find_problem(descriptor: int, position: int, frame_bytes: int, *, reads_all: bool) -> str:
    try:
        if reads_all:
            parse_frame(os.pread(descriptor, frame_bytes, position))
        else:
            check_head(os.pread(descriptor, HEAD_BYTES, position), frame_bytes)
            if os.fstat(descriptor).st_size < position + frame_bytes:
                return "a frame is incomplete"
    except FrameDamaged as error:
        return str(error)
    return ""
