"""How the process is doing: what is late, what folders hold, and what is said where nobody knows."""

from pathlib import Path

import psutil
import pytest

from gateway.observability.process_monitor import (
    FOLDER_SIZE_TTL_S,
    LAG_INTERVAL_S,
    LAG_WINDOW_S,
    EventLoopLag,
    FolderSize,
    FolderUsage,
    LagPercentiles,
    LoopLagMeter,
    count_open_files,
    find_memory,
    find_size,
)
from tests.support.skip_rules import run_skipping

SAMPLES = round(LAG_WINDOW_S / LAG_INTERVAL_S)


def test_lateness_is_told_in_milliseconds_of_the_last_minutes() -> None:
    lag = EventLoopLag()
    assert lag.describe() == LagPercentiles(0, 0, 0)
    lag.add(3.0)
    for number in range(1, SAMPLES + 1):
        lag.add(number / 100_000)
    assert lag.describe() == LagPercentiles(1.5, 2.97, 3.0), "what was five minutes ago is forgotten"


def test_a_timer_that_was_early_was_in_time() -> None:
    lag = EventLoopLag()
    lag.add(-0.001)
    assert lag.describe() == LagPercentiles(0, 0, 0)


def test_the_loop_is_looked_at_every_second() -> None:
    late: list[float] = []

    class Notes(EventLoopLag):
        def add(self, late_s: float) -> None:
            late.append(late_s)
            if len(late) == 3:
                raise TimeoutError

    async def scene() -> None:
        times = iter([10.0, 11.0, 20.0, 21.25, 30.0, 33.0])
        with pytest.raises(TimeoutError):
            await LoopLagMeter(Notes(), lambda: next(times)).run()

    run_skipping(scene())
    assert late == [0.0, 0.25, 2.0]


async def test_a_folder_is_looked_into_once_a_minute_at_most(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "one").write_bytes(b"x" * 10)
    folder = FolderUsage(tmp_path)
    assert await folder.measure(100.0) == FolderSize(10, 1)
    (tmp_path / "two").write_bytes(b"x")
    assert await folder.measure(100.0 + FOLDER_SIZE_TTL_S / 2) == FolderSize(10, 1)
    assert await folder.measure(100.0 + FOLDER_SIZE_TTL_S) == FolderSize(11, 2)


async def test_a_folder_that_is_not_there_has_no_size(tmp_path: Path) -> None:
    assert await FolderUsage(tmp_path / "none").measure(0.0) is None
    assert find_size(tmp_path / "none") == 0


def test_the_process_knows_what_it_holds(tmp_path: Path) -> None:
    before = count_open_files()
    with (tmp_path / "file").open("wb"):
        assert before is not None
        assert count_open_files() == before + 1
    assert abs(find_memory() - psutil.Process().memory_info().rss) < 10_000_000
