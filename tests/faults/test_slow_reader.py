"""A caller who reads slowly, or not at all: its own provider is held back, memory stays bounded, nothing is lost."""

import asyncio

import pytest

from tests.support.fault_scene import audit, call, site, until
from tests.support.gateway import channel
from tests.support.scripted_upstream import DONE, ScriptedUpstream, delta, event
from tests.support.slow_readers import HELD, MANY, STORY, WORD, settle, unread, waiting_bytes
from tests.support.started_gateways import StartGateway
from tests.support.stored_jobs import stored

IDLE_S = 2.0


@pytest.mark.slow
async def test_a_caller_who_stops_reading_holds_its_provider_back_and_loses_nothing(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url, idle_timeout_s=IDLE_S)))
        async with unread(gateway) as response:
            assert 0 < await settle(up) < HELD
            assert waiting_bytes(gateway) < 1024 * 1024
            # Longer than the idle timer: the provider's silence is the caller's doing and no fault.
            await asyncio.sleep(1.5 * IDLE_S)
            body = await response.read()
        assert len(body) == len(WORD) * MANY + len(event(delta("", "stop")) + DONE)
        assert body.count(WORD) == MANY
        await audit(gateway, outcome="completed", attempts=1)


@pytest.mark.slow
async def test_a_caller_who_stops_reading_and_leaves_cancels_its_provider(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        async with unread(gateway) as response:
            await settle(up)
            response.close()
        await until(lambda: up.open_connections == 0)
        assert up.flooded < HELD
        await audit(gateway, up, outcome="client_closed", usage_source="estimate")


@pytest.mark.slow
async def test_a_caller_who_does_not_read_slows_nobody_else(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        async with unread(gateway) as response:
            held = await settle(up)
            heard = await call(gateway, stream=True)
            assert heard.body.count(WORD) == MANY
            assert up.flooded >= held + len(WORD) * MANY
            response.close()
        assert sorted(row.outcome for row in await gateway.rows(2)) == ["client_closed", "completed"]


@pytest.mark.slow
async def test_a_stop_under_a_caller_who_does_not_read_ends_and_leaves_its_row(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY) as up:
        gateway = await gateway_with(site(channel(up.base_url), server={"drain_timeout_s": 0.1}))
        async with unread(gateway) as response:
            await settle(up)
            async with asyncio.timeout(20):
                await gateway.stop()
            response.close()
        await until(lambda: up.open_connections == 0)
        (row,) = await stored(gateway)
        assert (row.outcome, row.usage_source) == ("interrupted", "estimate")
