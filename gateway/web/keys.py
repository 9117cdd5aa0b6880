"""Typed keys: what rides on the application and on a request."""

from collections.abc import Awaitable, Callable, Sequence

import attrs
from aiohttp import web

from gateway.domain.caller import Caller
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.price import PriceList
from gateway.domain.request import RequestLog, RequestRow
from gateway.flow.administration import Administration
from gateway.flow.auth import Directory
from gateway.flow.models import Catalog
from gateway.flow.relay import Relay
from gateway.flow.settlement import Settlement


@attrs.define
class Gate:
    """Whether new work is let in; closed while the gateway drains."""

    open: bool = True


@attrs.frozen
class Rooms:
    """The rooms a request walks through, built once by the roof."""

    directory: Directory
    catalog: Catalog
    prices: PriceList
    relay: Relay
    settlement: Settlement
    gate: Gate
    clock: Callable[[], float]
    max_body_mb: int


@attrs.frozen
class Office:
    """What the admin API reads and changes."""

    administration: Administration
    catalog: Catalog
    requests: RequestLog
    fetch: Callable[[Channel], Awaitable[Sequence[Listed]]]
    token: str = attrs.field(repr=False)


ROOMS = web.AppKey("rooms", Rooms)
OFFICE = web.AppKey("office", Office)
PROBE: web.AppKey[Callable[[], Awaitable[None]]] = web.AppKey("probe")
"""Raises a fault where the store cannot be written to."""
REQUEST_ID = web.RequestKey("request_id", str)
CALLER = web.RequestKey("caller", Caller)
ROW = web.RequestKey("row", RequestRow)
