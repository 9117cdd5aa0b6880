"""The interface for writing a stream to the client. ``server/responses.py`` implements it for HTTP."""

from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError


class ClientStream(Protocol):
    """One streamed answer to a client. After ``open`` the status cannot change."""

    @property
    def full(self) -> bool:
        """Whether the write buffer is full: call ``drain`` before the next ``write``."""
        ...

    def open(self, media_type: str, data: bytes) -> None:
        """Send the head and ``data``; only ``data`` if a comment was sent before, while the request waited."""
        ...

    def write(self, data: bytes, framed: bytes | None = None) -> bool:
        """Send data without waiting, and return ``full``. No-op once the client has disconnected.

        ``framed``: the same data with its original chunked framing (RFC 9112, 7.1), if known.
        """
        ...

    async def drain(self) -> None:
        """Wait until the client has read. Raises ``ClientDisconnected`` if it disconnects or does not read in time."""
        ...

    def add_doc_url(self, error: GatewayError) -> None: ...

    def wake(self) -> None:
        """End the wait in ``drain``: the stream has been aborted."""
        ...

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        """Discard all further writes: the client has disconnected while the answer is read to its end.

        From then on no method raises ``ClientDisconnected``. ``give_up`` is called after more than ``max_bytes``.
        """
        ...

    async def finish(self, data: bytes) -> None: ...

    def abort(self) -> None:
        """Break the connection, which shows the client that the answer is incomplete."""
        ...
