"""Towards the caller: what the relay writes a stream into. The doors implement it."""

from collections.abc import Callable
from typing import Protocol


class ClientStream(Protocol):
    """One streamed answer. ``open`` is the line of no return: after it nothing can be answered otherwise."""

    @property
    def full(self) -> bool:
        """Whether the caller reads more slowly than it is written to; ``drain`` before writing on."""
        ...

    def open(self, media_type: str, data: bytes) -> None:
        """Send the status, the headers and the first piece of a stream. Raises ``ClientDisconnected``."""
        ...

    def write(self, data: bytes, framed: bytes | None = None) -> bool:
        """Send a piece, framed, without waiting; nothing happens once the caller is gone. True where it is ``full``.

        ``framed``: the same in the chunks in which it came (RFC 9112, 7.1), which then need not be made anew.
        """
        ...

    async def drain(self) -> None:
        """Wait until the caller has read. Raises ``ClientDisconnected`` where it left or did not read in time."""
        ...

    def wake(self) -> None:
        """Whoever waits in ``drain`` does so no longer: there will be no more to write than an end."""
        ...

    def leave(self, most_bytes: int, give_up: Callable[[], None]) -> None:
        """The client has left, and the answer is read to its end: what is written from now on goes nowhere.

        Nothing raises ``ClientDisconnected`` any more. ``give_up`` is called once more than ``most_bytes`` have been
        written.
        """
        ...

    async def finish(self, data: bytes) -> None:
        """Send what is left, and end the answer. Raises ``ClientDisconnected``."""
        ...

    def cut(self) -> None:
        """Break the answer off, so that its reader notices that it is not whole."""
        ...
