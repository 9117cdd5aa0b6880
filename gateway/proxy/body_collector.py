"""The interface of what collects the bodies of a request that are kept."""

from typing import Protocol

from gateway.errors import GatewayError


class BodyCollector(Protocol):
    """Collects the bodies of a request that are kept.

    Attributes:
        error: the error with which the request ended; None: none, or the request runs.
    """

    error: GatewayError | None

    def note_request(self, body: bytes | bytearray) -> None:
        """Take the request's body. Later calls change nothing."""

    def note_answer(self, body: bytes, media_type: str) -> None:
        """Take a complete answer."""

    def drop_of(self, end_user: str) -> None:
        """Keep nothing if the request is now made for ``end_user``, the name of a forgotten user."""

    def close(self) -> None:
        """Have the bodies written. Call this once, after the settlement."""
