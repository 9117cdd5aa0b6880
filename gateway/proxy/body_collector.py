"""The interface through which the bodies of a request are collected, to be kept."""

from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError


class BodyCollector(Protocol):
    """Collects the bodies of a request, to be kept.

    Attributes:
        error: the error with which the request ended; None without one, and while the request runs.
    """

    error: GatewayError | None

    def note_request(self, body: bytes | bytearray) -> None:
        """Take the request's body, unless there is one already."""

    def note_answer(self, body: bytes, media_type: str) -> None:
        """Take a complete answer."""

    def drop_bodies_of(self, covers: Callable[[int, str], bool]) -> None:
        """Keep nothing if ``covers`` returns True for the account's id and the end user of the request."""

    def close(self) -> None:
        """Have the bodies written. Call this once, after the settlement."""
