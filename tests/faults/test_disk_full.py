"""P4: the disk is full. Nothing new is begun, what runs is finished, and with room again all of it is on record."""

import asyncio
import contextlib
import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.fault_scene import until
from tests.support.gateway_process import eventually, open_caller
from tests.support.scripted_upstream import DONE
from tests.support.small_disk import RECOVERS_IN_S, DiskTest, disk_test, small_disk

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
REFUSED = 1_500
MB = 2**20
MAX_GROWTH = 3 * MB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@contextlib.contextmanager
def full(pid: int) -> Iterator[None]:
    """A disk without a byte to spare, for one process: every write to a file fails, as with ENOSPC."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("only Linux limits a process from outside")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, UNLIMITED)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Take what room there is, but for ``leave`` bytes; returns the file to delete."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    os.truncate(filler, filler.stat().st_size - leave)
    return filler


async def test_while_nothing_can_be_written_nothing_is_begun_and_what_runs_is_finished(tmp_path: Path) -> None:
    """Its log cannot be written either. What is refused in a loop takes no memory."""
    async with disk_test(tmp_path / "data") as s:
        assert [(await s.call())[0] for _ in range(3)] == [200] * 3
        streaming = await s.begin_stream()
        process = psutil.Process(s.gateway.pid)
        with full(s.gateway.pid):
            await s.check_refused(60)
            await eventually(s.is_not_ready, 2)
            before = process.memory_info().rss
            await s.check_refused(REFUSED)
            growth = process.memory_info().rss - before
            s.go_on.set()
            assert (await streaming).endswith(DONE)
            report = await s.gateway.ask("audit")
            assert report["ok"], report
            assert report["open_holds"] == 0
            assert await s.is_not_ready()
        await s.check_recovered()
        print(f"{REFUSED} refused calls: {growth / MB:.1f} MB more, {report['waiting_rows']} rows waiting")  # noqa: T201
        assert growth < MAX_GROWTH
        assert 1 <= report["waiting_rows"] <= 60 + 1


async def test_no_credit_is_given_that_cannot_be_written(tmp_path: Path) -> None:
    async with disk_test(tmp_path / "data") as s, open_caller(s.gateway.token) as admin:
        url = f"{s.gateway.url}/admin/v1/accounts/acme/credits"
        credit = {"amount_usd": 5, "reference": "payment 1"}
        with full(s.gateway.pid):
            async with admin.post(url, json=credit) as response:
                assert response.status == 503
            assert (await s.gateway.ask("accounts/acme"))["left_usd"] == 100
        assert (await s.gateway.ask("accounts/acme/credits", credit))["left_usd"] == 105
        assert (await s.gateway.ask("accounts/acme/credits", credit))["left_usd"] == 105
        await s.gateway.check_books()


async def test_a_disk_that_fills_up_under_load_stops_new_work_only(tmp_path: Path) -> None:
    """And a ``kill -9`` afterwards finds nothing to be settled again."""
    with small_disk(tmp_path / "data", 4) as disk:
        async with disk_test(disk) as s:
            streaming = await s.begin_stream()
            filler = fill(disk, leave=32 * 1024)
            statuses = Counter[int]()

            async def keep_calling() -> None:
                while True:
                    status, _, _ = await s.call()
                    statuses[status] += 1
                    await asyncio.sleep(0.02 if status == 503 else 0)

            crowd = [asyncio.create_task(keep_calling()) for _ in range(20)]
            await until(lambda: statuses[503] >= 100)
            await eventually(s.is_not_ready, 3)
            reached = s.reached
            s.go_on.set()
            assert (await streaming).endswith(DONE)
            await until(lambda: statuses[503] >= 300)
            assert s.reached == reached
            filler.unlink()
            served = statuses[200]
            await until(lambda: statuses[200] > served + 20)
            for caller in crowd:
                caller.cancel()
            gone = await asyncio.gather(*crowd, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in gone), gone
            await s.check_recovered(leaving=len(crowd))
            before, _ = await s.gateway.read_rows()
            await s.gateway.kill()
            await s.gateway.start()
            assert (await s.gateway.read_rows())[0] == before
            await s.gateway.check_books()
            print(f"a disk filled under load: {dict(statuses)}, {len(reached)} calls made before")  # noqa: T201


async def test_a_start_on_a_full_disk_says_so_and_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", 2) as disk:
        async with disk_test(disk) as s:
            assert [(await s.call())[0] for _ in range(5)] == [200] * 5
            await eventually(s.is_stored, RECOVERS_IN_S)
            await s.gateway.kill()
            filler = fill(disk)
            s.gateway.launch()
            assert await s.gateway.wait() != 0
            text = s.gateway.err.read_text()
            assert str(disk) in text
            assert "Traceback" not in text
            filler.unlink()
            await s.gateway.start()
            assert await s.is_stored()
            await s.gateway.check_books()


async def test_a_gateway_that_cannot_note_calls_is_not_ready_though_its_wal_has_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", 16) as disk:
        async with disk_test(disk) as s:
            wal = disk / "gateway.db-wal"
            while wal.stat().st_size < 4_120_000:  # 1,000 pages: from here on it is written from its beginning again
                await asyncio.gather(*(s.call() for _ in range(30)))
            assert [(await s.call())[0] for _ in range(3)] == [200] * 3
            fill(disk)
            await until_refused(s)
            await eventually(s.is_not_ready, 2)


async def until_refused(s: DiskTest) -> None:
    while (await s.call())[0] != 503:
        pass
