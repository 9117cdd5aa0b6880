"""Copies of a route's requests for a shadow model, through the whole gateway: the caller notices nothing of them.

``make soak ARGS=tests/server/test_shadow_requests.py`` sends ten thousand requests; ``GATEWAY_TEST_REQUESTS=1000``
sends fewer.
"""

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.domain.request_log import RequestRecord
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.request_context import RequestContext
from gateway.server.context import SERVICES
from gateway.server.shadow_requests import ShadowRequests, _copy, _may_copy
from gateway.storage.schema import requests
from tests.support.admin_calls import ask_office
from tests.support.fault_scene import UNHURRIED, Heard, call
from tests.support.gateway import RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    RST,
    STALL,
    Received,
    Script,
    ScriptedUpstream,
    answer,
    chat_script,
)

StartFresh = Callable[..., Awaitable[RunningGateway]]
PRICES = [
    {"model": "old", "input_usd_per_million": 1, "output_usd_per_million": 1},
    {"model": "new", "input_usd_per_million": 10, "output_usd_per_million": 10},
]
"""1,000 and 10,000 nano-USD a token; ``COMPLETION`` has twelve tokens."""
GOOD = answer(COMPLETION)
CALLER_PAUSE_S = 0.04
"""The pause of each of the four callers whose times are measured: the gateway is busy for a quarter of the time."""
CALLS_A_BLOCK = 200
REQUESTS = int(os.environ.get("GATEWAY_TEST_REQUESTS", "10000"))


def site(old: ScriptedUpstream, new: ScriptedUpstream, share: float = 1.0, **shadow: Any) -> dict[str, Any]:
    """The route ``fast`` of the model ``old``, with the shadow model ``new``. A share of 0: no shadow."""
    step: dict[str, Any] = {"models": ["old"]}
    if share:
        step["shadow"] = {"models": ["new"], "share": share, **shadow}
    lines = [
        channel(up.base_url, f"of-{model}", models=[model], **UNHURRIED) for model, up in (("old", old), ("new", new))
    ]
    return {"channel": lines, "price": PRICES, "route": [{"name": "fast", "step": [step]}]}


async def ask(gateway: RunningGateway, *, stream: bool = False) -> Heard:
    return await call(gateway, stream=stream, model="fast", max_tokens=8)


async def await_copies(gateway: RunningGateway) -> None:
    """Until no copy runs any more."""
    services = gateway.app[SERVICES]
    async with asyncio.timeout(30):
        await services.background.wait()
        while services.background or services.drain.active_count:  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0.005)


def split(rows: list[RequestRecord]) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """The callers' rows, and those of copies."""
    return [row for row in rows if not row.shadow], [row for row in rows if row.shadow]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_copy_has_its_own_row_and_is_charged_to_its_own_account(gateway_with: StartFresh, stream: bool) -> None:
    good: Script = chat_script("hello") if stream else [GOOD]
    async with ScriptedUpstream(good) as old, ScriptedUpstream(good) as new:
        gateway = await gateway_with(site(old, new))
        heard = await ask(gateway, stream=stream)
        assert heard.status == 200
        assert b"hello" in heard.body
        (own,), (copy,) = split(await gateway.rows(2))
        assert (own.account, own.route, own.served_model, own.cost_nanos) == ("acme", "fast", "old", 12 * 1_000)
        assert (copy.account, copy.key_name, copy.route) == ("shadow", "shadow", "fast")
        assert (copy.model, copy.channel, copy.outcome, copy.cost_nanos) == ("new", "of-new", "completed", 12 * 10_000)
        assert copy.stream is stream
        assert copy.first_byte_ms is not None
        assert [up.received[0].json["model"] for up in (old, new)] == ["old", "new"]
        assert new.received[0].json["messages"] == old.received[0].json["messages"]
        _, account = await ask_office(gateway, "GET", "/accounts/acme")
        assert account["spent_usd"] == pytest.approx(12 * 1_000 / 1e9)


BROKEN: dict[str, Script] = {
    "500": [answer({"error": {"message": "ill"}}, 500)],
    "429": [answer({"error": {"message": "slow down"}}, 429)],
    "closes": [FIN],
    "resets": [RST],
    "no JSON": [answer(b"<html>")],
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_shadow_that_fails_harms_nobody(gateway_with: StartFresh, name: str) -> None:
    async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream(BROKEN[name]) as new:
        gateway = await gateway_with(site(old, new))
        for _ in range(3):
            assert (await ask(gateway)).status == 200
            await await_copies(gateway)
        own, copies = split(await gateway.rows(6))
        assert [row.outcome for row in own] == ["completed"] * 3
        assert len(old.received) == 3
        assert all(row.outcome != "completed" and row.attempts <= 1 for row in copies)
        assert {row.account for row in copies} == {"shadow"}


async def test_a_shadow_that_hangs_is_bounded_and_harms_nobody(gateway_with: StartFresh) -> None:
    async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream([STALL]) as new:
        gateway = await gateway_with(site(old, new, max_running=2))
        for _ in range(12):
            assert (await ask(gateway)).status == 200
        services = gateway.app[SERVICES]
        async with asyncio.timeout(15):
            while len(new.received) < 2:  # noqa: ASYNC110 - a list has no event
                await asyncio.sleep(0.005)
        assert len(services.active_requests) == 2
        for active in list(services.active_requests.calls.values()):
            assert active.cancel()
        own, copies = split(await gateway.rows(14))
        assert len(own) == 12
        assert [row.outcome for row in copies] == ["cancelled", "cancelled"]


async def test_the_limits_of_its_account_hold(gateway_with: StartFresh) -> None:
    """Two keys' worth of limits: what is left does not cover a copy, so no provider is asked."""
    async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream([GOOD]) as new:
        gateway = await gateway_with(site(old, new))
        await gateway.app[SERVICES].auth.accounts.add_account(
            {"name": "shadow", "quota_usd": 0.000001, "quota_period": "lifetime"}
        )
        assert (await ask(gateway)).status == 200
        (own,), (copy,) = split(await gateway.rows(2))
        assert own.outcome == "completed"
        assert (copy.outcome, copy.error_code, copy.cost_nanos) == ("refused", "insufficient_quota", 0)
        assert not new.received


async def test_a_disabled_account_sends_no_copies(gateway_with: StartFresh) -> None:
    async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream([GOOD]) as new:
        gateway = await gateway_with({**site(old, new), "routing": {"shadow_account": "trials"}})
        await gateway.app[SERVICES].auth.accounts.add_account({"name": "trials", "status": "disabled"})
        assert (await ask(gateway)).status == 200
        await await_copies(gateway)
        assert len(await gateway.rows(1)) == 1
        assert not new.received


async def test_what_nobody_was_answered_is_not_copied(gateway_with: StartFresh) -> None:
    async with ScriptedUpstream([answer({"error": {"message": "no"}}, 400)]) as old, ScriptedUpstream([GOOD]) as new:
        gateway = await gateway_with(site(old, new))
        assert (await ask(gateway)).status == 400
        await await_copies(gateway)
        assert len(await gateway.rows(1)) == 1
        assert not new.received


async def test_a_shutdown_waits_for_copies(gateway_with: StartFresh, tmp_path: Path) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Received) -> None:
        asked.set()
        await go_on.wait()

    async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream([wait, GOOD]) as new:
        gateway = await gateway_with(site(old, new))
        assert (await ask(gateway)).status == 200
        await asyncio.wait_for(asked.wait(), 15)
        drain = gateway.app[SERVICES].drain
        assert drain.active_count == 1
        stopping = asyncio.ensure_future(gateway.stop())
        async with asyncio.timeout(15):
            while drain.open:  # noqa: ASYNC110 - a flag has no event
                await asyncio.sleep(0.005)
        go_on.set()
        await stopping
        assert drain.active_count == 0


async def test_a_comparison_has_both_side_by_side(gateway_with: StartFresh) -> None:
    async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream([GOOD], [answer(b"<html>")]) as new:
        gateway = await gateway_with(site(old, new))
        for _ in range(2):
            assert (await ask(gateway)).status == 200
            await await_copies(gateway)
        await gateway.rows(4)
        _, found = await ask_office(gateway, "GET", "/routes/fast/shadow")
        own, copies = found["data"]
        facts = [(one["model"], one["shadow"], one["requests"], one["failures"]) for one in (own, copies)]
        assert facts == [("old", False, 2, 0), ("new", True, 2, 1)]
        assert [one["mean_completion_tokens"] for one in (own, copies)] == [7, 7]
        assert own["cost_usd"] == pytest.approx(24 * 1_000 / 1e9)
        assert copies["mean_first_byte_ms"] is not None
        _, copied = await ask_office(gateway, "GET", "/requests?shadow=true")
        assert {row["model"] for row in copied["data"]} == {"new"}
        _, answered = await ask_office(gateway, "GET", "/requests?shadow=false")
        assert {row["model"] for row in answered["data"]} == {"fast"}


def test_a_copy_is_kept_nowhere() -> None:
    body = {"model": "fast", "input": "hi", "background": True, "store": True}
    copied = _copy(parse_responses_inference(body), "new")
    assert copied.model == "new"
    assert copied.body == {"model": "fast", "input": "hi", "store": False}
    assert copied.keep is None


def test_what_is_bound_to_a_provider_is_not_copied() -> None:
    messages = [{"role": "user", "content": "hi"}]
    ctx = RequestContext("req_1")
    ctx.inference = parse_chat_inference({"model": "fast", "messages": messages})
    assert _may_copy(ctx)
    ctx.inference = parse_chat_inference({"model": "fast", "messages": messages, "modalities": ["text", "audio"]})
    assert not _may_copy(ctx)


# Many requests


async def send_many(gateway: RunningGateway, count: int) -> float:
    """Send requests, twenty at once; return the CPU seconds of this process."""
    began = time.process_time()
    turns = iter(range(count))

    async def work() -> None:
        for _ in turns:
            assert (await ask(gateway)).status == 200

    await asyncio.gather(*(work() for _ in range(20)))
    return time.process_time() - began


async def read_rows(gateway: RunningGateway) -> list[Any]:
    await await_copies(gateway)
    await gateway.app[SERVICES].billing.flusher.store_waiting()
    return list(await gateway.app[SERVICES].storage.database.read_long(select(requests)))


def describe(row: Any) -> tuple[Any, ...]:
    names = (
        "account",
        "key_name",
        "model",
        "served_model",
        "route",
        "channel",
        "status",
        "outcome",
        "attempts",
        "tried",
    )
    counted = ("prompt_tokens", "completion_tokens", "cost_nanos", "reserved_nanos", "overrun_nanos")
    # ``tried`` has a duration, which is not the same twice.
    return tuple(
        getattr(row, name).split(":")[0] if name == "tried" else getattr(row, name) for name in (*names, *counted)
    )


async def compare(gateway_with: StartFresh, count: int, share: float, scripts: list[Script]) -> float:
    """Send requests with and without a shadow; return how many times as much CPU time the shadow takes."""
    cpu: list[float] = []
    own: list[Counter[tuple[Any, ...]]] = []
    for on in (False, True):
        async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream(*scripts) as new:
            gateway = await gateway_with(site(old, new, share if on else 0, max_running=1_000))
            draw = random.Random(7)  # noqa: S311 - a share of requests, not secrets
            sender = gateway.app[SERVICES].open_copy_sender()
            assert isinstance(sender, ShadowRequests)
            sender.rng = draw.random
            cpu.append(await send_many(gateway, count))
            rows = await read_rows(gateway)
            copies = [row for row in rows if row.shadow]
            own.append(Counter(describe(row) for row in rows if not row.shadow))
            if on:
                spread = 4 * (count * share * (1 - share)) ** 0.5
                assert abs(len(copies) - count * share) <= spread
                assert {(row.account, row.route, row.model) for row in copies} == {("shadow", "fast", "new")}
                assert {row.cost_nanos for row in copies if row.outcome == "completed"} <= {120_000}
                # A provider that breaks off after a while may have worked, as with callers' own requests.
                assert all(row.cost_nanos <= row.reserved_nanos for row in copies)
                calls = [received for received in new.received if received.method == "POST"]  # others are probes
                assert len(calls) == sum(row.attempts for row in copies)
            else:
                assert not copies
            outcomes = Counter(row.outcome for row in copies)
            print(f"share {share if on else 0}: {sum(own[-1].values())} rows of callers, {dict(outcomes)} copies")  # noqa: T201
            assert len(old.received) == count
            await gateway.check_books()
    assert own[0] == own[1]
    assert sum(own[0].values()) == count
    return cpu[1] / cpu[0]


@pytest.mark.parametrize("name", ["good", "500", "closes"])
async def test_the_rows_of_callers_are_the_same_with_a_shadow(gateway_with: StartFresh, name: str) -> None:
    await compare(gateway_with, 60, 0.5, [[GOOD] if name == "good" else BROKEN[name]])


async def measure_calls(gateway: RunningGateway, count: int) -> list[float]:
    """Send requests of four callers who pause in between; return how long each took, in seconds of this thread's CPU.

    All of callers, gateway and providers runs in this thread, so nothing else that the machine does is counted.
    """
    turns, durations = iter(range(count)), list[float]()

    async def work() -> None:
        for _ in turns:
            began = time.thread_time()
            assert (await ask(gateway)).status == 200
            durations.append(time.thread_time() - began)
            await asyncio.sleep(CALLER_PAUSE_S)

    await asyncio.gather(*(work() for _ in range(4)))
    await await_copies(gateway)
    return durations


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_callers_wait_no_longer_beside_a_shadow(gateway_with: StartFresh) -> None:
    """Two gateways get blocks of requests in turn, so that the machine's other work slows both alike."""
    async with ScriptedUpstream([GOOD]) as old, ScriptedUpstream([GOOD]) as new:
        gateways = [await gateway_with(site(old, new, share)) for share in (0, 0.1)]
        durations: list[list[float]] = [[], []]
        for _ in range(REQUESTS // CALLS_A_BLOCK):
            for gateway, measured in zip(gateways, durations, strict=True):
                measured.extend(await measure_calls(gateway, CALLS_A_BLOCK))
        assert len(new.received) > REQUESTS // 20
        for gateway in gateways:
            await gateway.stop()
    plain, shadowed = (statistics.quantiles(measured, n=100) for measured in durations)
    for percent in (50, 95, 99):
        without_ms, with_ms = plain[percent - 1] * 1000, shadowed[percent - 1] * 1000
        print(f"p{percent}: {without_ms:.2f} ms without a shadow, {with_ms:.2f} ms with one")  # noqa: T201
    assert shadowed[49] < 1.2 * plain[49]


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_ten_thousand_requests_cost_a_tenth_more_with_a_tenth_copied(gateway_with: StartFresh) -> None:
    ratio = await compare(gateway_with, REQUESTS, 0.1, [[GOOD]])
    print(f"{ratio:.3f} times the CPU time with a tenth copied")  # noqa: T201
    assert ratio < 1.25
    every_kind = [[GOOD], *BROKEN.values()] * (REQUESTS // 10)
    await compare(gateway_with, REQUESTS, 0.1, every_kind)
