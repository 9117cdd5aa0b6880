"""The upstream port: send a plan, get a reply at its headers, then read it whole or have it pushed.

The push is synchronous, so that a streamed piece costs no task switch: ``pump`` calls ``sink(piece)`` for each one
until the body ends or the sink says it has enough for now (a first event to look at, a slow reader to wait for, the
end mark). A reply that is not being pumped does not read on from its provider.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.domain.fault import UpstreamFault
from gateway.domain.plan import Plan

Sink = Callable[[bytes], bool]
"""Takes one piece; True asks ``pump`` to return."""


class Pumped(enum.Enum):
    """Why ``pump`` returned."""

    ENDED = "ended"
    """The body has ended at the transport; whether the *dialect* was complete is the gate's question."""
    PAUSED = "paused"
    """The sink had enough; call ``pump`` again to go on."""


class Reply(Protocol):
    """A provider's answer from its headers on. Not closed, it holds a connection: always ``close`` it."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, case-insensitive."""
        ...

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises ``UpstreamError`` where it breaks or is over ``limit`` bytes, ``UpstreamTimeout``."""
        ...

    async def pump(self, sink: Sink) -> Pumped:
        """Push pieces into ``sink``. Raises ``UpstreamError`` where the body breaks, or what ``abort`` was given."""
        ...

    def abort(self, fault: UpstreamFault) -> None:
        """Break the connection; a ``read`` or ``pump`` under way raises ``fault``."""
        ...

    def finish(self) -> None:
        """The dialect is complete: the connection may be used again once the transport's end has come too."""
        ...

    def close(self) -> None:
        """Done with the reply. A body read to its end gives its connection back, any other breaks it."""
        ...


class Upstream(Protocol):
    """The way out."""

    async def send(self, plan: Plan) -> Reply:
        """Send and wait for the headers. Raises ``UpstreamError``, or ``UpstreamTimeout``.

        Redirects are not followed. A reused connection that closed before any byte of an answer is replaced once by
        a fresh one, silently. The wait for headers is not bounded here but for ``connect_s`` and ``total_s``: the
        relay knows what it waits for.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class Fetcher(Protocol):
    """The way to files that a provider names by their URL, which nobody of ours chose."""

    async def fetch(
        self, url: str, *, trusted_origin: str | None, proxy: str | None, limit_bytes: int, timeout_s: float
    ) -> bytes:
        """The whole file.

        Args:
            url: as the provider wrote it.
            trusted_origin: the channel's own base URL, whose scheme, host and port its operator chose: what lies there
                is fetched wherever it is. None: nothing is trusted.
            proxy: the channel's own, or None.
            limit_bytes: what is larger is not read.
            timeout_s: for everything together, redirects and the body too.

        Raises ``UpstreamError``, or ``UpstreamTimeout``; neither says an address.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
