"""Notifications between nodes: they wake workers and requests that follow a job, and pass on cancellations.

A notification may be lost, so code that waits for one also polls.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from gateway.errors import StoreUnavailable

PAUSE_S = 0.05
"""How long a notification waits for others to share its commit: on the server, such commits wait for each other."""
MAX_BYTES = 7_900
"""Limit of a message; PostgreSQL allows fewer than 8,000."""
MEMBERS = "members"
"""The kind that this node delivers to itself when nodes join or leave."""

Notification = tuple[str, str]
"""A kind of event, and the name of its subject; neither contains a space or a line end."""


class NodeNotifications:
    """Publishes notifications to the other nodes, and delivers those received from them.

    ``node``: the id of this node. The database also sends this node its own notifications, which are dropped.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._handlers: defaultdict[str, list[Callable[[str], object]]] = defaultdict(list)
        self._unsent_notifications: dict[Notification, None] = {}
        self._pending_event = asyncio.Event()

    def subscribe(self, kind: str, handler: Callable[[str], object]) -> None:
        self._handlers[kind].append(handler)

    def publish(self, kind: str, name: str = "") -> None:
        """Notify the other nodes in the background, together with what is published within ``PAUSE_S``."""
        self._unsent_notifications[kind, name] = None
        self._pending_event.set()

    def deliver(self, kind: str, name: str = "") -> None:
        for handler in self._handlers.get(kind, ()):
            handler(name)

    def receive(self, message: str) -> None:
        sender, *notifications = message.split("\n")
        if sender != self._node:
            for notification in notifications:
                self.deliver(*notification.split(" ", 1))

    async def run(self, send: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        while True:
            await self._pending_event.wait()
            await asyncio.sleep(PAUSE_S)
            self._pending_event.clear()
            notifications, self._unsent_notifications = self._unsent_notifications, {}
            try:
                await send(build_messages(self._node, notifications))
            except StoreUnavailable:
                continue  # the notifications are lost: the node has no connection


def build_messages(node: str, notifications: Iterable[Notification]) -> list[str]:
    """Return ``notifications`` of the sender ``node`` in as few messages as ``MAX_BYTES`` allows."""
    messages: list[str] = []
    message = node
    for kind, name in notifications:
        line = f"\n{kind} {name}"
        if len(message) + len(line) > MAX_BYTES:
            messages.append(message)
            message = node
        message += line
    return [*messages, message]
