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
    def growth(self) -> float:
        """The growth over the second half, as a part of its mean: what a straight line through it rises by."""
        half = self.resident_mb[len(self.resident_mb) // 2 :]
        if len(half) < 2:
            return 0.0
        slope = statistics.linear_regression(range(len(half)), half).slope
        return slope * (len(half) - 1) / statistics.fmean(half)

    def describe(self) -> str:
        half = self.resident_mb[len(self.resident_mb) // 2 :]
        per_minute = self.growth * statistics.fmean(half) / max(1, len(half) - 1) / self.step_s * 60
        return (
            f"resident memory: first {self.resident_mb[0]:.1f}, middle {half[0]:.1f}, last {half[-1]:.1f} MB; "
            f"the second half grows by {self.growth:+.1%} ({per_minute:+.2f} MB a minute), "
            f"from {min(half):.1f} to {max(half):.1f} MB"
        )


async def watch(process: psutil.Process, seconds: float, step_s: float) -> Curve:
    """Print the resident memory each ``step_s`` for ``seconds``."""
    begun, seen = time.monotonic(), []
    while (passed := time.monotonic() - begun) < seconds:
        seen.append(process.memory_info().rss / 1e6)
        print(f"{passed:6.0f} s  {seen[-1]:.1f} MB", flush=True)
        await asyncio.sleep(step_s)
    return Curve(step_s, seen)
