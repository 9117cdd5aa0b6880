"""The interface of the client's end of a stream, which ``server/stream_response.py`` implements."""

from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError


class ClientStream(Protocol):
    """One streamed answer. After ``open`` no other status can be sent."""

    @property
    def full(self) -> bool:
        """Whether the client reads more slowly than it is written to: ``drain`` before the next ``write``."""
        ...

    def open(self, media_type: str, data: bytes) -> None:
        """Send the status, the headers and the first bytes. Raises ``ClientDisconnected``."""
        ...

    def write(self, data: bytes, framed: bytes | None = None) -> bool:
        """Send data without waiting, and return ``full``. Does nothing once the client has left.

        ``framed`` is the same data with the chunked framing in which it arrived (RFC 9112, 7.1), if that is known.
        """
        ...

    async def drain(self) -> None:
        """Wait until the client has read. Raises ``ClientDisconnected`` if it has left or does not read in time."""
        ...

    def note_page(self, error: GatewayError) -> None:
        """Set the address of the page about an error that ends the stream."""
        ...

    def wake(self) -> None:
        """End the wait in ``drain``: the stream has been aborted."""
        ...

    def leave(self, most_bytes: int, give_up: Callable[[], None]) -> None:
        """Drop what is written from now on, because the client has left and the answer is read to its end.

        No method raises ``ClientDisconnected`` any more. ``give_up`` is called after more than ``most_bytes``.
        """
        ...

    async def finish(self, data: bytes) -> None:
        """Send the last bytes and end the answer. Raises ``ClientDisconnected``."""
        ...

    def cut(self) -> None:
        """Close the connection, so that the client sees that the answer is incomplete."""
        ...
