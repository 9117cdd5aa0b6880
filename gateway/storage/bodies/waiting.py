"""The bodies that are in memory: those of running requests, and those that wait to be written."""

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from gateway.domain.kept_body import BodyOwner, BodyPart
from gateway.frozen import frozen

MAX_WAITING_BYTES = 64 * 1024 * 1024


class OpenRequest(Protocol):
    """Collects the bodies of a request that has not ended."""

    def drop_bodies_of(self, covers: Callable[[int, str], bool]) -> None:
        """Keep nothing if ``covers`` returns True for the account's id and the end user of the request."""


@attrs.define(eq=False)
class WaitingMemory:
    """The memory of bodies that wait to be written, and of bodies of running requests, in bytes."""

    limit: int = MAX_WAITING_BYTES
    used: int = 0


@frozen
class WaitingBodies:
    """The bodies of a request that wait to be written. ``build`` returns them; it runs in the writer's thread."""

    owner: BodyOwner
    size: int
    build: Callable[[], Sequence[BodyPart]]
