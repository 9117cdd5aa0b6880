"""C1: a caller who leaves takes the provider's request with it, at once, in whatever phase it is."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.domain.token_estimate import estimate_text
from tests.support.fault_scene import UNHURRIED, WAIT_LIMIT_S, audit, good_script, healthy, site, until
from tests.support.gateway import CHAT, KEY, channel
from tests.support.leaving_clients import PHASES, Phase, Writer, close, connect, half_close, reset
from tests.support.scripted_upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway
from tests.support.upstream_scripts import STARTED, TEXT, TWO


@pytest.mark.parametrize("leave", [close, reset, half_close])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
async def test_a_caller_who_leaves_cancels_the_provider_at_once(
    standing_with: StartGateway, phase: Phase, leave: Callable[[Writer], None]
) -> None:
    async with ScriptedUpstream(phase.script) as up, ScriptedUpstream(good_script(stream=phase.stream)) as good:
        gateway = await standing_with(site(channel(up.base_url, "left", **UNHURRIED), healthy(good)))
        reader, writer = await connect(gateway, stream=phase.stream)
        if phase.heard:
            await reader.readuntil(TWO)
        await until(lambda: up.received)
        await asyncio.sleep(0.02)
        leave(writer)
        await asyncio.wait_for(up.hung_up.wait(), WAIT_LIMIT_S)
        row = await audit(gateway, up, outcome="client_closed", attempts=1, channel="left", stream=phase.stream)
        writer.close()
        assert not good.received
        if phase.heard:
            assert (row.status, row.usage_source) == (200, "estimate")
            assert row.completion_tokens == estimate_text(TEXT)
        else:
            bought = ("none", 0) if phase.refused else ("estimate", 1_000)
            assert (row.status, row.completion_tokens, row.usage_source, row.cost_nanos) == (499, 0, *bought)


async def test_a_caller_who_leaves_the_second_channel_cancels_that(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({}, 500)]) as bad, ScriptedUpstream([SSE_HEAD, STALL]) as second:
        gateway = await standing_with(
            site(channel(bad.base_url, "bad", priority=1), channel(second.base_url, "second", **UNHURRIED))
        )
        _, writer = await connect(gateway, stream=True)
        await until(lambda: second.received)
        writer.close()
        await asyncio.wait_for(second.hung_up.wait(), WAIT_LIMIT_S)
        await audit(gateway, second, outcome="client_closed", attempts=2, channel="second", status=499)


async def test_a_caller_who_leaves_after_the_last_byte_has_completed(standing_with: StartGateway) -> None:
    end: list[Step] = [chunk(event(usage_frame(5, 7)) + DONE), 0.05, LAST_CHUNK]
    async with ScriptedUpstream([*STARTED, *end]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        reader, writer = await connect(gateway, stream=True)
        await reader.readuntil(DONE)
        writer.close()
        await audit(gateway, outcome="completed", usage_source="upstream", cost_nanos=19_000)


async def test_a_caller_who_leaves_while_sending_its_body_leaves_a_row_and_no_visit(
    standing_with: StartGateway,
) -> None:
    async with ScriptedUpstream([STALL]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n{{".encode())
        await reader.readuntil(b" 100 Continue\r\n\r\n")  # the gateway waits for the rest
        writer.close()
        await audit(gateway, outcome="client_closed", attempts=0, channel=None, cost_nanos=0)
        assert not up.received


async def test_one_caller_who_leaves_disturbs_no_other(standing_with: StartGateway) -> None:
    slow: list[Step] = [*STARTED, 0.1, chunk(DONE), LAST_CHUNK]
    async with ScriptedUpstream([*STARTED, STALL], slow) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        reader, leaver = await connect(gateway, stream=True)
        await reader.readuntil(TWO)
        other, writer = await connect(gateway, stream=True)
        await other.readuntil(TWO)
        leaver.close()
        await other.readuntil(DONE)
        writer.close()
        assert sorted(row.outcome for row in await gateway.rows(2)) == ["client_closed", "completed"]
