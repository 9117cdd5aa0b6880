"""The interface of HTTP clients for providers: send a request, get a response at its headers, read or pump its body.

``pump`` calls the sink synchronously for each piece, which saves a task switch per piece. It returns when the body ends
or the sink pauses (for a first event, a slow reader, an end mark). Without a running ``pump`` no more data is read from
the provider.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from gateway.domain.http_request import HttpRequest
from gateway.errors import FailureScope, ProviderBadResponse, ProviderError
from gateway.frozen import frozen
from gateway.upstream.large_answers import LARGE_BYTES, READING

Sink = Callable[[bytes, bytes | None], bool]
"""Receives ``(payload, raw_chunks)``; returns True to make ``pump`` return.

``raw_chunks``: the same data with its original chunked framing (RFC 9112, 7.1), which can be forwarded unchanged. None
if the data did not arrive as whole chunks, or if the HTTP client does not know.
"""


RESEND_WITHIN_S = 0.1
"""If a reused connection ends this soon after the request was written, the provider has not processed the request: it
closed an idle connection while the request was in transit (RFC 9112, 9.3.1)."""
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Idempotent methods (RFC 9110, 9.2.2): such requests may be sent again."""


class StaleConnection(ProviderBadResponse):
    """A reused connection ended without a response byte, before the provider can have processed the request.

    It ended at most ``RESEND_WITHIN_S`` after the request was written, or before the whole request was sent. The
    request may be sent again over a new connection, as another attempt.
    """

    failure_scope: FailureScope = "nobody"


class PumpResult(enum.Enum):
    """Why ``pump`` returned."""

    ENDED = "ended"
    """The body has ended. Only the stream's transform knows whether the stream is complete."""
    PAUSED = "paused"
    """The sink paused; call ``pump`` again to continue."""


class HttpResponse(Protocol):
    """A provider's response, available once its headers have arrived. Always ``close`` it: it holds a connection."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self, limit: int) -> bytes:
        """Return the whole body.

        Raises ``ProviderBadResponse`` if it breaks off or exceeds ``limit`` bytes, or the error passed to ``abort``.
        """
        ...

    async def pump(self, sink: Sink) -> PumpResult:
        """Pass the body to ``sink`` piece by piece. Return ``PAUSED`` if the sink paused, whatever has happened since.

        Raises the sink's exception, ``ProviderBadResponse`` if the body breaks off, or the error passed to ``abort``.
        """
        ...

    def abort(self, error: ProviderError) -> None:
        """Close the connection; a running ``read`` or ``pump`` raises ``error``."""
        ...

    def finish(self) -> None:
        """Mark the stream as complete. The connection is reused once the response has ended, too."""
        ...

    def close(self) -> None:
        """Release the connection. It is reused if the body has been read to its end, else closed."""
        ...


class HttpClient(Protocol):
    """Sends requests to providers."""

    async def send(self, http_request: HttpRequest) -> HttpResponse:
        """Send a request, and return the response when its headers have arrived. Raises ``ProviderError``.

        Redirects are not followed. If a reused connection ends before any response byte, an idempotent request is sent
        again over a new connection; for other requests see ``StaleConnection``. A request with ``once`` gets a new
        connection. Only ``connect_s`` and ``total_s`` bound the wait for headers. Raises ``StoreUnavailable`` if a file
        of the body cannot be read.
        """
        ...

    async def close(self) -> None: ...


@frozen
class FileRequest:
    """A request for a file that is streamed.

    Attributes:
        url: an address from the provider, or on the channel's own server.
        trusted_origin: see ``SafeFetcher.fetch``.
        proxy: the channel's proxy; None for that of the environment, if there is one.
        signature: headers for the trusted origin only; not sent to the target of a redirect elsewhere.
        byte_range: the ``Range`` header; None for the whole file.
        connect_s: timeout for the connection and the headers, with redirects.
        idle_s: timeout between two pieces.
    """

    url: str = attrs.field(repr=False)
    trusted_origin: str | None
    proxy: str | None = attrs.field(default=None, repr=False)
    signature: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    byte_range: str | None = None
    connect_s: float = 30.0
    idle_s: float = 60.0


class FileRefused(ProviderBadResponse):
    """The server of a file answered with an error status: ``answer_status``."""

    def __init__(self, answer_status: int) -> None:
        super().__init__(f"The provider's file was answered with status {answer_status}", phase="headers")
        self.answer_status = answer_status


class FetchedFile(Protocol):
    """A file, available once its headers have arrived. Always ``close`` it: it holds a connection."""

    @property
    def status(self) -> int:
        """The HTTP status: 200; for a request with a range also 206 or 416."""
        ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def length(self) -> int | None:
        """Bytes of the body; None if the server did not state the length."""
        ...

    async def read(self) -> bytes: ...

    def close(self) -> None: ...


async def read_pushed(response: HttpResponse, limit: int, content_length: int | None) -> bytes | None:
    """Return the whole body; None if the body, or the length in its headers, exceeds ``limit`` bytes."""
    pieces: list[bytes] = []
    size = 0

    def keep_piece(piece: bytes, _raw: bytes | None) -> bool:
        nonlocal size
        size += len(piece)
        pieces.append(piece)
        return size > limit or (size > LARGE_BYTES and not share.resize(size))

    if (content_length or 0) > limit:
        return None
    with READING.open_share() as share:
        while await response.pump(keep_piece) is PumpResult.PAUSED:
            if size > limit:
                return None
            await share.wait()
        return b"".join(pieces)
