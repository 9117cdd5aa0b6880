"""A gateway whose disk is full at a moment that the test chooses."""

import asyncio
import contextlib
import itertools
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import pytest

from tests.support.fault_scene import PRICE, until
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, eventually, open_caller
from tests.support.scripted_upstream import (
    COMPLETION,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    answer,
    chat_events,
    chunk,
)

KEY = "sk-of-a-patient-caller"


RECOVERS_IN_S = 5


@attrs.define
class DiskTest:
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
        odd = [found[mark] for mark in self.reached if found[mark].outcome != "completed"]
        assert len(odd) <= leaving, odd
        assert {row.outcome for row in odd} <= {"client_closed"}
        assert {row.cost_nanos for row in rows if row.outcome == "completed"} == {19_000}
        await self.gateway.check_books()
        assert self.gateway.running
        assert self.gateway.pid == pid


@contextlib.asynccontextmanager
async def disk_test(data: Path, **more: Any) -> AsyncIterator[DiskTest]:
    """``more``: tables of the configuration."""
    go_on = asyncio.Event()

    async def wait(_received: Received) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b")
    async with (
        ScriptedUpstream([answer(COMPLETION)]) as up,
        ScriptedUpstream([SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]) as streaming,
        GatewayProcess(data, {**site(up, streaming), **more}) as gateway,
        open_caller(KEY) as caller,
    ):
        yield DiskTest(gateway, up, streaming, go_on, caller)


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
