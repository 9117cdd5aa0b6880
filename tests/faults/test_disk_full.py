"""P4: the disk is full. Nothing new is begun, what runs is finished, and with room again all of it is on record."""

import asyncio
import contextlib
import itertools
import os
import resource
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import psutil
import pytest

from tests.support.fault_scene import PRICE, until
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, eventually, open_caller
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    answer,
    chat_events,
    chunk,
)

KEY = "sk-of-a-patient-caller"
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
RECOVERS_IN_S = 5
REFUSED = 1_500
MB = 2**20
MAX_GROWTH = 3 * MB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@attrs.define
class Scene:
    """A gateway, a caller and two providers: one answers at once, one waits for ``go_on`` in the middle of a stream."""

    gateway: GatewayProcess
    up: ScriptedUpstream
    streaming: ScriptedUpstream
    go_on: asyncio.Event
    caller: aiohttp.ClientSession
    numbers: Iterator[int] = attrs.Factory(itertools.count)

    @property
    def reached(self) -> Counter[str]:
        """The marks of the calls that reached a provider."""
        return Counter(received.json["user"] for up in (self.up, self.streaming) for received in up.received)

    async def call(self) -> tuple[int, dict[str, Any], str]:
        """A small call: status, body and Retry-After."""
        mark = f"call{next(self.numbers)}"
        async with ask_chat(self.caller, self.gateway.url, {**HELLO, "user": mark}, mark) as response:
            return response.status, orjson.loads(await response.read()), response.headers.get("Retry-After", "")

    async def begin_stream(self) -> "asyncio.Task[bytes]":
        """A stream, heard to its end; returns when the provider is at it."""

        async def stream() -> bytes:
            body = {**HELLO, "model": "s", "stream": True, "user": "stream"}
            async with ask_chat(self.caller, self.gateway.url, body, "stream") as response:
                assert response.status == 200
                return bytes(await response.read())

        streaming = asyncio.create_task(stream())
        await until(lambda: self.streaming.received)
        return streaming

    async def check_refused(self, count: int) -> None:
        """So many calls are refused with a 503, and no provider hears of them."""
        before = self.reached
        for first in range(0, count, 30):
            answers = await asyncio.gather(*(self.call() for _ in range(first, first + 30)))
            for status, body, retry_after in answers:
                assert (status, body["error"]["code"]) == (503, "overloaded"), body
                assert int(retry_after) >= 1
        assert self.reached == before

    async def is_ready(self) -> bool:
        return (await self.gateway.probe())[0] == 200

    async def is_not_ready(self) -> bool:
        return not await self.is_ready()

    async def is_stored(self) -> bool:
        """Every call that reached a provider has its row; fails where one has two."""
        rows, _ = await self.gateway.read_rows()
        marks = Counter(row.client_request_id for row in rows)
        assert set(marks.values()) <= {1}, marks.most_common(3)
        return self.reached.keys() <= marks.keys()

    async def check_recovered(self, *, leaving: int = 0) -> None:
        """With room on the disk, and nothing else done: ready, at work, and everything on record.

        So many callers may have left before they were answered.
        """
        pid = self.gateway.pid
        await eventually(self.is_ready, RECOVERS_IN_S)
        status, body, _ = await self.call()
        assert status == 200, body
        await eventually(self.is_stored, RECOVERS_IN_S)
        rows, _ = await self.gateway.read_rows()
        found = {row.client_request_id: row for row in rows}
        odd = [found[mark] for mark in self.reached if found[mark].ending != "completed"]
        assert len(odd) <= leaving, odd
        assert {row.ending for row in odd} <= {"client_closed"}
        assert {row.cost_nanos for row in rows if row.ending == "completed"} == {19_000}
        await self.gateway.check_books()
        assert self.gateway.running
        assert self.gateway.pid == pid


@contextlib.asynccontextmanager
async def scene(data: Path) -> AsyncIterator[Scene]:
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b")
    async with (
        ScriptedUpstream([answer(COMPLETION)]) as up,
        ScriptedUpstream([SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]) as streaming,
        GatewayProcess(data, site(up, streaming)) as gateway,
        open_caller(KEY) as caller,
    ):
        yield Scene(gateway, up, streaming, go_on, caller)


def site(up: ScriptedUpstream, streaming: ScriptedUpstream) -> dict[str, Any]:
    return {
        "channel": [
            channel(up.base_url, "whole"),
            channel(streaming.base_url, "streams", models=["s"], idle_timeout_s=20, total_timeout_s=30),
        ],
        "price": [PRICE, {**PRICE, "model": "s"}],
        "account": [{"name": "acme", "quota_usd": 100}],
        "key": [{"name": "test", "secret": KEY, "account": "acme"}],
    }


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


@contextlib.contextmanager
def small_disk(path: Path, size_mb: int) -> Iterator[Path]:
    """A disk of its own at ``path``; where none may be mounted, the reason why there is nothing to see."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=700", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        pytest.skip("there is no command 'mount'")
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], timeout=10, check=True)


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
    async with scene(tmp_path / "data") as s:
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
    async with scene(tmp_path / "data") as s, open_caller(s.gateway.token) as admin:
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
        async with scene(disk) as s:
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
        async with scene(disk) as s:
            assert [(await s.call())[0] for _ in range(5)] == [200] * 5
            await eventually(s.is_stored, RECOVERS_IN_S)
            await s.gateway.kill()
            filler = fill(disk)
            s.gateway.launch()
            assert await s.gateway.wait() != 0
            said = s.gateway.err.read_text()
            assert str(disk) in said
            assert "Traceback" not in said
            filler.unlink()
            await s.gateway.start()
            assert await s.is_stored()
            await s.gateway.check_books()


async def test_a_gateway_that_cannot_note_calls_is_not_ready_though_its_wal_has_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", 8) as disk:
        async with scene(disk) as s:
            wal = disk / "gateway.db-wal"
            while wal.stat().st_size < 4_120_000:  # 1,000 pages: from here on it is written from its beginning again
                await asyncio.gather(*(s.call() for _ in range(30)))
            assert [(await s.call())[0] for _ in range(3)] == [200] * 3
            fill(disk)
            await until_refused(s)
            await eventually(s.is_not_ready, 2)


async def until_refused(s: Scene) -> None:
    while (await s.call())[0] != 503:
        pass
