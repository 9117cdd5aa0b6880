"""The upstream port: send a plan, get a reply at its headers, then read it whole or have it pushed.

The push is synchronous, so that a streamed piece costs no task switch: ``pump`` calls the sink for each one
until the body ends or the sink says it has enough for now (a first event to look at, a slow reader to wait for, the
end mark). A reply that is not being pumped does not read on from its provider.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from gateway.domain.http_request import HttpRequest
from gateway.errors import Blame, ProviderBadResponse, ProviderError

Sink = Callable[[bytes, bytes | None], bool]
"""Takes ``(payload, raw_chunks)`` and returns True to make ``pump`` return.

``raw_chunks`` is the same data with the chunked framing in which it arrived (RFC 9112, 7.1): it can be forwarded
unchanged. None if it did not arrive as whole chunks, or if the client does not know.
"""


RESEND_WITHIN_S = 0.1
"""After a request was written to a kept connection, how long its end still says that nobody has worked on it: the
provider closed a connection that it took for idle while the request was on its way (RFC 9112, 9.3.1)."""
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""RFC 9110, 9.2.2: such a request may be sent again whatever became of the first."""


class StaleConnection(ProviderBadResponse):
    """A kept connection broke before, or within ``RESEND_WITHIN_S`` after, the request was written, without a byte.

    The request may be sent again over a fresh connection, as an attempt of its own.
    """

    failure_scope: Blame = "nobody"


class PumpResult(enum.Enum):
    """Why ``pump`` returned."""

    ENDED = "ended"
    """The body has ended at the transport; whether the *dialect* was complete is the gate's question."""
    PAUSED = "paused"
    """The sink had enough; call ``pump`` again to go on."""


class HttpResponse(Protocol):
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
        """The whole body. Raises ``ProviderBadResponse`` where it breaks or is over ``limit`` bytes,
        ``ProviderTimeout``.
        """
        ...

    async def pump(self, sink: Sink) -> PumpResult:
        """Push pieces into ``sink``. Raises ``ProviderBadResponse`` where the body breaks, or what ``abort`` was given.

        Where the sink has said that it has enough, that is told, whatever has happened since; and what the sink raises
        is raised here.
        """
        ...

    def abort(self, fault: ProviderError) -> None:
        """Break the connection; a ``read`` or ``pump`` under way raises ``fault``."""
        ...

    def finish(self) -> None:
        """The dialect is complete: the connection may be used again once the transport's end has come too."""
        ...

    def close(self) -> None:
        """Done with the reply. A body read to its end gives its connection back, any other breaks it."""
        ...


class HttpClient(Protocol):
    """The way out."""

    async def send(self, plan: HttpRequest) -> HttpResponse:
        """Send and wait for the headers. Raises ``ProviderBadResponse``, or ``ProviderTimeout``.

        Redirects are not followed. If a kept connection closes before any byte of an answer, an idempotent request is
        sent again over a fresh one; any other is not: ``StaleConnection`` says that the caller may. A plan that is to
        be sent ``once`` takes a fresh connection from the start. The wait for headers is not bounded here except by
        ``connect_s`` and ``total_s``: the relay knows what it waits for.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


@attrs.frozen
class FileRequest:
    """A file that is to be read as it comes.

    Attributes:
        url: as the provider wrote it, or an address on the channel's own server.
        trusted_origin: as of ``Fetcher.fetch``.
        proxy: the channel's own, or None.
        signature: headers for the trusted origin alone: a redirect elsewhere takes none of them along.
        wanted: the ``Range`` header, or None for the whole of it.
        connect_s: for the connection and the headers, redirects included; ``idle_s`` between two pieces.
    """

    url: str = attrs.field(repr=False)
    trusted_origin: str | None
    proxy: str | None = attrs.field(default=None, repr=False)
    signature: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    wanted: str | None = None
    connect_s: float = 30.0
    idle_s: float = 60.0


class FileRefused(ProviderBadResponse):
    """The server of a file answered with a status that no file has: ``answer_status``."""

    def __init__(self, answer_status: int) -> None:
        super().__init__(f"The provider's file was answered with status {answer_status}", phase="headers")
        self.answer_status = answer_status


class FetchedFile(Protocol):
    """A file from its headers on. Not closed, it holds a connection."""

    @property
    def status(self) -> int:
        """200, or 206 or 416 where a range was asked for."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Case-insensitive."""
        ...

    @property
    def length(self) -> int | None:
        """Bytes to come; None where nobody said."""
        ...

    async def read(self) -> bytes:
        """The next piece; empty at the end. No more is read ahead than a few buffers.

        Raises ``ProviderBadResponse`` where it broke off before its end, ``ProviderTimeout`` where nothing came.
        """
        ...

    def close(self) -> None:
        """Done with it."""
        ...


class Fetcher(Protocol):
    """The way to files that a provider names by their URL, which nobody of ours chose; and to callers' webhooks."""

    async def open(self, ask: FileRequest) -> FetchedFile:
        """A file at its headers.

        Raises ``ProviderContentGone`` for 404 and 410, ``FileRefused`` for every other status, or another
        ``ProviderBadResponse``, or ``ProviderTimeout``.
        """
        ...

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
        """Send ``body`` to a stranger's address, and hear the status of the answer. No redirect is followed.

        Raises ``ProviderBadResponse``, or ``ProviderTimeout``; neither says an address. ``EgressRefused`` is what would
        be raised of that URL every time; a name that leads to a private address today may lead elsewhere tomorrow.
        """
        ...

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

        Raises ``ProviderBadResponse``, or ``ProviderTimeout``; neither says an address.
        """
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


async def read_pushed(reply: HttpResponse, limit: int, announced: int | None) -> bytes | None:
    """What ``reply`` pushes until its end; None where it is more than ``limit`` bytes, or said to be ``announced``.

    Raises as ``HttpResponse.pump`` does.
    """
    pieces: list[bytes] = []
    size = 0

    def keep(piece: bytes, _raw: bytes | None) -> bool:
        nonlocal size
        size += len(piece)
        pieces.append(piece)
        return size > limit

    if (announced or 0) > limit or await reply.pump(keep) is PumpResult.PAUSED:
        return None
    return b"".join(pieces)
