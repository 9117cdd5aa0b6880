"""What is to be sent to a provider: the parcel that goes out of the house."""

from collections.abc import Callable

import attrs

from gateway.domain.channel import DEFAULT_TIMEOUTS, Channel, Timeouts
from gateway.domain.frozen import frozen
from gateway.domain.upload import Content


@attrs.define(eq=False)
class RequestTemplate:
    """The URL and headers that all requests of one kind share over a channel.

    Attributes:
        head: the request head that the HTTP client has built from these; None until it has.
    """

    channel: Channel
    url: str
    headers: dict[str, str] = attrs.field(repr=False)
    head: object = attrs.field(default=None, repr=False)


@frozen
class HttpRequest:
    """One HTTP request to a provider. ``body`` None sends none; ``proxy`` is the channel's own.

    ``once``: it must not be sent twice, whatever becomes of its connection.
    ``template``: what has the same ``url``, ``headers`` and ``proxy`` for every request; None if they are this one's.
    ``on_written``: called when all of it has been given to the connection: from then on the provider may do it.
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
