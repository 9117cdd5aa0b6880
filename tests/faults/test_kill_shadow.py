"""``kill -9`` or a stop while a copy for a shadow model runs: its row is the shadow's, and the caller does not pay."""

import asyncio
from pathlib import Path

import pytest

from tests.support.fault_scene import PRICE, UNHURRIED
from tests.support.gateway import HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, open_caller
from tests.support.scripted_upstream import COMPLETION, STALL, Received, ScriptedUpstream, answer


@pytest.mark.timeout(120)
@pytest.mark.parametrize("killed", [True, False])
async def test_a_copy_that_was_cut_off_is_a_row_of_the_shadow(tmp_path: Path, killed: bool) -> None:
    arrived = asyncio.Event()

    async def note(_: Received) -> None:
        arrived.set()

    async with ScriptedUpstream([answer(COMPLETION)]) as own, ScriptedUpstream([note, STALL]) as other:
        step = {"models": ["m"], "shadow": {"models": ["new"], "share": 1.0}}
        site = {
            "server": {"log_format": "json", "drain_timeout_s": 0.1},
            "ledger": {"on_crash": "charge"},
            "channel": [
                channel(own.base_url, "own", models=["m"], **UNHURRIED),
                channel(other.base_url, "other", models=["new"], **UNHURRIED),
            ],
            "price": [PRICE, {**PRICE, "model": "new"}],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 1}],
            "route": [{"name": "fast", "step": [step]}],
        }
        async with GatewayProcess(tmp_path / "data", site) as gateway:
            async with open_caller() as caller:
                body = {**HELLO, "model": "fast", "max_tokens": 8}
                async with ask_chat(caller, gateway.url, body, "own") as response:
                    assert response.status == 200
                await asyncio.wait_for(arrived.wait(), 15)
            await (gateway.kill() if killed else gateway.end())
            await gateway.start()
            rows, _ = await gateway.read_rows()
            (copy,) = [row for row in rows if row.shadow]
            (asked,) = [row for row in rows if not row.shadow]
            assert (asked.client_request_id, asked.account, asked.route) == ("own", "acme", "fast")
            assert (asked.outcome, asked.cost_nanos) == ("completed", 19_000)
            assert (copy.account, copy.route, copy.model, copy.outcome) == ("shadow", "fast", "new", "interrupted")
            assert copy.reserved_nanos > 0
            balances = {account["name"]: account["spent_usd"] for account in (await gateway.ask("accounts"))["data"]}
            assert balances["acme"] == pytest.approx(19_000 / 1e9)
            assert balances["shadow"] == pytest.approx(copy.cost_nanos / 1e9)
            assert (await gateway.check_books())["held_usd"] == 0
