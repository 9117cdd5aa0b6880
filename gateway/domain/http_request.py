"""Requests to providers, what similar requests share, and the credentials for access tokens."""

from collections.abc import Callable

import attrs

from gateway.domain.channel import DEFAULT_TIMEOUTS, Channel, Timeouts
from gateway.domain.upload import Content
from gateway.frozen import quick_frozen


@attrs.define(eq=False)
class RequestTemplate:
    """The URL and headers that similar requests over a channel share.

    ``head`` is what the HTTP client has built from them; None before the first request.
    """

    channel: Channel
    url: str
    headers: dict[str, str] = attrs.field(repr=False)
    head: object = attrs.field(default=None, repr=False)


@quick_frozen
class TokenGrant:
    """Client credentials for which an OAuth server (``url``) issues access tokens (RFC 6749, section 4.4)."""

    url: str
    client_id: str
    client_secret: str = attrs.field(repr=False)
    scope: str


@quick_frozen
class HttpRequest:
    """One HTTP request to a provider.

    Attributes:
        body: the body; None if the request has none.
        proxy: the proxy of the channel.
        once: whether the request must not be sent twice, even if its connection breaks.
        template: the template that similar requests share; None if ``url`` and ``headers`` belong to this one alone.
        on_written: called when the whole request is written. From then on, the provider may act on it.
        exact: whether ``url`` is sent without normalizing, because a signature covers it.
        grant: the credentials for an access token, which ``upstream/access_tokens.py`` adds; None if ``headers`` are
            complete.
    """

    method: str
    url: str
    headers: dict[str, str] = attrs.field(repr=False)
    body: bytes | Content | None = attrs.field(default=None, repr=False)
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    proxy: str | None = attrs.field(default=None, repr=False)
    once: bool = False
    on_written: Callable[[], None] | None = attrs.field(default=None, repr=False, eq=False)
    template: RequestTemplate | None = attrs.field(default=None, repr=False, eq=False)
    exact: bool = False
    grant: TokenGrant | None = attrs.field(default=None, repr=False)
