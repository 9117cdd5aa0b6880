"""Requests that wait for a place on a full channel, through a whole gateway and before a server with one model."""

import asyncio
from typing import Any

import aiohttp
import pytest

from gateway.domain.request_log import parse_attempts
from gateway.routing.channel_queue import ChannelQueue
from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.fault_scene import PRICE, UNHURRIED, WAIT_LIMIT_S, Heard, call, check_error, site
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.one_model_server import OneModelServer
from tests.support.scripted_upstream import COMPLETION, RST, STALL, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

MODELS = ["A", "B", "C"]
QUEUE: dict[str, Any] = {"length": 50, "wait_s": 60}


def queued_channel(up: ScriptedUpstream, name: str = "desk", places: int = 1, **queue: Any) -> dict[str, Any]:
    return channel(
        up.base_url, name, models=["m", *MODELS], max_concurrency=places, queue={**QUEUE, **queue}, **UNHURRIED
    )


def find_queue(gateway: RunningGateway, name: str = "desk") -> ChannelQueue:
    queue = gateway.app[SERVICES].routing.load_balancer.channels[name].queue
    assert isinstance(queue, ChannelQueue)
    return queue


async def until_queued(gateway: RunningGateway, count: int, name: str = "desk") -> None:
    async with asyncio.timeout(WAIT_LIMIT_S):
        while len(find_queue(gateway, name)) != count:  # noqa: ASYNC110 - a queue has no event
            await asyncio.sleep(0.002)


async def until_received(up: ScriptedUpstream, count: int) -> None:
    async with asyncio.timeout(WAIT_LIMIT_S):
        while sum(received.method == "POST" for received in up.received) < count:  # noqa: ASYNC110 - a provider of a script has no event
            await asyncio.sleep(0.002)


async def start_calls(
    gateway: RunningGateway, up: ScriptedUpstream, models: list[str], *, stream: bool = False, name: str = "desk"
) -> list["asyncio.Task[Heard]"]:
    """Send requests one after another: the first is with the provider, the others wait in this order."""
    tasks = []
    for number, model in enumerate(models):
        tasks.append(asyncio.create_task(call(gateway, stream=stream, model=model)))
        await (until_queued(gateway, number, name) if number else until_received(up, 1))
    return tasks


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_channel_answers_those_who_waited(standing_with: StartGateway, stream: bool) -> None:
    server = OneModelServer()
    async with server.serve(stream=stream) as up:
        gateway = await standing_with(site(queued_channel(up)))
        tasks = await start_calls(gateway, up, ["m"] * 5, stream=stream)
        server.open_gate.set()
        answers = await asyncio.gather(*tasks)
        assert [heard.status for heard in answers] == [200] * 5
        assert server.most_running == 1
        assert ["x-gateway-queue-ms" in heard.headers for heard in answers] == [False, *[True] * 4]
        rows = await gateway.rows(5)
        assert all(row.outcome == "completed" for row in rows)
        waits_ms = [int(heard.headers.get("x-gateway-queue-ms", "0")) for heard in answers]
        assert sorted(row.queued_ms for row in rows) == sorted(waits_ms)
        await gateway.check_books()


async def test_without_a_queue_a_full_channel_is_skipped(standing_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await standing_with(site(channel(up.base_url, max_concurrency=1, **UNHURRIED)))
        task = asyncio.create_task(call(gateway, stream=False))
        await until_received(up, 1)
        check_error(await call(gateway, stream=False), "no_available_channel")
        server.open_gate.set()
        assert (await task).status == 200


async def test_another_free_channel_goes_before_a_wait(standing_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up, ScriptedUpstream([answer(COMPLETION)]) as other:
        gateway = await standing_with(site(queued_channel(up), channel(other.base_url, "other", priority=-1)))
        task = asyncio.create_task(call(gateway, stream=False))
        await until_received(up, 1)
        assert (await call(gateway, stream=False)).status == 200
        assert len(other.received) == 1
        server.open_gate.set()
        assert (await task).status == 200


async def test_one_model_at_a_time_gives_three_times_the_throughput_of_the_order_of_arrival(
    standing_with: StartGateway,
) -> None:
    """Twelve clients, three models, a load of 5 s: both orders, by the time that the server would have taken."""
    servers = {"arrival": OneModelServer(), "grouped": OneModelServer()}
    async with servers["arrival"].serve() as first, servers["grouped"].serve() as second:
        desks = [
            queued_channel(first, "arrival"),
            {**queued_channel(second, "grouped", one_model=True), "models": [f"{model}2" for model in MODELS]},
        ]
        gateway = await standing_with(site(*desks))
        for (name, server), up, suffix in zip(servers.items(), (first, second), ("", "2"), strict=True):
            models = [model + suffix for model in MODELS * 4]
            tasks = await start_calls(gateway, up, models, name=name)
            server.open_gate.set()
            assert {heard.status for heard in await asyncio.gather(*tasks)} == {200}
    assert [model[0] for model in servers["grouped"].models] == [*"AAAABBBBCCCC"]
    assert servers["arrival"].models == MODELS * 4
    assert (servers["arrival"].busy_s, servers["grouped"].busy_s) == (63.0, 18.0)  # 3.5 times the throughput


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_the_queue_is_gone_at_once_and_nothing_stays_reserved(
    standing_with: StartGateway, stream: bool
) -> None:
    server = OneModelServer()
    async with server.serve(stream=stream) as up:
        gateway = await standing_with(site(queued_channel(up)))
        first, leaving, last = await start_calls(gateway, up, ["m"] * 3, stream=stream)
        leaving.cancel()
        await until_queued(gateway, 1)
        assert len(up.received) == 1
        server.open_gate.set()
        assert [(await task).status for task in (first, last)] == [200, 200]
        rows = await gateway.rows(3)
        left = [row for row in rows if row.outcome == "client_closed"]
        assert [(row.cost_nanos, row.attempts) for row in left] == [(0, 0)]
        await gateway.check_books()


async def test_the_metrics_have_the_length_of_each_queue(standing_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await standing_with(site(queued_channel(up), channel(up.base_url, "other", models=["x"])))
        tasks = await start_calls(gateway, up, ["m"] * 3)
        async with gateway.client.get(
            gateway.url + "/metrics", headers={"Authorization": f"Bearer {gateway.admin_token}"}
        ) as page:
            lines = [line for line in (await page.text()).splitlines() if line.startswith("gateway_channel_queued{")]
        assert lines == ['gateway_channel_queued{channel="desk"} 2.0']
        server.open_gate.set()
        assert {(await task).status for task in tasks} == {200}


async def test_explain_tells_the_places_who_waits_the_expected_wait_and_the_loaded_model(
    standing_with: StartGateway,
) -> None:
    """An answer is expected to take ten seconds as long as the channel has given none."""
    server = OneModelServer()
    steps = [{"models": ["A"], "wait_s": 20}, {"models": ["big"], "on": ["queue"]}]
    async with server.serve() as up:
        desk, cloud = queued_channel(up, one_model=True, length=3), channel(up.base_url, "cloud", models=["big"])
        gateway = await standing_with(site(desk, cloud, route=[{"name": "r", "step": steps}]))

        async def explain(model: str) -> dict[str, Any]:
            _, explained = await ask_office(gateway, "GET", f"/explain?model={model}")
            return dict(explained)

        async def look() -> tuple[Any, ...]:
            explained, route = await explain("A"), await explain("r")
            row = explained["channels"][0]
            assert row["queue"]["places"] == 1
            verdicts = [(step["verdict"], step["reason"]) for step in route["steps"]]
            return (*(row["queue"][name] for name in ("waiting", "expected_wait_s", "loaded_model")), verdicts)

        taken = [("first", None), ("next", None)]
        assert await look() == (0, 0.0, None, taken)
        tasks = await start_calls(gateway, up, ["A"])
        assert await look() == (0, 10.0, "A", taken)
        assert (await explain("A"))["served"]
        tasks += [asyncio.create_task(call(gateway, stream=False, model="A")) for _ in range(2)]
        await until_queued(gateway, 2)
        left = [("skipped", "the expected wait of 30 s is above 20 s"), ("first", None)]
        assert await look() == (2, 30.0, "A", left)
        tasks.append(asyncio.create_task(call(gateway, stream=False, model="A")))
        await until_queued(gateway, 3)
        full = await explain("A")
        assert (full["served"], full["channels"][0]["reason"]) == (
            False,
            "at its maximum number of concurrent requests",
        )
        server.open_gate.set()
        assert {(await task).status for task in tasks} == {200}


async def test_a_full_queue_refuses_with_the_expected_wait(standing_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await standing_with(site(queued_channel(up, length=2)))
        tasks = await start_calls(gateway, up, ["m"] * 3)
        heard = await call(gateway, stream=False)
        check_error(heard, "no_available_channel")
        assert int(heard.headers["Retry-After"]) >= 30  # three answers, of ten seconds each as far as is known
        server.open_gate.set()
        assert {(await task).status for task in tasks} == {200}


async def test_a_wait_ends_with_an_error_after_the_longest_wait(standing_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await standing_with(site(queued_channel(up, wait_s=0.05)))
        task = asyncio.create_task(call(gateway, stream=False))
        await until_received(up, 1)
        check_error(await call(gateway, stream=False), "no_available_channel")
        assert len(find_queue(gateway)) == 0
        server.open_gate.set()
        assert (await task).status == 200
        await gateway.check_books()


async def test_the_servers_death_sends_those_who_wait_away(standing_with: StartGateway) -> None:
    """A connection that breaks trips the channel: nobody waits for it any more, and nothing stays reserved."""
    dies = asyncio.Event()

    async def wait_for_death(_: object) -> None:
        await dies.wait()

    async with ScriptedUpstream([wait_for_death, RST]) as up:
        gateway = await standing_with(site(queued_channel(up), routing={"trip_failures": 1}))
        tasks = await start_calls(gateway, up, ["m"] * 4)
        dies.set()
        answers = [await asyncio.wait_for(task, WAIT_LIMIT_S) for task in tasks]
        assert all(heard.status in {502, 503} for heard in answers)
        assert len(find_queue(gateway)) == 0
        await gateway.check_books()


async def open_editable(gateway_with: StartGateway, *channels: dict[str, Any]) -> RunningGateway:
    """Start a gateway, and add channels that can be changed while it runs."""
    gateway = await gateway_with(site(channel("http://127.0.0.1:9/v1", "nobody", models=["none"])))
    for table in channels:
        status, added = await ask_office(gateway, "POST", "/channels?check=none", table)
        assert status in {200, 201}, added
    return gateway


async def test_those_who_wait_at_a_disabled_channel_are_refused(gateway_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await open_editable(gateway_with, queued_channel(up))
        first, waiting = await start_calls(gateway, up, ["m"] * 2)
        await ask_office(gateway, "PATCH", "/channels/desk", {"status": "disabled"})
        check_error(await asyncio.wait_for(waiting, WAIT_LIMIT_S), "no_available_channel")
        server.open_gate.set()
        assert (await first).status == 200
        await gateway.check_books()


async def test_an_edited_channel_gives_its_new_places_at_once(gateway_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await open_editable(gateway_with, queued_channel(up))
        first, waiting = await start_calls(gateway, up, ["m"] * 2)
        await ask_office(gateway, "PATCH", "/channels/desk", {"max_concurrency": 2})
        await until_received(up, 2)
        server.open_gate.set()
        assert {(await first).status, (await waiting).status} == {200}
        await gateway.check_books()


async def test_those_who_wait_at_a_removed_channel_are_refused(gateway_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up:
        gateway = await open_editable(gateway_with, queued_channel(up))
        first, waiting = await start_calls(gateway, up, ["m"] * 2)
        await ask_office(gateway, "DELETE", "/channels/desk")
        check_error(await asyncio.wait_for(waiting, WAIT_LIMIT_S), "no_available_channel")
        server.open_gate.set()
        assert (await first).status == 200
        await gateway.check_books()


async def test_a_request_that_waits_goes_to_another_channel_that_has_become_free(standing_with: StartGateway) -> None:
    """The other channel has no queue, and was full when the request came."""
    desk, cloud = OneModelServer(), OneModelServer()
    async with desk.serve() as up, cloud.serve() as other:
        plain = channel(other.base_url, "other", priority=-1, max_concurrency=1, models=["m"], **UNHURRIED)
        gateway = await standing_with(site(queued_channel(up), plain))
        first = asyncio.create_task(call(gateway, stream=False))
        await until_received(up, 1)
        second = asyncio.create_task(call(gateway, stream=False))
        await until_received(other, 1)
        third = asyncio.create_task(call(gateway, stream=False))
        await until_queued(gateway, 1)
        cloud.open_gate.set()
        assert (await second).status == 200
        assert (await asyncio.wait_for(third, WAIT_LIMIT_S)).status == 200
        assert desk.models == ["m"]
        desk.open_gate.set()
        assert (await first).status == 200


async def test_a_failed_attempt_waits_for_the_next_channel(standing_with: StartGateway) -> None:
    server = OneModelServer()
    async with server.serve() as up, ScriptedUpstream([answer({}, 500)]) as broken:
        first = queued_channel(up)
        gateway = await standing_with(site(first, channel(broken.base_url, "broken", priority=1, models=["m"])))
        held = asyncio.create_task(call(gateway, stream=False, model="A"))
        await until_received(up, 1)
        task = asyncio.create_task(call(gateway, stream=False))
        await until_queued(gateway, 1)
        server.open_gate.set()
        heard = await task
        assert (heard.status, heard.headers["x-gateway-attempts"]) == (200, "2")
        assert (await held).status == 200


@pytest.mark.parametrize("free", [True, False])
async def test_a_route_goes_on_once_its_step_was_waited_for(standing_with: StartGateway, free: bool) -> None:
    """If the next step is full, too, the request ends: no step is waited for twice."""
    desk, cloud = OneModelServer(), OneModelServer()
    async with desk.serve() as up, cloud.serve() as other:
        route = {"name": "r", "step": [{"models": ["A"]}, {"models": ["big"]}]}
        full = channel(other.base_url, "cloud", models=["big"], max_concurrency=1, **UNHURRIED)
        gateway = await standing_with(site(queued_channel(up, wait_s=0.05), full, route=[route]))
        tasks = [asyncio.create_task(call(gateway, stream=False, model="A"))]
        await until_received(up, 1)
        if free:
            cloud.open_gate.set()
        else:
            tasks.append(asyncio.create_task(call(gateway, stream=False, model="big")))
            await until_received(other, 1)
        heard = await asyncio.wait_for(call(gateway, stream=False, model="r"), WAIT_LIMIT_S)
        assert heard.status == (200 if free else 503)
        assert not free or heard.headers["x-gateway-step"] == "2"
        desk.open_gate.set()
        cloud.open_gate.set()
        assert {(await task).status for task in tasks} == {200}
        await gateway.check_books()


@pytest.mark.parametrize(("wait_s", "step"), [(0, "2"), (5, "2"), (600, "1"), (None, "1")])
async def test_a_step_overflows_if_the_expected_wait_is_above_its_own(
    standing_with: StartGateway, wait_s: float | None, step: str
) -> None:
    """An answer is expected to take ten seconds as long as the channel has given none."""
    desk = OneModelServer()
    async with desk.serve() as up, ScriptedUpstream([answer(COMPLETION)]) as cloud:
        first = {"models": ["A"], **({} if wait_s is None else {"wait_s": wait_s})}
        route = {"name": "r", "step": [first, {"models": ["big"], "on": ["queue"]}]}
        paid = channel(cloud.base_url, "cloud", models=["big"])
        gateway = await standing_with(site(queued_channel(up), paid, route=[route]))
        tasks = [asyncio.create_task(call(gateway, stream=False, model="A"))]
        await until_received(up, 1)
        tasks.append(asyncio.create_task(call(gateway, stream=False, model="r")))
        if step == "1":
            await until_queued(gateway, 1)
        else:
            heard = await tasks[1]
            assert (heard.status, heard.headers["x-gateway-step"]) == (200, "2")
        desk.open_gate.set()
        answers = await asyncio.gather(*tasks)
        assert [heard.status for heard in answers] == [200, 200]
        assert answers[1].headers["x-gateway-step"] == step
        assert len(cloud.received) == (step == "2")
        row = next(row for row in await gateway.rows(2) if row.route == "r")
        assert [each.cause for each in parse_attempts(row.tried)][:1] == (["queue"] if step == "2" else [""])
        await gateway.check_books()


async def test_accounts_take_turns(standing_with: StartGateway) -> None:
    server = OneModelServer()
    other = "sk-test-key-of-somebody-else"
    async with server.serve() as up:
        gateway = await standing_with(
            site(
                queued_channel(up),
                account=[{"name": "acme"}, {"name": "other"}],
                key=[
                    {"name": "test", "account": "acme", "secret": KEY},
                    {"name": "other", "account": "other", "secret": other},
                ],
                price=[{**PRICE, "model": model} for model in MODELS],
            )
        )
        tasks = await start_calls(gateway, up, [*"AAA"])
        headers = {"Authorization": f"Bearer {other}"}
        body = {"model": "B", "messages": [{"role": "user", "content": "hi"}]}
        late = asyncio.create_task(ask(gateway.client, gateway.url + "/v1/chat/completions", body, headers))
        await until_queued(gateway, 3)
        server.open_gate.set()
        assert await late == 200
        await asyncio.gather(*tasks)
        assert server.models == [*"AABA"]


async def ask(client: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]) -> int:
    async with client.post(url, json=body, headers=headers) as response:
        await response.read()
        return response.status


async def test_a_shutdown_ends_the_waits(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await gateway_with(site(queued_channel(up), server={"drain_timeout_s": 0.2}))
        tasks = await start_calls(gateway, up, ["m"] * 3)
        await asyncio.wait_for(gateway.stop(), WAIT_LIMIT_S)
        answers = await asyncio.gather(*tasks)
        assert [heard.status for heard in answers] == [503] * 3
