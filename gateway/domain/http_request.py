"""What is to be sent to a provider: the parcel that goes out of the house."""

from collections.abc import Callable

import attrs

from gateway.domain.channel import DEFAULT_TIMEOUTS, Timeouts
from gateway.domain.frozen import frozen
from gateway.domain.upload import Content


@frozen
class HttpRequest:
    """One HTTP request to a provider. ``body`` None sends none; ``proxy`` is the channel's own.

    ``once``: it must not be sent twice, whatever becomes of its connection.
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
