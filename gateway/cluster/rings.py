"""Wakes at other nodes what waits there: workers, and requests that follow a job.

A ring that is lost costs time and nothing else: what waits also looks from time to time.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from gateway.errors import StoreUnavailable

PAUSE_S = 0.05
"""What is rung in this time goes out in one commit: the commits of rings of all nodes wait for each other."""
MAX_BYTES = 7_900
"""Of one message; PostgreSQL allows fewer than 8,000."""
MEMBERS = "members"
"""Rings at this node when nodes have joined or left."""

Ring = tuple[str, str]
"""What kind of thing has happened, and to what; neither has a space or a line end."""


class Rings:
    """Sends rings to the other nodes and passes on theirs.

    Args:
        node: the id of this node, whose own rings come back.
        send: notifies all nodes of some messages; may raise ``StoreUnavailable``.
    """

    def __init__(self, node: str, send: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._node = node
        self._send = send
        self._heard_by: defaultdict[str, list[Callable[[str], object]]] = defaultdict(list)
        self._waiting: dict[Ring, None] = {}
        self._rung = asyncio.Event()

    def subscribe(self, kind: str, hear: Callable[[str], object]) -> None:
        """Call ``hear`` with the name of each ring of that kind."""
        self._heard_by[kind].append(hear)

    def ring(self, kind: str, name: str = "") -> None:
        """Wake the other nodes, in a moment."""
        self._waiting[kind, name] = None
        self._rung.set()

    def hear(self, kind: str, name: str = "") -> None:
        """Wake what waits at this node."""
        for hear in self._heard_by.get(kind, ()):
            hear(name)

    def receive(self, message: str) -> None:
        """Take a message of some node."""
        sender, *rings = message.split("\n")
        if sender != self._node:
            for ring in rings:
                self.hear(*ring.split(" ", 1))

    async def run(self) -> None:
        """Send what is rung, for ever."""
        while True:
            await self._rung.wait()
            await asyncio.sleep(PAUSE_S)
            self._rung.clear()
            rings, self._waiting = self._waiting, {}
            try:
                await self._send(build_messages(self._node, rings))
            except StoreUnavailable:
                continue  # they are lost: the node is out of touch


def build_messages(node: str, rings: Iterable[Ring]) -> list[str]:
    """Return ``rings`` in as few messages as their length allows."""
    messages: list[str] = []
    message = node
    for kind, name in rings:
        line = f"\n{kind} {name}"
        if len(message) + len(line) > MAX_BYTES:
            messages.append(message)
            message = node
        message += line
    return [*messages, message]
