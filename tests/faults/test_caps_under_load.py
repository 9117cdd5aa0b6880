"""Many callers on one cap at the same moment: it admits what it covers, and not one call more."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import aiohttp
import attrs
import orjson
import pytest

from gateway.billing.balances import Balances
from gateway.domain.balance import Balance, parse_day
from gateway.domain.request_log import RequestRecord
from gateway.server.context import SERVICES
from tests.support.capped_calls import FIRST, RESERVE, stream_until
from tests.support.fault_scene import PRICE, cost_of, site
from tests.support.gateway import CHAT, HELLO, RunningGateway, channel
from tests.support.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    delta,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway
from tests.support.usage_answers import UNBELIEVABLE, answer_of

CALLERS = 200
ADMITTED = 37
CAP = ADMITTED * RESERVE + RESERVE - 1
COST = 5 * 1_000 + 7 * 2_000
"""What one good stream costs."""
KEYS = tuple(f"sk-load-test-number-{number}" for number in range(4))
PATIENT: dict[str, Any] = {
    "connect_timeout_s": 50,
    "first_byte_timeout_s": 50,
    "idle_timeout_s": 50,
    "total_timeout_s": 50,
}
"""Of a provider that stands still until a whole crowd has been served."""

Owner = tuple[str, int]
KEY_1: Owner = ("key", 1)
ACCOUNT: Owner = ("account", 1)


async def until_all(condition: Callable[[], object]) -> None:
    """Return once ``condition`` holds of a crowd, which takes its time on a busy machine."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)


def usd_of(nanos: int) -> float:
    return nanos / 10**9


def keys(**more: Any) -> list[dict[str, Any]]:
    return [{"name": f"k{index}", "account": "acme", "secret": secret, **more} for index, secret in enumerate(KEYS)]


def bank_of(gateway: RunningGateway) -> Balances:
    return gateway.app[SERVICES].billing.quota._balances  # type: ignore[no-any-return]


def balance_of(gateway: RunningGateway, owner: Owner) -> Balance:
    kind, number = owner
    return bank_of(gateway).find_balance(kind, number)  # type: ignore[arg-type]


@attrs.define
class Caller:
    """One caller: how it was answered, and what it heard so far."""

    session: aiohttp.ClientSession
    url: str
    secret: str
    status: int = 0
    headers: Any = None
    heard: bytes = b""

    async def call(self, *, patience: int | None = None) -> None:
        """A stream to its end, or until ``patience`` bytes were heard: then it leaves."""
        headers = {"Authorization": f"Bearer {self.secret}"}
        body = {**HELLO, "stream": True}
        async with self.session.post(self.url + CHAT, json=body, headers=headers) as response:
            self.status, self.headers = response.status, response.headers
            async for piece in response.content.iter_any():
                self.heard += piece
                if patience is not None and len(self.heard) >= patience:
                    response.close()
                    return

    @property
    def error(self) -> dict[str, Any]:
        return orjson.loads(self.heard)["error"]  # type: ignore[no-any-return]


@asynccontextmanager
async def crowd(gateway: RunningGateway, number: int = CALLERS) -> AsyncIterator[list[Caller]]:
    """Callers with a connection each, spread over the keys."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield [Caller(session, gateway.url, KEYS[index % len(KEYS)]) for index in range(number)]


@asynccontextmanager
async def watch(gateway: RunningGateway, owner: Owner, bound: int) -> AsyncIterator[list[int]]:
    """Look at a purse on every turn of the event loop; fails where spent and held were ever above ``bound``.

    The one item of the list is the highest sum that was seen.
    """
    balance = balance_of(gateway, owner)
    seen = [0]

    async def look() -> None:
        while True:
            seen[0] = max(seen[0], balance.lifetime.spent_nanos + balance.held_nanos)
            await asyncio.sleep(0)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert seen[0] <= bound


def check_sums(gateway: RunningGateway, rows: Sequence[RequestRecord]) -> int:
    """Every purse has spent what the rows of its owner say, to the nano, and holds nothing. Returns the sum."""
    total = sum(row.cost_nanos for row in rows)
    assert balance_of(gateway, ACCOUNT).lifetime.spent_nanos == total
    for number in range(1, len(KEYS) + 1):
        mine = balance_of(gateway, ("key", number))
        assert mine.lifetime.spent_nanos == sum(row.cost_nanos for row in rows if row.key_id == number)
        assert mine.held_nanos == 0
    assert balance_of(gateway, ACCOUNT).held_nanos == 0
    return total


def check_refusal(caller: Caller, period: str, whose: str) -> None:
    """The error of its period: a lifetime is a 403 for good, a day or a month a 429 until its end."""
    assert caller.error["code"] == "insufficient_quota"
    assert caller.error["type"] == "new_api_error"
    assert caller.error["message"].startswith(f"The {period} quota of {whose} does not cover this request")
    assert caller.headers["x-should-retry"] == "false"
    if period == "lifetime":
        assert caller.status == 403
        assert "Retry-After" not in caller.headers
    else:
        assert caller.status == 429
        today = parse_day(datetime.now(UTC).timestamp())
        end_s = today.end_s if period == "daily" else today.month_end_s
        left = timedelta(seconds=end_s) - timedelta(seconds=datetime.now(UTC).timestamp())
        assert 0 <= int(caller.headers["Retry-After"]) - left.total_seconds() < 60


LONG = 100_000
LONGEST = {
    "chat": (CHAT, HELLO | {"max_tokens": LONG}),
    "chat, the newer name": (CHAT, HELLO | {"max_tokens": 5, "max_completion_tokens": LONG}),
    "chat, several answers": (CHAT, HELLO | {"max_tokens": LONG // 2, "n": 2}),
    "messages": ("/v1/messages", HELLO | {"max_tokens": LONG}),
    "responses": ("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": LONG}),
    "completions": ("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": LONG // 4, "best_of": 4}),
}


@pytest.mark.parametrize("name", LONGEST)
@pytest.mark.parametrize("capped", ["key", "account"])
async def test_calls_that_allow_long_answers_cannot_each_spend_what_is_left(
    gateway_with: StartGateway, capped: str, name: str
) -> None:
    """Of twenty at once that may each cost the whole cap one is made; the cap is not even passed by half."""
    go, (path, body) = asyncio.Event(), LONGEST[name]
    cap = {"quota_usd": usd_of(LONG * 2_000)}

    async def wait(_received: object) -> None:
        await go.wait()

    usage = {"prompt_tokens": 5, "completion_tokens": LONG, "total_tokens": 5 + LONG}
    reported = {"object": "x", "choices": [{"index": 0, "text": "a", "message": {"role": "assistant", "content": "a"}}]}
    if name == "responses":
        usage = {"input_tokens": 5, "output_tokens": LONG, "total_tokens": 5 + LONG}
        reported = {"object": "response", "status": "completed", "output": []}
    async with ScriptedUpstream([wait, answer({**reported, "usage": usage})]) as up:
        account = {"name": "acme", **(cap if capped == "account" else {})}
        key = {"name": "k", "account": "acme", "secret": KEYS[0], **(cap if capped == "key" else {})}
        gateway = await gateway_with(site(channel(up.base_url, **PATIENT), account=[account], key=[key]))
        headers = {"Authorization": f"Bearer {KEYS[0]}"}

        async def ask() -> int:
            async with gateway.post(body, path, headers=headers) as response:
                await response.read()
                return int(response.status)

        calls = [asyncio.create_task(ask()) for _ in range(20)]
        await until_all(lambda: sum(call.done() for call in calls) == 19 and up.received)
        go.set()
        assert sorted(await asyncio.gather(*calls)) == [200] + [403] * 19
        assert len(up.received) == 1
        (cost,) = [row.cost_nanos for row in await gateway.rows(20) if row.cost_nanos]
        assert cost == 5 * 1_000 + LONG * 2_000
        assert await ask() == 403, "the cap is used up"


async def test_a_call_alone_may_still_allow_more_than_is_left(gateway_with: StartGateway) -> None:
    """What is left can be spent by who names a high limit and does not mean it, as coding agents do."""
    async with ScriptedUpstream([answer_of({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12})]) as up:
        key = {"name": "k", "account": "acme", "secret": KEYS[0], "quota_usd": usd_of(CAP)}
        gateway = await gateway_with(site(channel(up.base_url), account=[{"name": "acme"}], key=[key]))
        headers = {"Authorization": f"Bearer {KEYS[0]}"}
        for _ in range(3):
            async with gateway.post(HELLO | {"max_tokens": LONG}, headers=headers) as response:
                assert response.status == 200
        assert [row.cost_nanos for row in await gateway.rows(3)] == [COST] * 3
        assert balance_of(gateway, KEY_1).held_nanos == 0


@pytest.mark.parametrize(
    ("capped", "period"),
    [
        ("key", "lifetime"),
        ("account", "monthly"),
        ("account, under roomier keys", "lifetime"),
        ("key, under a roomier account", "daily"),
    ],
)
async def test_of_two_hundred_streams_at_once_the_cap_admits_exactly_those_it_covers(
    gateway_with: StartGateway, capped: str, period: str
) -> None:
    go = asyncio.Event()
    cap = {"quota_usd": usd_of(CAP), "quota_period": period}
    roomy = {"quota_usd": 100} if "roomier" in capped else {}
    by_key = capped.startswith("key")
    async with ScriptedUpstream(stream_until(go)) as up:
        account = {"name": "acme", **(roomy if by_key else cap)}
        gateway = await gateway_with(
            site(channel(up.base_url, **PATIENT), account=[account], key=keys(**(cap if by_key else roomy)))
        )
        async with crowd(gateway) as callers, watch(gateway, KEY_1 if by_key else ACCOUNT, CAP) as seen:
            for caller in callers:
                caller.secret = KEYS[0] if by_key else caller.secret
            calls = asyncio.gather(*(caller.call() for caller in callers))
            await until_all(lambda: all(caller.heard for caller in callers))
            await until_all(lambda: sum(caller.status != 200 for caller in callers) == CALLERS - ADMITTED)
            assert sum(caller.heard == FIRST for caller in callers) == ADMITTED
            assert len(up.received) == ADMITTED
            go.set()
            await calls
        refused = [caller for caller in callers if caller.status != 200]
        assert len(refused) == CALLERS - ADMITTED
        for caller in refused:
            check_refusal(caller, period, "this API key" if by_key else "the account")
        assert sum(caller.heard.endswith(DONE) for caller in callers) == ADMITTED
        assert len(up.received) == ADMITTED
        rows = await gateway.rows(CALLERS)
        assert sum(row.outcome == "completed" for row in rows) == ADMITTED
        assert check_sums(gateway, rows) == ADMITTED * COST
        assert seen[0] == ADMITTED * RESERVE
        kept = [row for row in rows if row.outcome == "refused"]
        assert all(row.attempts == row.cost_nanos == row.reserved_nanos == 0 for row in kept)
        assert {row.reserved_nanos for row in rows if row.outcome == "completed"} == {RESERVE}
        assert (await gateway.check_books())["charged_nanos"] == ADMITTED * COST


async def test_what_a_stream_did_not_use_is_there_for_the_next(gateway_with: StartGateway) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        cap = {"quota_usd": usd_of(CAP)}
        gateway = await gateway_with(
            site(channel(up.base_url, **PATIENT), account=[{"name": "acme", **cap}], key=keys())
        )
        async with crowd(gateway, 3 * ADMITTED) as callers, watch(gateway, ACCOUNT, CAP):
            for turn in range(3):
                some = callers[turn * ADMITTED : (turn + 1) * ADMITTED]
                calls = asyncio.gather(*(caller.call() for caller in some))
                await until_all(lambda some=some: all(caller.heard for caller in some))  # type: ignore[misc]
                go.set()
                await calls
                go.clear()
                assert {caller.status for caller in some} == {200}
        rows = await gateway.rows(3 * ADMITTED)
        assert check_sums(gateway, rows) == 3 * ADMITTED * COST


@pytest.mark.parametrize("patience", [1, len(FIRST)])
async def test_what_leavers_had_held_is_there_for_the_next(gateway_with: StartGateway, patience: int) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        cap = {"quota_usd": usd_of(CAP)}
        gateway = await gateway_with(
            site(channel(up.base_url, **PATIENT), account=[{"name": "acme", **cap}], key=keys())
        )
        async with crowd(gateway, 2 * ADMITTED) as callers, watch(gateway, ACCOUNT, CAP):
            leavers, stayers = callers[:ADMITTED], callers[ADMITTED:]
            await asyncio.gather(*(caller.call(patience=patience) for caller in leavers))
            await until_all(lambda: balance_of(gateway, ACCOUNT).held_nanos == 0)
            calls = asyncio.gather(*(caller.call() for caller in stayers))
            await until_all(lambda: all(caller.heard for caller in stayers))
            go.set()
            await calls
        assert {caller.status for caller in callers} == {200}
        rows = await gateway.rows(2 * ADMITTED)
        assert sorted(row.outcome for row in rows) == ["client_closed"] * ADMITTED + ["completed"] * ADMITTED
        assert all(row.cost_nanos == cost_of(row) > 0 for row in rows)
        check_sums(gateway, rows)


async def test_calls_that_end_while_others_come_never_pass_the_cap(gateway_with: StartGateway) -> None:
    quick: list[Step] = [
        SSE_HEAD,
        chunk(FIRST),
        0.01,
        chunk(event(delta("", "stop")) + event(usage_frame()) + DONE),
        LAST_CHUNK,
    ]
    async with ScriptedUpstream(quick) as up:
        cap = {"quota_usd": usd_of(CAP)}
        gateway = await gateway_with(
            site(channel(up.base_url, **PATIENT), account=[{"name": "acme", **cap}], key=keys())
        )
        async with crowd(gateway) as callers, watch(gateway, ACCOUNT, CAP):
            await asyncio.gather(*(caller.call() for caller in callers))
        rows = await gateway.rows(CALLERS)
        completed = sum(row.outcome == "completed" for row in rows)
        assert ADMITTED <= completed == len(up.received)
        assert check_sums(gateway, rows) == completed * COST


async def test_what_a_provider_charges_above_the_reserve_is_on_record_to_the_nano(gateway_with: StartGateway) -> None:
    """37 streams of twice the output that was set aside: all of it is charged, and what is above the cap is said."""
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go, usage_frame(5, 8_192))) as up:
        cap = {"quota_usd": usd_of(CAP)}
        gateway = await gateway_with(
            site(channel(up.base_url, **PATIENT), account=[{"name": "acme", **cap}], key=keys())
        )
        balance = balance_of(gateway, ACCOUNT)
        async with crowd(gateway) as callers:
            calls = asyncio.gather(*(caller.call() for caller in callers))
            await until_all(lambda: all(caller.heard for caller in callers))
            go.set()
            await calls
        rows = await gateway.rows(CALLERS)
        spent = check_sums(gateway, rows)
        assert spent == ADMITTED * (5 * 1_000 + 8_192 * 2_000)
        assert sum(row.overrun_nanos for row in rows) == balance.lifetime.overrun_nanos == spent - CAP
        async with gateway.post(headers={"Authorization": f"Bearer {KEYS[0]}"}) as response:
            assert response.status == 403
            assert "is used up" in (await response.json())["error"]["message"]
        assert len(up.received) == ADMITTED
        await gateway.rows(CALLERS + 1)


async def test_no_usage_that_a_provider_can_report_lowers_what_is_spent(gateway_with: StartGateway) -> None:
    """U14: whatever it says, the charge is what an honest estimate says."""
    scripts = [[answer_of(usage)] for usage in UNBELIEVABLE]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await gateway_with(
            site(channel(up.base_url, **PATIENT), account=[{"name": "acme", "quota_usd": 1}], key=keys(quota_usd=1))
        )
        spent = [0]
        for _ in UNBELIEVABLE:
            async with gateway.post(headers={"Authorization": f"Bearer {KEYS[0]}"}) as response:
                assert response.headers["x-gateway-cost-usd"] == "0.000007"
            spent.append(balance_of(gateway, KEY_1).lifetime.spent_nanos)
        assert [after - before for before, after in pairwise(spent)] == [7_000] * len(UNBELIEVABLE)
        assert check_sums(gateway, await gateway.rows(len(UNBELIEVABLE))) == spent[-1]


@pytest.mark.parametrize(
    "free", [{"price": [{"model": "*", "free": True}]}, {"billing": {"unpriced": "free"}}], ids=str
)
async def test_a_model_that_costs_nothing_needs_no_room(gateway_with: StartGateway, free: dict[str, Any]) -> None:
    go = asyncio.Event()
    go.set()
    async with ScriptedUpstream(stream_until(go)) as up:
        config = site(channel(up.base_url, **PATIENT), account=[{"name": "acme"}], key=keys(quota_usd=0))
        gateway = await gateway_with({**config, "price": [{**PRICE, "model": "another"}], **free})
        async with crowd(gateway, 20) as callers:
            await asyncio.gather(*(caller.call() for caller in callers))
        assert {caller.status for caller in callers} == {200}
        rows = await gateway.rows(20)
        assert {(row.cost_nanos, row.reserved_nanos, row.prompt_tokens) for row in rows} == {(0, 0, 5)}
        check_sums(gateway, rows)
