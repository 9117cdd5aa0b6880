"""Lines of a batch in the queue of a channel: behind interactive requests, and not for ever."""

import asyncio
from typing import Any

from gateway.server.context import SERVICES
from tests.support.batch_calls import await_end, make_line, start
from tests.support.fault_scene import UNHURRIED, WAIT_LIMIT_S, call, site
from tests.support.gateway import RunningGateway, channel
from tests.support.one_model_server import OneModelServer
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

LINES = [
    make_line(number, model="line", messages=[{"role": "user", "content": "hi"}], max_tokens=9) for number in (1, 2)
]


def desk(up: ScriptedUpstream, **queue: Any) -> dict[str, Any]:
    """A gateway whose only channel has one place; the models tell lines and callers apart."""
    table = channel(up.base_url, "desk", models=["line", "caller"], max_concurrency=1, queue=queue, **UNHURRIED)
    prices = [{"model": model, "input_usd_per_million": 1, "output_usd_per_million": 1} for model in table["models"]]
    return {**site(table), "price": prices}


async def until_queued(gateway: RunningGateway, count: int) -> None:
    queue = gateway.app[SERVICES].routing.load_balancer.channels["desk"].queue
    assert queue is not None
    async with asyncio.timeout(WAIT_LIMIT_S):
        while len(queue) != count:  # noqa: ASYNC110 - a queue has no event
            await asyncio.sleep(0.002)


async def test_lines_wait_behind_interactive_requests_that_came_later(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await gateway_with(desk(up, wait_s=600))
        client = sdk(gateway)
        tasks = [asyncio.create_task(call(gateway, stream=False, model="caller"))]
        async with asyncio.timeout(WAIT_LIMIT_S):
            while not server.models:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.002)
        batch = await start(client, LINES)
        await until_queued(gateway, 2)
        for number in range(3):
            tasks.append(asyncio.create_task(call(gateway, stream=False, model="caller")))
            await until_queued(gateway, 3 + number)
        server.open_gate.set()
        assert [(await task).status for task in tasks] == [200] * 4
        ended = await await_end(client, batch)
        assert ended.request_counts is not None
        assert ended.request_counts.completed == 2
        assert server.models == [*["caller"] * 4, *["line"] * 2]
        rows = await gateway.rows(6)
        assert all(row.queued_ms > 0 for row in rows if row.batch_id)
        await gateway.check_books()


async def test_lines_are_answered_although_interactive_requests_never_end(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    """Three callers ask again at once, so that some of them always wait before the only place."""
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await gateway_with(desk(up, wait_s=0.5))
        client, is_over = sdk(gateway), asyncio.Event()

        async def keep_asking() -> None:
            while not is_over.is_set():
                assert (await call(gateway, stream=False, model="caller")).status in {200, 503}

        callers = [asyncio.create_task(keep_asking()) for _ in range(3)]
        await until_queued(gateway, 2)  # while the gate is closed, they stay there
        server.open_gate.set()
        try:
            ended = await await_end(client, await start(client, LINES))
        finally:
            is_over.set()
            await asyncio.gather(*callers)
        assert ended.request_counts is not None
        assert ended.request_counts.completed == 2
        await gateway.check_books()
