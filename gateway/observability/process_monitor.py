"""Reports the health of this process: event-loop lag, memory, CPU, open files, and the sizes of folders.

Everything is measured on request, except the lag, which is sampled continuously.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from gateway import __version__
from gateway.answer_fields import Count
from gateway.domain.account_spec import build_time
from gateway.domain.statistics import RingBuffer, find_percentile
from gateway.frozen import frozen
from gateway.observability.histogram import Histogram
from gateway.storage.data_folder import JOURNAL

LAG_INTERVAL_S = 1.0
LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
LAG_WINDOW_S = 300
"""Period over which lag samples are kept, in seconds. Five minutes of samples take 2.4 KB."""
FOLDER_SIZE_TTL_S = 60.0
"""How long the size of a folder is cached: measuring it reads the metadata of every file."""
_PROC = Path("/proc/self")
_DESCRIPTORS = Path("/dev/fd")
_US_PER_S = 1_000_000

Fields = dict[str, Any]


@frozen
class LagPercentiles:
    """Percentiles of the event loop's lag, in milliseconds."""

    p50: float
    p99: float
    max: float


class EventLoopLag:
    """The delays of the event loop's timers in the last five minutes; ``histogram`` has all since the start."""

    def __init__(self) -> None:
        self.histogram = Histogram(LAG_BOUNDS)
        self._samples = RingBuffer(round(LAG_WINDOW_S / LAG_INTERVAL_S))

    def add(self, late_s: float) -> None:
        self._samples.add(max(0, round(late_s * _US_PER_S)))
        self.histogram.observe(max(0.0, late_s))

    def describe(self) -> LagPercentiles:
        """Return the percentiles; 0 before the first sample."""
        sorted_samples = sorted(self._samples) or [0]
        figures = find_percentile(sorted_samples, 50), find_percentile(sorted_samples, 99), sorted_samples[-1]
        return LagPercentiles(*(figure * 1000 / _US_PER_S for figure in figures))


@frozen
class FolderSize:
    """The total size of the files in a folder, and their number."""

    bytes: Count
    files: Count


@attrs.define
class FolderUsage:
    """The number of files in a folder and their total size, cached. If ``path`` is None, there is no such folder."""

    path: Path | None
    size: FolderSize | None = None
    measured_s: float = float("-inf")

    async def measure(self, now_s: float) -> FolderSize | None:
        """Return files and bytes, measured in a thread at most once a minute.

        None if there is no such folder, or during the first measurement.
        """
        if self.path is not None and now_s - self.measured_s >= FOLDER_SIZE_TTL_S:
            self.measured_s = now_s  # concurrent calls get the last value; None during the first measurement
            self.size = await asyncio.to_thread(_measure, self.path)
        return self.size


class ProcessMonitor:
    """Describes the process and its files.

    ``folder`` is the data folder. ``media`` is the folder that holds images and videos; None if they are in a bucket.
    """

    def __init__(self, folder: Path, clock: Callable[[], float], media: Path | None) -> None:
        self.lag = EventLoopLag()
        self.journal = folder / JOURNAL
        self.media = FolderUsage(media / "media" if media else None)
        self.videos = FolderUsage(media / "videos" if media else None)
        self._started_s = clock()
        self._started_at = time.monotonic()

    def describe(self) -> Fields:
        return {
            "version": __version__,
            "started_at": build_time(int(self._started_s)),
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            "pid": os.getpid(),
            "python": ".".join(map(str, sys.version_info[:3])),
            "memory_bytes": find_memory(),
            "cpu_s": round(time.process_time(), 2),
            "open_files": count_open_files(),
            "tasks": len(asyncio.all_tasks()),
            "loop_lag_ms": self.lag.describe(),
        }


def find_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if the file is missing or unreadable."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def find_memory() -> int:
    """Return the resident memory in bytes; the peak if the system does not report the current size."""
    try:
        pages = int((_PROC / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        import resource  # noqa: PLC0415 - only where there is no /proc

        peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak_rss if sys.platform == "darwin" else peak_rss * 1024  # units differ, see getrusage(2)
    return pages * os.sysconf("SC_PAGE_SIZE")


def count_open_files() -> int | None:
    """Return the number of open files and sockets; None if the system does not report it."""
    try:
        return sum(1 for _ in (_PROC / "fd" if _PROC.exists() else _DESCRIPTORS).iterdir())
    except OSError:
        return None


def _measure(folder: Path) -> FolderSize | None:
    """Return the size and the number of the files below a folder; None if it is missing. Runs in a thread."""
    if not folder.is_dir():
        return None
    sizes = [find_size(Path(directory) / name) for directory, _, names in os.walk(folder) for name in names]
    return FolderSize(sum(sizes), len(sizes))


class LoopLagMeter:
    """Samples the event loop's lag with ``clock``. The loop's own clock stands still during a callback of uvloop."""

    def __init__(self, lag: EventLoopLag, clock: Callable[[], float] = time.monotonic) -> None:
        self._lag = lag
        self._clock = clock

    async def run(self) -> None:
        """Measure, forever, the excess duration of a sleep of ``LAG_INTERVAL_S``."""
        while True:
            due_at = self._clock() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lag.add(self._clock() - due_at)
