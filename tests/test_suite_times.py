"""What a run of the suite says of its own time."""

from pathlib import Path
from typing import Literal

import orjson
import pytest

from tests.support.suite_times import CPU, Times, measure_cpu_s, read_times, store_times, write_times


def report(name: str, when: Literal["setup", "call", "teardown"], wall_s: float, cpu_s: float = 0.0) -> object:
    properties = [(CPU, cpu_s)] if cpu_s else []
    return pytest.TestReport(
        name, ("", None, ""), {}, "passed", None, when, duration=wall_s, user_properties=properties
    )


def test_phases_of_a_test_are_added_up_and_the_slowest_comes_first(tmp_path: Path) -> None:
    stats = {
        "": [report("quick", "setup", 0.25), report("slow", "teardown", 2.0)],
        "passed": [report("quick", "call", 0.5, 0.25)],
        "failed": [report("slow", "call", 1.0, 1.5)],
        "warnings": [object()],
    }
    times = read_times(stats)
    assert [*times.items()] == [("slow", Times(3.0, 1.5)), ("quick", Times(0.75, 0.25))]
    assert [*write_times(times, 12.4)] == [
        "   3.00 s, CPU   1.50 s  slow",
        "   0.75 s, CPU   0.25 s  quick",
        "     12 s of CPU time for 2 tests",
    ]
    store_times(times, 12.4, tmp_path)
    stored = orjson.loads((tmp_path / "times.json").read_bytes())
    assert stored["cpu_s"] == 12.4
    assert stored["tests"]["slow"] == {"wall_s": 3.0, "cpu_s": 1.5}


def test_cpu_time_grows_with_work() -> None:
    before = measure_cpu_s()
    while measure_cpu_s() <= before:
        pass
