"""What a supervisor asks, and what it is told while the gateway ends."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from gateway.errors import StoreUnavailable
from gateway.server.context import SERVICES, StorageServices
from gateway.server.handlers.health import CHECK
from tests.support.gateway import CHAT, HELLO, channel, channels
from tests.support.gateway_process import eventually
from tests.support.raw_client import connect, hello, post, read_answer
from tests.support.scripted_upstream import (
    COMPLETION,
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    ScriptedUpstream,
    Step,
    answer,
    chat_events,
    chunk,
)
from tests.support.started_gateways import StartGateway


async def test_a_gateway_that_serves_a_model_is_alive_and_ready(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{gateway.url}/healthz") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
        async with session.get(f"{gateway.url}/readyz") as response:
            assert (response.status, await response.json()) == (200, {"status": "ready"})


async def test_a_gateway_without_any_model_is_alive_but_not_ready(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(b"down", 503)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, models=[], sync=True)]})
        async with gateway.client.get(f"{gateway.url}/readyz") as response:
            assert response.status == 503
            assert (await response.json())["problems"] == ["no channel offers a model"]
        async with gateway.client.get(f"{gateway.url}/healthz") as response:
            assert response.status == 200


async def test_a_gateway_is_ready_for_models_that_cannot_be_listed(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, models=["m*"])]})
        async with gateway.client.get(f"{gateway.url}/readyz") as response:
            assert (response.status, await response.json()) == (200, {"status": "ready"})
        async with gateway.post() as response:
            assert response.status == 200


async def test_a_gateway_that_cannot_record_makes_no_calls_and_says_so_to_the_supervisor(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        write_queue = gateway.app[SERVICES].storage.write_queue
        write_queue.failing = True
        for _ in range(3):
            async with gateway.post() as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"], response.headers["Retry-After"]) == (503, "overloaded", "5")
        async with gateway.client.get(f"{gateway.url}/readyz") as response:
            assert response.status == 503
            (problem,) = (await response.json())["problems"]
            assert problem.startswith("The gateway cannot record requests at the moment")
        async with gateway.client.get(f"{gateway.url}/healthz") as response:
            assert response.status == 200
        assert not up.received
        write_queue.failing = False
        async with gateway.post() as response:
            assert response.status == 200
        async with gateway.client.get(f"{gateway.url}/readyz") as response:
            assert response.status == 200
        await gateway.rows(1)


async def test_a_draining_gateway_takes_no_new_work_and_finishes_what_runs(gateway_with: StartGateway) -> None:
    go_on = asyncio.Event()

    async def wait(_received: object) -> None:
        await go_on.wait()

    first, *rest = chat_events("a", "b")
    script: list[Step] = [SSE_HEAD, chunk(first), wait, *map(chunk, rest), LAST_CHUNK]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with(channels([up]))
        async with gateway.post({**HELLO, "stream": True}) as response:
            assert await response.content.readany() == first
            stopping = asyncio.create_task(gateway.stop())
            await asyncio.sleep(0.05)
            assert not stopping.done()
            with pytest.raises(ConnectionRefusedError):
                await connect(gateway.url)
            go_on.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await stopping


async def test_a_closed_gate_refuses_calls_with_a_503_and_says_so_to_the_supervisor(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        gateway.app[SERVICES].drain.open = False
        reader, writer = await connect(gateway.url)
        writer.write(post(hello(), path=CHAT))
        found = await read_answer(reader)
        assert (found.status, found.error["code"], found.headers["retry-after"]) == (503, "overloaded", "5")
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
        ready = await read_answer(reader)
        assert ready.status == 503
        assert b"shutting down" in ready.body
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read_answer(reader)).status == 200
        writer.close()
        assert not up.received


async def test_a_supervisor_is_answered_in_time_whatever_the_store_does(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And however often it asks: one look at the store at a time."""
    monkeypatch.setattr("gateway.server.handlers.health.STORE_TIMEOUT_S", 0.05)
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        asked, going_on = 0, asyncio.Event()

        async def hang() -> None:
            nonlocal asked
            asked += 1
            await going_on.wait()

        monkeypatch.setattr(gateway.app[SERVICES].storage.database, "check_writable", hang)
        for _ in range(3):
            async with gateway.client.get(f"{gateway.url}/readyz") as response:
                assert response.status == 503
                assert (await response.json())["problems"] == ["The store does not answer"]
        assert asked == 1
        going_on.set()
        async with asyncio.timeout(5):
            while True:
                async with gateway.client.get(f"{gateway.url}/readyz") as response:
                    if response.status == 200:
                        break


async def fail_to_write() -> None:
    raise StoreUnavailable("The gateway's store cannot be written to")


@pytest.mark.parametrize("check", [fail_to_write, asyncio.Event().wait])
async def test_a_node_stays_ready_while_its_database_is_away_for_a_moment(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch, check: Callable[[], Awaitable[None]]
) -> None:
    """Or no node of a cluster were ready whenever the database restarts."""
    health = "gateway.server.handlers.health"
    monkeypatch.setattr(f"{health}.STORE_TIMEOUT_S", 0.05)
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        storage = gateway.app[SERVICES].storage

        async def probe() -> int:
            async with gateway.client.get(f"{gateway.url}/readyz") as response:
                return response.status

        with monkeypatch.context() as away:
            away.setattr(storage.database, "check_writable", check)
            assert await probe() == 503
            monkeypatch.setattr(StorageServices, "node", property(lambda _: object()))
            monkeypatch.setattr(f"{health}.NODE_TIMEOUT_S", 3600.0)
            assert [await probe() for _ in range(3)] == [200] * 3
            away.setattr(f"{health}.NODE_TIMEOUT_S", 0.0)
            assert await probe() == 503
            away.setattr(f"{health}.NODE_TIMEOUT_S", 3600.0)
            storage.write_queue.failing = True
            assert await probe() == 503, "what the node itself refuses"
            storage.write_queue.failing = False


async def test_each_absence_of_the_database_counts_from_its_beginning(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        check = gateway.app[CHECK]
        with monkeypatch.context() as away:
            away.setattr(gateway.app[SERVICES].storage.database, "check_writable", fail_to_write)
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await check.run(gateway.app)
                assert (failing_s := check.failing_s) > 0
            assert check.failing_s > failing_s
        await check.run(gateway.app)
        assert check.failing_s == 0


async def test_an_absence_of_the_database_that_ends_between_two_probes_does_not_count_for_the_next(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.handlers.health.RECHECK_S", 0.01)
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        check, failures = gateway.app[CHECK], iter(range(3))

        async def has_ended() -> bool:
            return bool(check.failing_s == 0)

        async def fail_three_times() -> None:
            for _ in failures:
                raise StoreUnavailable("The gateway's store cannot be written to")

        monkeypatch.setattr(gateway.app[SERVICES].storage.database, "check_writable", fail_three_times)
        monkeypatch.setattr(StorageServices, "node", property(lambda _: object()))
        await check.run(gateway.app)
        assert check.failing_s > 0
        await eventually(has_ended, 60.0)
        assert next(failures, None) is None


async def test_a_gateway_ends_though_a_look_at_its_store_hangs(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.handlers.health.STORE_TIMEOUT_S", 0.01)
    gateway = await gateway_with({})
    monkeypatch.setattr(gateway.app[SERVICES].storage.database, "check_writable", asyncio.Event().wait)
    async with gateway.client.get(f"{gateway.url}/readyz") as response:
        assert response.status == 503


async def test_whoever_ends_the_gateway_twice_does_not_wait_for_what_runs(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([SSE_HEAD, chunk(chat_events("a")[0]), STALL]) as up:
        gateway = await gateway_with({**channels([up]), "server": {"drain_timeout_s": 3600}})
        async with gateway.post({**HELLO, "stream": True}) as response:
            await response.content.readany()
            stopping = asyncio.create_task(gateway.stop())
            await asyncio.sleep(0.1)
            assert not stopping.done()
            gateway.app[SERVICES].drain.hurried = True
            assert b'"overloaded"' in await response.read()
        async with asyncio.timeout(10):
            await stopping
