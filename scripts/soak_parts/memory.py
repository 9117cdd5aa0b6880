"""Resident memory over time, and how steep it is."""

import asyncio
import statistics
import time
from collections.abc import Sequence

import attrs
import psutil


@attrs.frozen
class Curve:
    """Resident memory of a process, in MB, looked at in equal steps."""

    step_s: float
    resident_mb: Sequence[float]

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.step_s * len(self.resident_mb)

    @property
    def growth(self) -> float:
        """What a straight line through it rises by, as a part of its mean."""
        if len(self.resident_mb) < 2:
            return 0.0
        slope = statistics.linear_regression(range(len(self.resident_mb)), self.resident_mb).slope
        return slope * (len(self.resident_mb) - 1) / statistics.fmean(self.resident_mb)

    def since(self, seconds: float) -> "Curve":
        """The curve without its beginning, in which caches fill."""
        return Curve(self.step_s, self.resident_mb[int(seconds / self.step_s) :])

    def describe(self) -> str:
        if not self.resident_mb:
            return "resident memory: not watched for long enough"
        low, high = min(self.resident_mb), max(self.resident_mb)
        return (
            f"resident memory over {self.seconds:.0f} s: first {self.resident_mb[0]:.1f}, "
            f"last {self.resident_mb[-1]:.1f} MB; it grows by {self.growth:+.1%}, from {low:.1f} to {high:.1f} MB"
        )


async def watch(process: psutil.Process, seconds: float, step_s: float) -> Curve:
    """Look at the resident memory each ``step_s`` for ``seconds``."""
    begun, seen = time.monotonic(), []
    while time.monotonic() - begun < seconds:
        seen.append(process.memory_info().rss / 1e6)
        await asyncio.sleep(step_s)
    return Curve(step_s, seen)
