"""A request to a provider."""

from collections.abc import Callable

import attrs

from gateway.domain.channel import DEFAULT_TIMEOUTS, Channel, Timeouts
from gateway.domain.upload import Content
from gateway.frozen import quick_frozen


@attrs.define(eq=False)
class RequestTemplate:
    """The URL and headers that all requests of one kind share over a channel.

    ``head``: the request head that the HTTP client has built from these; None until it has.
    """

    channel: Channel
    url: str
    headers: dict[str, str] = attrs.field(repr=False)
    head: object = attrs.field(default=None, repr=False)


@quick_frozen
class TokenGrant:
    """Client credentials for which an OAuth server issues access tokens (RFC 6749, section 4.4).

    ``url``: the token endpoint.
    """

    url: str
    client_id: str
    client_secret: str = attrs.field(repr=False)
    scope: str


@quick_frozen
class HttpRequest:
    """One HTTP request to a provider. ``body`` None sends none; ``proxy`` is the channel's own.

    Attributes:
        once: it must not be sent twice, even if its connection breaks.
        template: the same ``url``, ``headers`` and ``proxy`` of every such request; None if only this one has them.
        on_written: called when all of it is written to the connection; from then on the provider may act on it.
        exact: ``url`` is sent as it is, and not normalized: a signature covers it.
        grant: it needs an access token, which ``upstream/access_tokens.py`` adds; None if ``headers`` are complete.
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
