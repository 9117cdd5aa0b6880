"""Typed events: the publisher of an event does not know its consequences."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E")


class Events:
    """Calls the handlers subscribed to an event's type. ``relay`` sends events to the cluster's other nodes."""

    def __init__(self, relay: Callable[[Any], None] | None = None) -> None:
        self._relay = relay
        self._handlers: defaultdict[type, list[Callable[[Any], object]]] = defaultdict(list)

    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> None:
        self._handlers[kind].append(handler)

    def publish(self, event: object) -> None:
        """Call the handlers of this process and, a little later, those of the other nodes."""
        self.deliver(event)
        if self._relay is not None:
            self._relay(event)

    def deliver(self, event: object) -> None:
        """Call the handlers of this process only."""
        for handler in self._handlers.get(type(event), ()):
            handler(event)
