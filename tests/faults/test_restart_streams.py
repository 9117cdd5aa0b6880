"""A restart while streams run: they come to their end, and every reader gets each event once, over the restart."""

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from tests.support.balancers import run_single_nginx
from tests.support.fault_scene import until
from tests.support.forked_commands import Forked
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, open_caller, write_toml
from tests.support.resumed_streams import CutStream, find_text, list_events, strip_ids
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, Received, ScriptedUpstream, Step, chat_events, chunk
from tests.support.service_manager import Systemd
from tests.support.sockets import find_free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
COUNT = 10
FIRST = 4
WORDS = [f"w{number} " for number in range(40)]
WHOLE = chat_events(*WORDS, usage=False)
_RETRIED = frozenset({502, 503, 504})


def gated(gate: asyncio.Event) -> list[Step]:
    """A stream that goes on after ``FIRST`` events when ``gate`` is set."""

    async def wait(_: Received) -> None:
        await gate.wait()

    events = [chunk(event) for event in chat_events(*WORDS)]
    return [SSE_HEAD, *events[:FIRST], wait, *events[FIRST:], LAST_CHUNK]


def make_tables(up: ScriptedUpstream, drain_timeout_s: float = 60) -> dict[str, Any]:
    return {
        "channel": [channel(up.base_url, idle_timeout_s=100, total_timeout_s=100)],
        "account": [{"name": "acme"}],
        "key": [{"name": "test", "account": "acme", "secret": KEY}],
        "price": [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}],
        "server": {"drain_timeout_s": drain_timeout_s, "log_format": "json"},
    }


@attrs.define
class Reader:
    """Reads a stream to its end, however often its connection is refused or lost.

    Attributes:
        events: what it has, without numbers.
        takes: how many answers it has begun to read.
        refused: how often there was no gateway, or one that was shutting down.
    """

    url: str
    stream_id: str
    events: list[bytes]
    takes: int = 0
    refused: int = 0

    async def read(self, caller: aiohttp.ClientSession) -> None:
        while not self.events[-1].startswith(b"data: [DONE]") and b'"error"' not in self.events[-1]:
            raw = b""
            try:
                async with caller.get(f"{self.url}/v1/streams/{self.stream_id}?after={len(self.events)}") as response:
                    if response.status in _RETRIED:
                        self.refused += 1
                        await asyncio.sleep(0.05)
                        continue
                    assert response.status == 200, await response.text()
                    self.takes += 1
                    async for data in response.content.iter_any():
                        raw += data
            except aiohttp.ClientError:
                self.refused += 1
                await asyncio.sleep(0.05)
            received = list_events(raw)
            if received and b"stream_interrupted" in received[-1]:  # it has no number
                self.events.append(received.pop())
                assert f"after event {len(self.events) - 1 + len(received)};".encode() in self.events[-1]
            numbers, events = strip_ids(received)
            assert numbers == list(range(len(self.events) + 1, len(self.events) + 1 + len(numbers)))
            self.events += events


async def open_readers(gateway_url: str, url: str) -> list[Reader]:
    """Begin ten streams, and lose them all."""
    readers = []
    for _ in range(COUNT):
        stream = await CutStream.open(gateway_url)
        await stream.read_events(FIRST)
        stream.cut()
        readers.append(Reader(url, stream.id, list_events(stream.received)[:FIRST]))
    return readers


def check_rows(data: Path, outcome: str = "completed") -> None:
    """Every stream was charged once, and the ledger has that."""
    with closing(sqlite3.connect(data / "gateway.db")) as database:
        rows = database.execute("SELECT outcome, cost_nanos, attempts FROM requests").fetchall()
        assert len(rows) == COUNT
        assert {row[0] for row in rows} == {outcome}
        assert {row[2] for row in rows} == {1}
        if outcome == "completed":
            assert {row[1] for row in rows} == {19_000}


async def restart_under(
    up: ScriptedUpstream,
    readers: list[Reader],
    gate: asyncio.Event,
    stop: Callable[[], Awaitable[Any]],
    *,
    stops: Callable[[], bool],
    are_back: Callable[[], bool],
) -> None:
    """Stop the gateway, let the readers come as soon as it ``stops``, let the provider go on, and wait for all."""
    async with open_caller() as caller:
        stopping = asyncio.ensure_future(stop())
        await until(stops)
        reading = [asyncio.create_task(reader.read(caller)) for reader in readers]
        await until(lambda: are_back() or any(task.done() for task in reading))
        gate.set()
        await stopping
        await asyncio.gather(*reading)
    assert [find_text(reader.events) for reader in readers] == ["".join(WORDS)] * COUNT
    assert [reader.events for reader in readers] == [WHOLE] * COUNT
    assert len(up.received) == COUNT


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "nginx"])
async def test_readers_come_back_to_a_gateway_that_stops(tmp_path: Path, *, has_proxy: bool) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(gated(gate)) as up, AsyncExitStack() as stack:
        gateway = GatewayProcess(tmp_path / "data", make_tables(up), port=find_free_port())
        await stack.enter_async_context(gateway)
        url = gateway.url
        if has_proxy:
            url = stack.enter_context(run_single_nginx(tmp_path, gateway.url.removeprefix("http://")))
        readers = await open_readers(gateway.url, url)

        async def restart() -> None:
            await gateway.end()
            await gateway.start()

        # The new process can only start when the old one has ended, which the gate prevents.
        await restart_under(
            up,
            readers,
            gate,
            restart,
            stops=lambda: bool(gateway.read_log("drain_started")),
            are_back=lambda: all(reader.takes for reader in readers),
        )
        await gateway.check_books()
        async with open_caller() as caller:
            reader = Reader(url, readers[0].stream_id, WHOLE[:3])
            await reader.read(caller)
            assert reader.events == WHOLE
            async with caller.get(f"{url}/v1/streams/{readers[0].stream_id}") as response:
                described = await response.json()
            assert (described["status"], described["events"], described["cost_usd"]) == ("completed", len(WHOLE), 19e-6)
            async with caller.delete(f"{url}/v1/streams/{readers[0].stream_id}") as response:
                assert response.status == 200
        await gateway.end()
        check_rows(gateway.data)


@pytest.mark.parametrize("has_proxy", [False, True], ids=["direct", "nginx"])
async def test_readers_wait_at_the_socket_of_a_service_manager(tmp_path: Path, *, has_proxy: bool) -> None:
    gate = asyncio.Event()
    config = tmp_path / "gateway.toml"
    async with ScriptedUpstream(gated(gate)) as up, AsyncExitStack() as stack:
        config.write_text(write_toml(make_tables(up)))
        manager = stack.enter_context(Systemd(tmp_path, "--config", str(config)))
        manager.start()
        await asyncio.to_thread(manager.hear_until, "READY=1")
        url = own_url = f"http://127.0.0.1:{manager.port}"
        if has_proxy:
            url = stack.enter_context(run_single_nginx(tmp_path, own_url.removeprefix("http://")))
        readers, stops = await open_readers(own_url, url), asyncio.Event()

        async def restart() -> None:
            ending = asyncio.create_task(asyncio.to_thread(manager.stop))
            await asyncio.to_thread(manager.hear_until, "STOPPING=1")
            stops.set()
            assert await ending == 0
            manager.start()
            await asyncio.to_thread(manager.hear_until, "READY=1")

        await restart_under(up, readers, gate, restart, stops=stops.is_set, are_back=lambda: True)
        assert await asyncio.to_thread(manager.stop) == 0
        check_rows(tmp_path / "data")


@pytest.mark.parametrize("kills", [False, True], ids=["too long", "killed"])
async def test_a_stream_that_does_not_end_in_time_ends_with_one_error_event(tmp_path: Path, *, kills: bool) -> None:
    never = asyncio.Event()
    async with ScriptedUpstream(gated(never)) as up, open_caller() as caller:
        tables = make_tables(up, drain_timeout_s=60 if kills else 0.2)
        async with GatewayProcess(tmp_path / "data", tables, port=find_free_port()) as gateway:
            readers = await open_readers(gateway.url, gateway.url)
            for reader in readers:  # they lose some events, too
                del reader.events[2:]
            if kills:
                ending = asyncio.create_task(gateway.end())
                await until(lambda: gateway.read_log("drain_started"))
                reading = [asyncio.create_task(reader.read(caller)) for reader in readers]
                await until(lambda: all(reader.takes for reader in readers))
                await gateway.kill()
                await asyncio.gather(ending, return_exceptions=True)
            else:
                await gateway.end()
                reading = [asyncio.create_task(reader.read(caller)) for reader in readers]
            await gateway.start()
            await asyncio.gather(*reading)
            for reader in readers:
                count = len(reader.events) - 1
                assert count in (range(2, FIRST + 1) if kills else [FIRST])  # events under way die with the process
                assert reader.events[:-1] == WHOLE[:count]
                assert (b"stream_interrupted" if kills else b"shutting down") in reader.events[-1]
            await gateway.check_books()
            await gateway.end()
            check_rows(gateway.data, "interrupted")
            assert len(up.received) == COUNT
        never.set()


async def test_nothing_is_handed_over_of_whom_a_command_forgets_meanwhile(tmp_path: Path) -> None:
    gate = asyncio.Event()
    gate.set()
    async with (
        ScriptedUpstream(gated(gate)) as up,
        open_caller() as caller,
        GatewayProcess(tmp_path / "data", make_tables(up), port=find_free_port()) as gateway,
    ):
        stream = await CutStream.open(gateway.url, headers={"x-gateway-user": "ann"})
        await stream.read_events(len(WHOLE))
        stream.cut()
        await gateway.end()
        file = gateway.data / "streams" / "handed-over"
        assert file.exists()
        words = ["gateway", "users", "forget", "ann", "--yes", "--data", str(gateway.data)]
        words += ["--config", str(gateway.config)]
        command = Forked(words, cwd=tmp_path, env=dict(os.environ), err=tmp_path / "command.err")
        assert await asyncio.to_thread(command.wait, 60) == 0, (tmp_path / "command.err").read_text()
        assert not file.exists()
        await gateway.start()
        async with caller.get(f"{gateway.url}/v1/streams/{stream.id}?after=0") as response:
            assert response.status == 404
