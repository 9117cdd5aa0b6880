"""Balancing by measurement, through the whole gateway: what is measured, where it is shown, and the caller's wish."""

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.fault_scene import UNHURRIED, Heard, call, hear
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway

PRICE = {"model": "m", "input_usd_per_million": 3, "output_usd_per_million": 3}
"""``COMPLETION`` has twelve tokens."""


def site(cheap: ScriptedUpstream, dear: ScriptedUpstream, **routing: Any) -> dict[str, Any]:
    lines = [
        channel(up.base_url, name, models=["m"], price_multiplier=factor, **UNHURRIED)
        for up, name, factor in ((cheap, "cheap", 1), (dear, "dear", 3))
    ]
    return {"channel": lines, "price": [PRICE], "routing": routing}


async def ask(gateway: RunningGateway, headers: Mapping[str, str] | None = None) -> Heard:
    async with gateway.post({**HELLO, "model": "m"}, headers=headers) as response:
        return await hear(response)


def forget_measurements(gateway: RunningGateway) -> None:
    """Gateways that stand already may have served another test."""
    balancer = gateway.app[SERVICES].routing.router.load_balancer
    balancer.measured_balance = None


async def test_the_cheap_one_gets_most_and_the_figures_are_shown(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as cheap, ScriptedUpstream([answer(COMPLETION)]) as dear:
        gateway = await standing_with(site(cheap, dear, balance="cost"))
        for _ in range(60):
            assert (await ask(gateway)).status == 200
        assert len(cheap.received) > 40
        assert dear.received
        _, found = await ask_office(gateway, "GET", "/explain?model=m")
        shown = {line["channel"]: line["measured"] for line in found["channels"]}
        assert [one["usd_per_million"] for one in shown["cheap"]] == [3.0]
        assert [one["usd_per_million"] for one in shown["dear"]] == [9.0]
        assert shown["cheap"][0]["failed_share"] == 0
        assert shown["cheap"][0]["answer_ms"] is not None
        assert shown["cheap"][0]["first_event_ms"] is None
        assert shown["cheap"][0]["tokens_per_s"] > 0
        _, details = await ask_office(gateway, "GET", "/channels/cheap")
        assert [one["model"] for one in details["keys"][0]["measured"]] == ["m"]


async def test_streams_have_the_time_to_their_first_event(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("one")) as one, ScriptedUpstream(chat_script("two")) as two:
        gateway = await standing_with(site(one, two, balance="latency"))
        for _ in range(20):
            assert (await call(gateway, stream=True, model="m")).status == 200
        _, found = await ask_office(gateway, "GET", "/explain?model=m")
        measured = [figures for line in found["channels"] for figures in line["measured"]]
        assert measured
        assert all(figures["first_event_ms"] is not None and figures["answer_ms"] is None for figures in measured)


async def test_the_caller_chooses_if_that_is_allowed(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as cheap, ScriptedUpstream([answer(COMPLETION)]) as dear:
        gateway = await standing_with(site(cheap, dear, allow_prefer=True))
        for _ in range(60):
            assert (await ask(gateway, {"x-gateway-prefer": "cost"})).status == 200
        assert len(cheap.received) > 40


async def test_a_dry_run_tells_what_is_compared(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as cheap, ScriptedUpstream([answer(COMPLETION)]) as dear:
        gateway = await standing_with(site(cheap, dear, allow_prefer=True))
        forget_measurements(gateway)
        _, found = await ask_office(gateway, "GET", "/explain?model=m&prefer=cost")
        assert found["balance"] == "cost"
        assert [line["score"]["amount"] for line in found["channels"]] == [None, None]
        for _ in range(60):
            assert (await ask(gateway, {"x-gateway-prefer": "cost"})).status == 200
        of_cheap = len(cheap.received)
        while len(cheap.received) == of_cheap:  # the last request must not be one of the few for the other channel
            assert (await ask(gateway, {"x-gateway-prefer": "cost"})).status == 200
        _, found = await ask_office(gateway, "GET", "/explain?model=m&prefer=cost")
        lines = {line["channel"]: line for line in found["channels"]}
        assert lines["cheap"]["score"]["amount"] == 3.0
        assert lines["dear"]["score"] == {
            "amount": 9.0, "unit": "usd_per_million_tokens", "success_share": 1, "is_last": False,
        }  # fmt: skip
        assert (lines["cheap"]["chance"], lines["dear"]["chance"]) == (0.975, 0.025)
        _, found = await ask_office(gateway, "GET", "/explain?model=m")
        assert (found["balance"], found["prefers"]) == ("weight", True)
        assert [(line["chance"], line["score"]) for line in found["channels"]] == [(0.5, None)] * 2
        status, found = await ask_office(gateway, "GET", "/explain?model=m&prefer=price")
        assert (status, found["error"]["param"]) == (400, "prefer")


async def test_a_dry_run_with_a_wish_that_is_not_allowed_is_refused(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as cheap, ScriptedUpstream([answer(COMPLETION)]) as dear:
        gateway = await standing_with(site(cheap, dear))
        status, found = await ask_office(gateway, "GET", "/explain?model=m&prefer=cost")
        assert (status, found["error"]["param"]) == (400, "prefer")


@pytest.mark.parametrize("value", ["price", "weight", "", "Latency"])
async def test_an_unknown_wish_is_refused_before_any_provider_is_asked(standing_with: StartGateway, value: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as cheap, ScriptedUpstream([answer(COMPLETION)]) as dear:
        gateway = await standing_with(site(cheap, dear, allow_prefer=True))
        heard = await ask(gateway, {"x-gateway-prefer": value})
        assert heard.status == 400
        assert b"x-gateway-prefer" in heard.body
        assert not cheap.received
        assert not dear.received


@pytest.mark.parametrize("value", ["price", "cost"])
async def test_a_wish_that_is_not_allowed_has_no_effect(standing_with: StartGateway, value: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as cheap, ScriptedUpstream([answer(COMPLETION)]) as dear:
        gateway = await standing_with(site(cheap, dear))
        forget_measurements(gateway)
        for _ in range(10):
            assert (await ask(gateway, {"x-gateway-prefer": value})).status == 200
        assert gateway.app[SERVICES].routing.router.load_balancer.measured_balance is None
        _, found = await ask_office(gateway, "GET", "/explain?model=m")
        assert [line["measured"] for line in found["channels"]] == [[], []]
