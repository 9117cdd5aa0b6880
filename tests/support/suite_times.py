"""Wall and CPU time of each test, and the CPU time of the whole run: printed at the end and stored as JSON."""

import resource
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

WHOLE_RUN = 1_000
"""Times of a run with fewer tests are neither printed nor stored: such a run is a selection."""
SLOWEST = 30
CPU = "cpu_s"
"""The user property of a report that has the CPU time of its test."""


class Times(NamedTuple):
    """Seconds of one test, set-up and end included. The CPU time is that of its worker and of ended child processes."""

    wall_s: float
    cpu_s: float


def measure_cpu_s() -> float:
    """Return the seconds of CPU time of this process and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def read_times(stats: Mapping[str, list[object]]) -> dict[str, Times]:
    """Return the times of each test, the slowest first. ``stats`` are those of a terminal reporter."""
    times: dict[str, Times] = {}
    for reports in stats.values():
        for report in reports:
            if type(report) is pytest.TestReport:  # a subtest's time is part of its test's
                before = times.get(report.nodeid, Times(0.0, 0.0))
                cpu_s = sum(float(str(value)) for name, value in report.user_properties if name == CPU)
                times[report.nodeid] = Times(before.wall_s + report.duration, before.cpu_s + cpu_s)
    return dict(sorted(times.items(), key=lambda item: -item[1].wall_s))


def write_times(times: Mapping[str, Times], cpu_s: float) -> Iterator[str]:
    """Yield the lines that a whole run prints."""
    for name, (wall_s, own_cpu_s) in islice(times.items(), SLOWEST):
        yield f"{wall_s:7.2f} s, CPU {own_cpu_s:6.2f} s  {name}"
    yield f"{cpu_s:7.0f} s of CPU time for {len(times)} tests"


def store_times(times: Mapping[str, Times], cpu_s: float, folder: Path) -> None:
    """Write ``times.json``: ``{"cpu_s": 512.3, "tests": {"tests/…::test_…": {"wall_s": 0.12, "cpu_s": 0.04}}}``."""
    run = {"cpu_s": cpu_s, "tests": {name: found._asdict() for name, found in times.items()}}
    (folder / "times.json").write_bytes(orjson.dumps(run, option=orjson.OPT_INDENT_2))
