"""A ring at one node is heard at the others, many of them in one message, and never at its own."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import pytest

from gateway.cluster.membership.notifications import MAX_BYTES, NodeNotifications, build_messages
from gateway.cluster.membership.session import NodeSession
from gateway.domain.node import Node
from gateway.errors import StoreUnavailable
from gateway.storage.postgres.address import Address
from tests.support.postgres import SharedPostgres


async def test_rings_reach_other_nodes_over_the_database(shared_postgres: SharedPostgres) -> None:
    url = await shared_postgres.empty()
    rings = [NodeNotifications(letter * 16) for letter in "ab"]
    sessions = [
        NodeSession(Address(url), Node(letter * 16), each.receive) for letter, each in zip("ab", rings, strict=True)
    ]
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def note(node: str, job: str) -> None:
        heard.put_nowait((node, job))

    for name, session, each in zip("ab", sessions, rings, strict=True):
        each.subscribe("job", partial(note, name))
        await session.acquire()
    running = asyncio.create_task(rings[0].run(sessions[0].notify))
    try:
        for number in range(400):
            rings[0].publish("job", f"video_{number:032}")
        rings[0].publish("job", "video_" + "0" * 32)
        async with asyncio.timeout(20):
            seen = [await heard.get() for _ in range(400)]
        assert seen == [("b", f"video_{number:032}") for number in range(400)]
        await asyncio.sleep(0)
        assert heard.empty()
    finally:
        running.cancel()
        for session in sessions:
            await session.close()


async def test_what_is_rung_at_once_goes_out_together_and_what_fails_is_dropped() -> None:
    sent: list[tuple[float, Sequence[str]]] = []

    async def send(messages: Sequence[str]) -> None:
        sent.append((time.monotonic(), messages))
        if len(sent) == 1:
            raise StoreUnavailable("not now")

    notifications = NodeNotifications("me")
    running = asyncio.create_task(notifications.run(send))
    for batch in (("a", "b", "a"), ("c",)):
        count = len(sent)
        for name in batch:
            notifications.publish("job", name)
        async with asyncio.timeout(20):
            while len(sent) == count:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.001)
    running.cancel()
    assert [messages for _, messages in sent] == [["me\njob a\njob b"], ["me\njob c"]]


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_messages_are_short_enough_and_whole(count: int) -> None:
    rings = [("kind", f"{number:064}") for number in range(count)]
    messages = build_messages("n" * 16, rings)
    assert all(len(message) <= MAX_BYTES for message in messages)
    heard: list[tuple[str, str]] = []
    node = NodeNotifications("other")
    node.subscribe("kind", lambda name: heard.append(("kind", name)))
    for message in messages:
        node.receive(message)
    assert heard == rings
