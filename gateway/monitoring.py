"""How this process is doing: how late its event loop is, what it uses, and how much waits for its store.

Nothing here is looked at unless somebody asks, but for the loop's lateness, which has to be seen as it happens.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs

from gateway import __version__
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account_spec import build_time
from gateway.domain.statistics import RingBuffer, find_percentile
from gateway.errors import StoreUnavailable
from gateway.proxy.active_requests import ActiveRequests
from gateway.routing.load_balancer import LoadBalancer
from gateway.storage.database import Database
from gateway.storage.journal import RequestJournal
from gateway.storage.schema import REVISION
from gateway.videos.jobs import Videos

LAG_EVERY_S = 0.5
LAG_KEPT_S = 300
"""Five minutes of samples, in a ring of 4.8 KB."""
FOLDERS_KNOWN_S = 60.0
"""How long what was found in a folder is believed: it takes a look at every file."""
STATES = ("up", "trial", "down", "disabled")
_PROC = Path("/proc/self")
_DESCRIPTORS = Path("/dev/fd")
_US = 1_000_000

Fields = dict[str, Any]


class EventLoopLag:
    """How late the event loop came to what was due, of late."""

    def __init__(self) -> None:
        self._samples = RingBuffer(round(LAG_KEPT_S / LAG_EVERY_S))

    def note(self, late_s: float) -> None:
        """It came that late; a timer that was early was in time."""
        self._samples.add(max(0, round(late_s * _US)))

    def describe(self) -> Fields:
        """In milliseconds; 0 before anything was due."""
        ordered = sorted(self._samples) or [0]
        figures = {"p50": find_percentile(ordered, 50), "p99": find_percentile(ordered, 99), "max": ordered[-1]}
        return {name: figure * 1000 / _US for name, figure in figures.items()}


@attrs.define
class FolderUsage:
    """A folder of files, and how much was in it when somebody last looked."""

    path: Path
    found: tuple[int, int] | None = None
    looked_at: float = float("-inf")

    async def measure(self, now: float) -> Fields | None:
        """Files and bytes in it, looked up in a thread once a minute at most; None where it cannot be read."""
        if now - self.looked_at >= FOLDERS_KNOWN_S:
            self.looked_at = now  # whoever asks meanwhile is told what was known before
            self.found = await asyncio.to_thread(_measure, self.path)
        return None if self.found is None else {"bytes": self.found[1], "files": self.found[0]}


@attrs.frozen
class MonitoredParts:
    """What is looked at.

    Attributes:
        check_writable: raises ``StoreUnavailable`` where a request could not be recorded now.
        journal_path: the file of ``journal``.
    """

    lag: EventLoopLag
    running: ActiveRequests
    switchboard: LoadBalancer
    database: Database
    check_writable: Callable[[], Awaitable[None]]
    outbox: WriteQueue
    journal: RequestJournal
    journal_path: Path
    media: FolderUsage
    video_content: FolderUsage
    videos: Videos


class ProcessMonitor:
    """Describes the process.

    Args:
        organs: of which it is made.
        clock: Unix seconds.
    """

    def __init__(self, organs: MonitoredParts, clock: Callable[[], float]) -> None:
        self._organs = organs
        self._clock = clock
        self._started_s = clock()
        self._since = time.monotonic()

    async def describe(self) -> Fields:
        """Everything, as the admin API shows it."""
        organs, now = self._organs, time.monotonic()
        return {
            "version": __version__,
            "started_at": build_time(int(self._started_s)),
            "uptime_s": round(now - self._since, 1),
            "pid": os.getpid(),
            "python": ".".join(map(str, sys.version_info[:3])),
            "memory_bytes": find_memory(),
            "cpu_s": round(time.process_time(), 2),
            "open_files": count_open_files(),
            "tasks": len(asyncio.all_tasks()),
            "loop_lag_ms": organs.lag.describe(),
            "running": len(organs.running),
            "store": await self._describe_store(),
            "queue": {
                "waiting_rows": len(organs.outbox),
                "failing": organs.outbox.failing or organs.journal.failing,
            },
            "journal_bytes": find_size(organs.journal_path),
            "media": await organs.media.measure(now),
            "videos": {"open": organs.videos.all_open, "kept": await organs.video_content.measure(now)},
            "channels": self._count_channels(),
        }

    async def _describe_store(self) -> Fields:
        database, writable = self._organs.database, True
        last_commit_ms = database.last_commit_ms
        try:
            await self._organs.check_writable()
        except StoreUnavailable:
            writable = False
        return {
            "bytes": find_size(database.path),
            "wal_bytes": find_size(database.path.with_name(f"{database.path.name}-wal")),
            "schema": REVISION,
            "writable": writable,
            "last_commit_ms": last_commit_ms,
        }

    def _count_channels(self) -> Fields:
        lines = self._organs.switchboard.lines.values()
        counts = Counter(line.state if line.channel.status == "active" else "disabled" for line in lines)
        return {state: counts[state] for state in STATES}


def find_size(path: Path) -> int:
    """Of a file, in bytes; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def find_memory() -> int:
    """What of the process is in memory, in bytes; where nobody says, the most that ever was."""
    try:
        pages = int((_PROC / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        import resource  # noqa: PLC0415 - only where there is no /proc

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024  # see getrusage(2) of each
    return pages * os.sysconf("SC_PAGE_SIZE")


def count_open_files() -> int | None:
    """Descriptors, sockets among them; None where nobody says."""
    try:
        return sum(1 for _ in (_PROC / "fd" if _PROC.exists() else _DESCRIPTORS).iterdir())
    except OSError:
        return None


def _measure(folder: Path) -> tuple[int, int] | None:
    """How many files are in a folder and below it, and their bytes together. Runs in a thread."""
    if not folder.is_dir():
        return None
    sizes = [find_size(Path(where) / name) for where, _, names in os.walk(folder) for name in names]
    return len(sizes), sum(sizes)


class LoopLagMeter:
    """The job.

    Args:
        lag: told of every sample.
        clock: seconds of a monotonic clock. Not the loop's own: uvloop's stands still while a callback runs.
    """

    def __init__(self, lag: EventLoopLag, clock: Callable[[], float] = time.monotonic) -> None:
        self._lag = lag
        self._clock = clock

    async def run(self) -> None:
        """Sleep for half a second and see for how long that was, for ever."""
        while True:
            due = self._clock() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag.note(self._clock() - due)
