"""The timeline of the database's server, by which an outdated primary is recognized.

Each promotion of a standby begins a timeline with a higher number (PostgreSQL documentation, "Timelines"). If the
former primary still runs, or comes back, both servers take writes. Keys that are revoked on one of them are valid on
the other, and a limit on one does not count what was spent on the other. So a node refuses a server whose timeline is
older than the newest one that it has seen or that another node has named, unless the server hides its timeline.
"""

import re
from pathlib import Path
from weakref import WeakKeyDictionary

import asyncpg
import structlog

from gateway.frozen import frozen
from gateway.storage.postgres.hosts import Connection

# `pg_control_checkpoint` shows the timeline of the last checkpoint, which may precede a promotion.
_READ_TIMELINE = """
SELECT (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END
"""
_IS_STANDBY = "SELECT pg_is_in_recovery()"
_TIMELINE = re.compile(r"(-?[0-9]{1,20}):([0-9]{1,10})")

log = structlog.stdlib.get_logger(__name__)


class ServerOutdated(ConnectionError):
    """The server has an older timeline than the newest one known: a standby was promoted in its place."""


@frozen
class Timeline:
    """A timeline of a server: each promotion of a standby begins one.

    Attributes:
        system: identifies the server and its standbys; a restored dump has another identity.
        number: counts the timelines of a system from 1.
    """

    system: int
    number: int

    def __str__(self) -> str:
        return f"{self.system}:{self.number}"

    def is_older(self, other: "Timeline") -> bool:
        """Return whether a promotion after this timeline began ``other``."""
        return self.system == other.system and self.number < other.number


class NewestTimeline:
    """The newest timeline known, kept in a file over restarts.

    ``path``: the file; None keeps the timeline in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._newest_timeline = None if path is None or not path.exists() else parse_timeline(path.read_text().strip())
        self._connections: WeakKeyDictionary[Connection, Timeline | None] = WeakKeyDictionary()

    def __str__(self) -> str:
        """The text for ``learn`` of another node; empty if no timeline is known."""
        return "" if self._newest_timeline is None else str(self._newest_timeline)

    async def check(self, connection: Connection) -> None:
        """Remember the timeline of a new ``connection``. Raises ``ServerOutdated``.

        A standby, and a server that hides its timeline from this user, as some managed services do, are not checked.
        A connection to a primary closes those to standbys and, if its timeline is known, those to servers on another
        one. Otherwise a former primary that is a standby now would be read for as long as it runs.
        """
        try:
            system, number = await connection.fetchrow(_READ_TIMELINE)
        except (asyncpg.SyntaxOrAccessError, asyncpg.FeatureNotSupportedError):
            if not await connection.fetchval(_IS_STANDBY):
                self._close_replaced(None)
                return
            system, number = 0, ""
        if not number:
            self._connections[connection] = None
            return
        timeline = Timeline(system, int(number, 16))
        if self._newest_timeline is not None and timeline.is_older(self._newest_timeline):
            raise ServerOutdated(
                f"The server is on timeline {timeline.number}, but a standby was promoted to timeline "
                f"{self._newest_timeline.number}: stop this server. If an older backup was restored on purpose, delete "
                "the file store.timeline in the data folder of every node"
            )
        self._close_replaced(timeline)
        self._connections[connection] = timeline
        self._remember(timeline)

    def learn(self, text: str) -> bool:
        """Close all connections if ``text`` names a newer timeline than the one in use; return whether it does."""
        timeline = parse_timeline(text)
        if timeline is None or self._newest_timeline is None or not self._newest_timeline.is_older(timeline):
            return False
        log.error("store_outdated", reason=f"timeline {timeline.number} has replaced {self._newest_timeline.number}")
        self._remember(timeline)
        self._close_replaced(timeline)
        return True

    def _close_replaced(self, newest_timeline: Timeline | None) -> None:
        """Close the connections to standbys and, if ``newest_timeline`` is known, to servers with another one."""
        for connection, timeline in list(self._connections.items()):
            if timeline is None or newest_timeline not in (None, timeline):
                connection.terminate()
                del self._connections[connection]

    def _remember(self, timeline: Timeline) -> None:
        if timeline == self._newest_timeline:
            return
        self._newest_timeline = timeline
        if self._path is not None:
            draft = self._path.with_suffix(".draft")
            draft.write_text(f"{timeline}\n")
            draft.replace(self._path)


def parse_timeline(text: str) -> Timeline | None:
    """Return the timeline that ``str`` has written; None for any other text."""
    match = _TIMELINE.fullmatch(text)
    return None if match is None else Timeline(int(match[1]), int(match[2]))
