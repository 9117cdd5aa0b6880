"""What a run of the suite says of its own time."""

from pathlib import Path
from typing import Literal

import orjson
import pytest

from tests.support.suite_times import measure_suite_cpu_s, read_times, store_times, write_times


def report(name: str, when: Literal["setup", "call", "teardown"], seconds: float) -> pytest.TestReport:
    return pytest.TestReport(name, ("", None, ""), {}, "passed", None, when, duration=seconds)


def test_phases_of_a_test_are_added_up_and_the_slowest_comes_first(tmp_path: Path) -> None:
    stats = {
        "": [report("quick", "setup", 0.25), report("slow", "teardown", 2.0)],
        "passed": [report("quick", "call", 0.5)],
        "failed": [report("slow", "call", 1.0)],
        "warnings": [object()],
    }
    times = read_times(stats)
    assert [*times.items()] == [("slow", 3.0), ("quick", 0.75)]
    assert [*write_times(times, 12.4)] == [
        "   3.00 s  slow",
        "   0.75 s  quick",
        "     12 s of processor time for 2 tests",
    ]
    store_times(times, 12.4, tmp_path)
    assert orjson.loads((tmp_path / "times.json").read_bytes()) == {"cpu_s": 12.4, "tests": times}


def test_processor_time_grows_with_work() -> None:
    before = measure_suite_cpu_s()
    while measure_suite_cpu_s() <= before:
        pass
