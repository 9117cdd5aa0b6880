"""Sinks of gateways in processes of their own: killed in the middle, and two nodes on one database."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.encryption import SecretBox
from tests.support.cluster import MASTER_KEY, find_leader, start_nodes
from tests.support.fault_scene import PRICE
from tests.support.gateway import HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.media_stores import KINDS
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.segment_stores import open_place
from tests.support.sink_receivers import SinkReceiver, open_receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
WITHIN_S = 90
MARKER = "marker-of-a-prompt"


def configure(up: ScriptedUpstream, *sinks: Any) -> dict[str, Any]:
    return {
        "channel": [channel(up.base_url)],
        "price": [PRICE],
        "account": [{"name": "acme"}],
        "key": [{"name": "test", "account": "acme", "secret": KEY}],
        "sink": [*sinks],
    }


async def call(url: str, count: int) -> set[str]:
    """The ids of so many requests."""
    ids = set()
    async with open_caller(KEY) as caller:
        for _ in range(count):
            async with caller.post(f"{url}/v1/chat/completions", json=HELLO) as response:
                assert response.status == 200
                await response.read()
                ids.add(response.headers["X-Request-Id"])
    return ids


async def wait_for_begin(gateway: GatewayProcess, receiver: SinkReceiver, pause_s: float = 0.0) -> set[str]:
    """Return the ids of requests of which one has arrived: the sink has begun, and begins with no later row.

    A request is sent every ``pause_s`` seconds.
    """
    ids: set[str] = set()

    async def has_arrived() -> bool:
        ids.update(await call(gateway.url, 1))
        await asyncio.sleep(pause_s)
        return bool(receiver.accepted)

    await eventually(has_arrived, 2 * WITHIN_S)
    return ids & set(receiver.list_ids())


async def test_a_kill_in_the_middle_of_a_delivery_loses_nothing(tmp_path: Path) -> None:
    async with open_receiver() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        sinks = [receiver.table("traces"), receiver.table("webhook")]
        gateway = GatewayProcess(tmp_path / "data", configure(up, *sinks), patience=4)
        async with gateway:
            await wait_for_begin(gateway, receiver)
            sent: set[str] = set()
            for _ in range(3):
                before = len(receiver.taken)
                receiver.decide = lambda _: 0  # it takes each batch, and the gateway does not learn of that
                sent |= await call(gateway.url, 5)
                await eventually(partial(_has_more, receiver, before), WITHIN_S)
                await gateway.kill()
                receiver.decide = lambda _: 200
                await gateway.start()

            async def has_all() -> bool:
                rows = {t.request_id for t in receiver.accepted if "started_at" in t.values}
                spans = {t.request_id for t in receiver.accepted if "traceId" in t.values}
                return sent <= rows and sent <= spans

            await eventually(has_all, WITHIN_S)
            rows, _ = await gateway.read_rows()
        spans = {taken.request_id: taken.values["spanId"] for taken in receiver.taken if "traceId" in taken.values}
        assert len(set(spans.values())) == len(spans)
        assert len(receiver.keys) == len(spans) + len(
            {t.request_id for t in receiver.taken if "started_at" in t.values}
        )
        assert sent <= {row.id for row in rows}


async def _has_more(receiver: SinkReceiver, count: int) -> bool:
    return len(receiver.taken) > count


async def test_of_two_nodes_one_delivers_the_rows_of_both_and_the_other_goes_on_when_it_is_lost(
    tmp_path: Path, shared_postgres: SharedPostgres
) -> None:
    url = await shared_postgres.empty()
    async with open_receiver() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        async with start_nodes(tmp_path, [url] * 2, configure(up, receiver.table("traces"))) as nodes:
            await wait_for_begin(nodes[0], receiver)
            sent = set().union(*await asyncio.gather(*(call(node.url, 20) for node in nodes)))
            await eventually(lambda: _has_accepted(receiver, sent), WITHIN_S)
            receiver.decide = lambda _: 0
            sent |= set().union(*await asyncio.gather(*(call(node.url, 5) for node in nodes)))
            await eventually(lambda: _has_stored(nodes[0], sent), WITHIN_S)  # else some are in a journal on its disk
            leader = await find_leader(url, nodes)
            await nodes[leader].kill()
            receiver.decide = lambda _: 200
            sent |= await call(nodes[1 - leader].url, 5)
            await eventually(lambda: _has_accepted(receiver, sent), WITHIN_S)
        assert len(receiver.keys) == len(set(receiver.list_ids()))


async def _has_stored(gateway: GatewayProcess, ids: set[str]) -> bool:
    rows, _ = await gateway.read_rows()
    return ids <= {row.id for row in rows}


async def _has_accepted(receiver: SinkReceiver, ids: set[str]) -> bool:
    return ids <= set(receiver.list_accepted_ids())


def say(text: str) -> dict[str, Any]:
    return {**HELLO, "messages": [{"role": "user", "content": text}]}


async def ask_node(node: GatewayProcess, text: str) -> str:
    """The id of a request."""
    async with open_caller(KEY) as caller, caller.post(f"{node.url}/v1/chat/completions", json=say(text)) as response:
        assert response.status == 200
        await response.read()
        return response.headers["X-Request-Id"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_bodies_of_every_node_are_delivered_read_and_deleted_at_any_node(
    tmp_path: Path, shared_postgres: SharedPostgres, kind: str
) -> None:
    url = await shared_postgres.empty()
    async with (
        open_place(kind, tmp_path) as place,
        open_receiver() as receiver,
        ScriptedUpstream([answer(COMPLETION)]) as up,
    ):
        tables = {
            **configure(up, receiver.table("traces", fields="full")),
            "store": {"url": url, "master_key": MASTER_KEY, "bodies_url": place.url},
            "requests": {"keep_bodies": "all"},
        }
        async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
            await wait_for_begin(nodes[0], receiver, 2.0)  # rows with bodies wait for half a minute
            texts = {await ask_node(node, f"{MARKER} {number}"): number for number, node in enumerate(nodes)}
            await eventually(lambda: _has_accepted(receiver, set(texts)), 2 * WITHIN_S)
            delivered = {
                taken.request_id: str(taken.values.get("gen_ai.input.messages")) for taken in receiver.accepted
            }
            assert [f"{MARKER} {number}" in delivered[request_id] for request_id, number in texts.items()] == [True] * 2
            for node in nodes:
                for request_id, number in texts.items():
                    shown = await node.ask(f"requests/{request_id}/body")
                    assert f"{MARKER} {number}" in shown["bodies"][0]["content"]
            search: dict[str, Any] = {"master": SecretBox(bytes.fromhex(MASTER_KEY)), "request_ids": list(texts)}
            assert place.find(MARKER, **search)
            deleted = await nodes[1].ask("bodies/delete", {"account": "acme"})
            assert deleted["pending"] == 0
            assert place.find(MARKER, **search) == []
