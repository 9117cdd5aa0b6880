"""Two administrators at two nodes change the same channel, key or setting at once: no change is lost without a word."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
ROUNDS = 3
WITHIN_S = 30
STORED = {"name": "stored", "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "models": ["m"], "api_key": "k"}


@pytest.fixture
async def nodes(tmp_path: Path, shared_postgres: SharedPostgres) -> AsyncIterator[Sequence[GatewayProcess]]:
    tables = {"channel": [channel("http://127.0.0.1:9/v1")], "account": [{"name": "acme"}]}
    async with start_nodes(tmp_path, [await shared_postgres.empty()] * 2, tables) as started:
        yield started


async def change(node: GatewayProcess, path: str, body: Any, method: str = "PATCH") -> bool:
    """Whether the change was stored; it is refused if another one came between."""
    with contextlib.suppress(AssertionError):
        await node.ask(path, body, method)
        return True
    return False


def shows(nodes: Sequence[GatewayProcess], path: str, wanted: dict[str, Any]) -> Callable[[], Awaitable[bool]]:
    """Whether every node has these fields."""

    async def look() -> bool:
        return all([(await node.ask(path)).items() >= wanted.items() for node in nodes])

    return look


async def test_changes_of_different_fields_are_all_kept(nodes: Sequence[GatewayProcess]) -> None:
    first, second = nodes
    key = await first.ask("keys", {"name": "k", "account": "acme"})
    await first.ask("channels?check=none", STORED)
    await eventually(lambda: has_channel(second), WITHIN_S)
    for number in range(1, ROUNDS + 1):
        for path, one, other in (
            (f"keys/{key['id']}", {"rpm": number}, {"models": [f"m-{number}"]}),
            ("channels/stored", {"weight": number}, {"priority": number}),
        ):
            done = await asyncio.gather(change(first, path, one), change(second, path, other))
            assert list(done) == [True, True], path
            await eventually(shows(nodes, path, {**one, **other}), WITHIN_S)


async def has_channel(node: GatewayProcess) -> bool:
    return "stored" in {one["name"] for one in (await node.ask("channels"))["data"]}


async def test_of_two_changes_of_one_field_one_is_refused_or_both_agree_in_the_end(
    nodes: Sequence[GatewayProcess],
) -> None:
    first, second = nodes
    await first.ask("channels?check=none", STORED)
    await eventually(lambda: has_channel(second), WITHIN_S)
    for number in range(2, 2 + ROUNDS):
        weights = (number, 100 + number)
        done = await asyncio.gather(
            *(change(node, "channels/stored", {"weight": each}) for node, each in zip(nodes, weights, strict=True))
        )
        assert any(done)
        possible = [weight for weight, stored in zip(weights, done, strict=True) if stored]

        async def agree(possible: Sequence[int] = possible) -> bool:
            seen = [(await node.ask("channels/stored"))["weight"] for node in nodes]
            return seen[0] == seen[1] and seen[0] in possible

        await eventually(agree, WITHIN_S)


async def test_settings_that_are_changed_at_once_are_all_in_force_at_both(nodes: Sequence[GatewayProcess]) -> None:
    for number in range(1, ROUNDS + 1):
        values = {"retry_ratio": number / 10, "max_attempts": number}
        done = await asyncio.gather(
            *(
                change(node, f"settings/routing/{name}", {"value": value}, "PUT")
                for node, (name, value) in zip(nodes, values.items(), strict=True)
            )
        )
        assert done == [True, True]

        async def is_so(wanted: dict[str, float] = values) -> bool:
            found = [(await node.ask("settings"))["sections"]["routing"] for node in nodes]
            return all(each[name]["value"] == value for each in found for name, value in wanted.items())

        await eventually(is_so, WITHIN_S)
