"""Requests for a route, through the whole gateway: who answers, what it costs, and what the row says."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.domain.request_log import FailedAttempt, parse_attempts
from gateway.server.context import SERVICES
from tests.support.fault_scene import UNHURRIED, call, check_broken_stream, hear
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    RST,
    SSE_HEAD,
    Received,
    Script,
    ScriptedUpstream,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)
from tests.support.started_gateways import StartGateway

BUSY = answer({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, 429)
NO_CREDIT = answer({"error": {"message": "pay first"}}, 402)
PRICES = [
    {"model": "dear", "input_usd_per_million": 100, "output_usd_per_million": 100},
    {"model": "usual", "input_usd_per_million": 10, "output_usd_per_million": 10},
    {"model": "cheap", "input_usd_per_million": 1, "output_usd_per_million": 1},
]
"""100,000, 10,000 and 1,000 nano-USD a token; ``COMPLETION`` has twelve tokens."""
MODELS = ("dear", "usual", "cheap")
CHAIN = {"name": "fast", "step": [{"models": [model]} for model in MODELS]}


def site(ups: dict[str, ScriptedUpstream], *routes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A channel for each model, by its name, with prices and the route ``fast``."""
    lines = [channel(up.base_url, f"of-{model}", models=[model], **UNHURRIED) for model, up in ups.items()]
    return {"channel": lines, "price": PRICES, "route": list(routes or (CHAIN,)), **more}


async def ask(gateway: RunningGateway, **body: Any) -> Any:
    return await call(gateway, model="fast", max_tokens=8, **{"stream": False, **body})


async def add_key(gateway: RunningGateway, quota_usd: float) -> tuple[int, dict[str, str]]:
    """Add a key with a limit; return its id, and the header to send."""
    fields = {"name": "poor", "account": "acme", "quota_usd": quota_usd, "quota_period": "lifetime"}
    key = await gateway.app[SERVICES].auth.accounts.add_key(fields)
    return key["id"], {"Authorization": f"Bearer {key['secret']}"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chain_goes_on_until_one_answers_at_its_own_price(standing_with: StartGateway, stream: bool) -> None:
    good: Script = chat_script("hello") if stream else [answer(COMPLETION)]
    async with (
        ScriptedUpstream([BUSY]) as dear,
        ScriptedUpstream([NO_CREDIT]) as usual,
        ScriptedUpstream(good) as cheap,
    ):
        gateway = await standing_with(site({"dear": dear, "usual": usual, "cheap": cheap}))
        heard = await ask(gateway, stream=stream)
        assert heard.status == 200
        assert b"hello" in heard.body
        assert (heard.headers["x-gateway-route"], heard.headers["x-gateway-step"]) == ("fast", "3")
        assert heard.headers["x-gateway-attempts"] == "3"
        assert [up.received[0].json["model"] for up in (dear, usual, cheap)] == list(MODELS)
        (row,) = await gateway.rows(1)
        assert (row.model, row.route, row.served_model, row.channel) == ("fast", "fast", "cheap", "of-cheap")
        assert row.cost_nanos == 12 * 1_000
        tried = [(one.step, one.model, one.channel, one.cause, one.status) for one in parse_attempts(row.tried)]
        assert tried == [
            (1, "dear", "of-dear", "rate_limited", 429),
            (2, "usual", "of-usual", "credit", 502),
            (3, "cheap", "of-cheap", "", 0),
        ]


async def test_the_first_cause_that_says_something_is_the_answer_if_none_can(standing_with: StartGateway) -> None:
    wrong = answer({"error": {"message": "no such field"}}, 400)
    async with ScriptedUpstream([BUSY]) as dear, ScriptedUpstream([wrong]) as usual:
        gateway = await standing_with(site({"dear": dear, "usual": usual}))
        heard = await ask(gateway)
        assert heard.status == 429
        assert b"slow down" in heard.body
        (row,) = await gateway.rows(1)
        assert [(one.step, one.cause) for one in parse_attempts(row.tried)] == [(1, "rate_limited"), (2, "invalid")]
        assert row.cost_nanos == 0


async def test_no_step_follows_the_first_event(standing_with: StartGateway) -> None:
    broken: Script = [SSE_HEAD, chunk(event(delta("one"))), 0.05, RST]
    async with ScriptedUpstream(broken) as dear, ScriptedUpstream(chat_script("two")) as usual:
        gateway = await standing_with(site({"dear": dear, "usual": usual}))
        heard = await ask(gateway, stream=True)
        assert b"one" in b"".join(check_broken_stream(heard, "upstream_error"))
        assert not usual.received
        (row,) = await gateway.rows(1)
        assert (row.route, row.attempts, row.served_model) == ("fast", 1, "dear")


async def test_a_key_that_cannot_pay_the_first_step_begins_with_one_that_it_can(
    gateway_with: Callable[..., Awaitable[RunningGateway]],
) -> None:
    """A prompt of 8 tokens and 8 of an answer: 1.6 milli-USD at the first step, 0.016 at the last."""
    async with ScriptedUpstream([answer(COMPLETION)]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        gateway = await gateway_with(site({"dear": dear, "cheap": cheap}))
        _, headers = await add_key(gateway, 0.0009)
        body = {**HELLO, "model": "fast", "max_tokens": 8}
        async with gateway.post(body, headers=headers) as response:
            heard = await hear(response)
        assert (heard.status, heard.headers["x-gateway-step"]) == (200, "3")
        assert not dear.received
        async with gateway.post({**body, "model": "dear"}, headers=headers) as response:
            assert response.status == 403
        rows = await gateway.rows(2)
        first = parse_attempts(rows[0].tried)
        assert [(one.step, one.cause) for one in first] == [(1, "budget"), (2, "unavailable"), (3, "")]
        assert rows[0].cost_nanos == 12_000


async def test_a_cheaper_step_holds_less(gateway_with: Callable[..., Awaitable[RunningGateway]]) -> None:
    seen: list[int] = []
    running: list[RunningGateway] = []

    async def look(_received: Received) -> None:
        balances = running[0].app[SERVICES].billing.accounting._balances
        seen.append(max(reservation.nanos for reservation in balances.reservations))

    async with (
        ScriptedUpstream([look, BUSY]) as dear,
        ScriptedUpstream([look, BUSY]) as usual,
        ScriptedUpstream([look, answer(COMPLETION)]) as cheap,
    ):
        gateway = await gateway_with(site({"dear": dear, "usual": usual, "cheap": cheap}))
        running.append(gateway)
        assert (await ask(gateway)).status == 200
    assert seen[0] == 10 * seen[1] == 100 * seen[2] > 0


async def test_a_running_request_ends_on_the_steps_it_began_with(
    gateway_with: Callable[..., Awaitable[RunningGateway]],
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_received: Received) -> None:
        entered.set()
        await go_on.wait()

    async with ScriptedUpstream([wait, BUSY]) as dear, ScriptedUpstream([answer(COMPLETION)]) as cheap:
        gateway = await gateway_with(site({"dear": dear, "cheap": cheap}))
        asking = asyncio.ensure_future(ask(gateway))
        await entered.wait()
        router = gateway.app[SERVICES].routing.router
        router.routes = {}
        assert (await ask(gateway)).status == 404
        go_on.set()
        heard = await asking
        assert (heard.status, heard.headers["x-gateway-step"]) == (200, "3")


async def test_routes_are_listed_as_models(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site({"cheap": up}))
        async with gateway.client.get(f"{gateway.url}/v1/models/fast") as response:
            assert (await response.json())["owned_by"] == "gateway"
        async with gateway.client.get(f"{gateway.url}/v1/models") as response:
            assert {"fast", "cheap"} <= {model["id"] for model in (await response.json())["data"]}


async def test_exactly_as_many_answers_as_the_limit_pays_for_over_three_prices(
    gateway_with: Callable[..., Awaitable[RunningGateway]],
) -> None:
    """400 callers at once, each step busy for every second one: no limit is exceeded, every charge is right."""
    script: list[Script] = [[BUSY] if number % 2 else [answer(COMPLETION)] for number in range(400)]
    async with (
        ScriptedUpstream(*script) as dear,
        ScriptedUpstream(*script) as usual,
        ScriptedUpstream(*script) as cheap,
    ):
        gateway = await gateway_with(site({"dear": dear, "usual": usual, "cheap": cheap}))
        key, headers = await add_key(gateway, 0.05)

        async def ask_one() -> int:
            async with gateway.post({**HELLO, "model": "fast", "max_tokens": 8}, headers=headers) as response:
                return int(response.status)

        statuses = await asyncio.gather(*(ask_one() for _ in range(400)))
        rows = [row for row in await gateway.rows(400) if row.key_id == key]
        prices = {"dear": 1_200_000, "usual": 120_000, "cheap": 12_000}
        answered = [row for row in rows if row.status == 200]
        assert len(answered) == statuses.count(200) > 0
        assert all(row.cost_nanos == prices[row.served_model] for row in answered)
        assert sum(row.cost_nanos for row in rows) <= 50_000_000
        assert not any(row.overrun_nanos for row in rows)
        calls = sum(len(up.received) for up in (dear, usual, cheap))
        tried = [one for row in rows for one in parse_attempts(row.tried) if one.channel != "-"]
        assert len(tried) == calls


def test_a_passed_step_has_no_channel() -> None:
    assert parse_attempts("-=budget:0:0:budget:1:dear") == (FailedAttempt("-", "budget", 0, 0, "budget", 1, "dear"),)


async def test_an_answer_tells_whether_its_conversation_stayed(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as one, ScriptedUpstream([answer(COMPLETION)]) as two:
        ups = {"one": one, "two": two}
        lines = [channel(up.base_url, name, models=["cheap"], **UNHURRIED) for name, up in ups.items()]
        gateway = await standing_with({"channel": lines, "price": PRICES})
        messages, outcomes = [{"role": "user", "content": "hi"}], []
        for _ in range(5):
            heard = await call(gateway, stream=False, model="cheap", messages=messages)
            outcomes.append(heard.headers["x-gateway-affinity"])
            messages += [{"role": "assistant", "content": "hello"}, {"role": "user", "content": "go on"}]
        assert outcomes == ["new", "kept", "kept", "kept", "kept"]
        assert sorted([len(one.received), len(two.received)]) == [0, 5]


async def test_one_channel_with_one_key_needs_no_affinity(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site({"cheap": up}))
        assert "x-gateway-affinity" not in (await call(gateway, stream=False, model="cheap")).headers
