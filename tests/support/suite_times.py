"""How long each test of a run took, and the processor time of the whole run: printed at the end and stored as JSON."""

import resource
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import orjson
import pytest

WHOLE_RUN = 1_000
"""Times of a run with fewer tests are neither printed nor stored: such a run is a selection."""
SLOWEST = 30


def read_times(stats: Mapping[str, list[object]]) -> dict[str, float]:
    """Return the seconds of each test, set-up and end included, slowest first. ``stats``: a terminal reporter's."""
    times = defaultdict[str, float](float)
    for reports in stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                times[report.nodeid] += report.duration
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def measure_suite_cpu_s() -> float:
    """Return the seconds of processor time of this process and its ended descendants. All workers must have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def write_times(times: Mapping[str, float], cpu_s: float) -> Iterator[str]:
    """Yield the lines that a whole run prints."""
    for name, seconds in islice(times.items(), SLOWEST):
        yield f"{seconds:7.2f} s  {name}"
    yield f"{cpu_s:7.0f} s of processor time for {len(times)} tests"


def store_times(times: Mapping[str, float], cpu_s: float, folder: Path) -> None:
    """Write ``times.json``: ``{"cpu_s": 512.3, "tests": {"tests/…::test_…": 0.12}}``, seconds both."""
    run = {"cpu_s": cpu_s, "tests": dict(times)}
    (folder / "times.json").write_bytes(orjson.dumps(run, option=orjson.OPT_INDENT_2))
