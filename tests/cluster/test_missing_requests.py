"""Two servers take writes after a promotion: ``gateway store missing`` finds what only the older one has."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import make_node
from tests.support.command_line import run_many
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.lost_servers import open_pair
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.spending_callers import COST_NANOS, PRICE, call, is_at_rest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_COUNT = "SELECT count(*) FROM requests WHERE outcome = 'completed'"


async def test_requests_that_only_the_older_primary_has_are_counted_and_exported(tmp_path: Path) -> None:
    """What the older server alone has, and what the newer one has, are all calls of the provider."""
    async with open_pair() as pair, ScriptedUpstream([answer(COMPLETION)]) as up:
        name = pair.url.rpartition("/")[2]
        old, new = pair.primary.name_url(name), pair.standby.name_url(name)
        tables = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "price": [PRICE]}
        async with make_node(tmp_path / "older", old, tables) as older:
            key = await older.ask("keys", {"name": "before", "account": "acme", "quota_usd": 1})
            await serve(older, key["secret"], 3)
            await eventually(lambda: is_at_rest([older]), 30)
            await eventually(pair.is_level, 30)
            await pair.detach()
            await asyncio.to_thread(pair.standby.promote)
            late = await older.ask("keys", {"name": "after", "account": "acme"})
            await serve(older, key["secret"], 5)
            await serve(older, late["secret"], 2)
            assert await older.end() == 0
        async with make_node(tmp_path / "newer", new, tables) as newer:
            await serve(newer, key["secret"], 4)
            await eventually(lambda: is_at_rest([newer]), 30)
            missing, rows = await asyncio.to_thread(find_missing, tmp_path, old, new)
        assert (missing["requests"], missing["charged_nanos"]) == (7, 7 * COST_NANOS)
        assert [(each["key"], each["requests"]) for each in missing["keys"]] == [("after", 2), ("before", 5)]
        assert sum(row["cost_nanos"] for row in rows) == 7 * COST_NANOS
        assert len(rows) + await pair.ask(pair.standby, _COUNT) == len(up.received) == 14


async def serve(node: GatewayProcess, secret: str, times: int) -> None:
    """Ask until so many requests were answered: a limit on a new primary is spent only after some seconds."""

    async def is_served() -> bool:
        return await call(node, secret) == 200

    for _ in range(times):
        await eventually(is_served, 60)


def find_missing(path: Path, old: str, new: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the report of ``gateway store missing``, and the rows of its export."""
    file = path / "missing.jsonl"
    words = ["store", "missing", "--from", old, "--in", new, "--since", "1h", "--json", "--export", str(file)]
    ((code, out, err),) = run_many(path, words)
    assert code == 0, err
    return json.loads(out), [json.loads(line) for line in file.read_text().splitlines()]
