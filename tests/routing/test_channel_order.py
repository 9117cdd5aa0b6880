"""Channels in the order in which an operator wants them asked, and what their calls have come to."""

from typing import Any

import attrs
import orjson
import pytest

from gateway.domain.audit_log import AuditFilter
from gateway.domain.channel import Channel
from gateway.errors import (
    Conflict,
    InvalidRequest,
    ProviderAuthError,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ShuttingDown,
    UnsupportedByProvider,
)
from gateway.proxy.failover import make_cancellation_error
from gateway.routing.channel_changes import order_channels
from gateway.routing.channel_order import set_priorities
from gateway.routing.channel_state import RECENT_CALLS, ChannelSlot
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from tests.support.channel_services import BARE, DECLARED, ChannelServices, declare_channels

NOTHING_KNOWN = {"latency_ms": None, "success_ratio": None, "calls": 0, "failures": 0}


async def gateway_of(*names: str, declared: tuple[Channel, ...] = ()) -> ChannelServices:
    services = await declare_channels(*declared)
    for name in names:
        await services.channel_service.add({**BARE, "name": name})
    return services


def read_order(services: ChannelServices) -> list[str]:
    """As the calls are: the highest priority first."""
    channels = services.catalog.channels
    assert len({channel.priority for channel in channels}) == len(channels)
    return [channel.name for channel in sorted(channels, key=lambda channel: -channel.priority)]


async def test_channels_are_asked_in_the_order_they_were_put_in() -> None:
    services = await gateway_of("a", "b", "c")
    await order_channels(services.channel_service, {"names": ["c", "a", "b"]})
    assert read_order(services) == ["c", "a", "b"]
    assert {channel.name: channel.priority for channel in services.catalog.channels} == {"a": 1, "b": 0, "c": 2}
    assert {channel.name: channel.priority for channel in await services.store.list_channels()} == {
        "a": 1,
        "b": 0,
        "c": 2,
    }
    rows = await services.store.audit_log.list_audit(AuditFilter(action="channel.ordered"), 9)
    assert [(row.subject, orjson.loads(row.detail)) for row in rows] == [("c, a, b", {"c": [0, 2], "a": [0, 1]})]


async def test_an_order_that_is_theirs_already_changes_nothing() -> None:
    services = await gateway_of("a", "b")
    await services.channel_service.edit("a", {"priority": 70})
    before = services.catalog.channels
    await order_channels(services.channel_service, {"names": ["a", "b"]})
    assert services.catalog.channels == before
    assert not await services.store.audit_log.list_audit(AuditFilter(action="channel.ordered"), 9)


async def test_what_the_file_declares_keeps_its_priority() -> None:
    fixed = attrs.evolve(DECLARED, priority=5)
    services = await gateway_of("a", "b", declared=(fixed,))
    await order_channels(services.channel_service, {"names": ["b", "filed", "a"]})
    assert read_order(services) == ["b", "filed", "a"]
    assert services.channel_service.get("filed") == fixed


async def test_an_order_that_cannot_be_had_is_refused_whole_with_what_is_in_its_way() -> None:
    services = await gateway_of("a", declared=(DECLARED, attrs.evolve(DECLARED, name="second")))
    before = services.catalog.channels
    with pytest.raises(Conflict, match=r"'filed' \(0\) and 'second' \(0\)"):
        await order_channels(services.channel_service, {"names": ["filed", "a", "second"]})
    assert services.catalog.channels == before


@pytest.mark.parametrize(
    "fields",
    [{}, {"names": "a"}, {"names": []}, {"names": ["a"]}, {"names": ["a", "a", "b"]}, {"names": ["a", "b", "c"]},
     {"names": ["a", 1]}, {"names": ["a", "b"], "other": 1}],
)  # fmt: skip
async def test_every_channel_is_to_be_named_once(fields: Any) -> None:
    services = await gateway_of("a", "b")
    with pytest.raises(InvalidRequest):
        await order_channels(services.channel_service, fields)


def test_one_that_was_found_is_not_moved() -> None:
    found = attrs.evolve(DECLARED, name="ollama", origin="local")
    with pytest.raises(Conflict, match="ollama"):
        set_priorities([found, attrs.evolve(found, name="other", priority=1)])


class BalancerScenario(LoadBalancer):
    """One channel, a clock turned by hand."""

    def __init__(self) -> None:
        self.time = 50.0
        super().__init__(lambda: self.time, lambda: 0.5, settings=DEFAULT_SETTINGS, shared=None)
        self.set_channels([DECLARED])

    def call(self, *, first_byte_s: float | None = None, error: ProviderError | None = None) -> ChannelSlot:
        slot = self.acquire(self.channels["filed"], ("openai_chat", "m"), 1, retry=False)
        if first_byte_s is not None:
            self.time += first_byte_s
            self.record_success(slot)
        if error is not None:
            self.record_failure(slot, error)
        self.release(slot)
        return slot


async def figures_after(*calls: dict[str, Any]) -> dict[str, Any]:
    board = BalancerScenario()
    for call in calls:
        board.release(board.call(**call))  # said twice, it counts once
    services = ChannelServices(load_balancer=board)
    await services.channel_service.declare([DECLARED])
    shown = services.show("filed")
    return {name: shown[name] for name in NOTHING_KNOWN}


async def test_what_calls_have_come_to() -> None:
    answered = [{"first_byte_s": ms / 1000} for ms in range(1, 101)]
    figures = await figures_after(*answered)
    assert figures == {
        "latency_ms": {"p50": 50, "p95": 95, "p99": 99},
        "success_ratio": 1.0,
        "calls": 100,
        "failures": 0,
    }


@pytest.mark.parametrize(
    "error",
    [ProviderBadResponse("x"), ProviderAuthError("x"), ProviderRateLimited("x", status=429)],
    ids=lambda error: error.failure_scope,
)
@pytest.mark.parametrize("first_byte_s", [None, 0.25])
async def test_a_call_that_fails_counts_as_failed_also_where_it_had_begun(
    error: ProviderError, first_byte_s: float | None
) -> None:
    figures = await figures_after({"first_byte_s": 0.5}, {"first_byte_s": first_byte_s, "error": error})
    assert figures == {
        "latency_ms": dict.fromkeys(("p50", "p95", "p99"), 500),
        "success_ratio": 0.5,
        "calls": 2,
        "failures": 1,
    }


@pytest.mark.parametrize(
    "error",
    [ProviderRejected("x", status=400), UnsupportedByProvider("x"), ShuttingDown("x"), make_cancellation_error(), None],
)
async def test_what_is_no_fault_of_the_channel_counts_for_neither(error: ProviderError | None) -> None:
    assert await figures_after({"error": error}) == NOTHING_KNOWN


async def test_only_the_last_calls_make_the_figures_and_all_are_counted() -> None:
    failed = [{"error": ProviderBadResponse("x")}] * 10
    figures = await figures_after(*failed, *([{"first_byte_s": 0.001}] * RECENT_CALLS))
    assert (figures["success_ratio"], figures["calls"], figures["failures"]) == (1.0, RECENT_CALLS + 10, 10)


def test_a_channel_that_is_changed_keeps_its_figures_and_one_that_leads_elsewhere_begins_anew() -> None:
    board = BalancerScenario()
    board.call(first_byte_s=0.1)
    board.set_channels([attrs.evolve(DECLARED, priority=3)])
    assert board.channels["filed"].calls == 1
    board.set_channels([attrs.evolve(DECLARED, base_url="http://127.0.0.1:8/v1")])
    assert board.channels["filed"].calls == 0
