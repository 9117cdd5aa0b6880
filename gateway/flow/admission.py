"""Room 3: may this caller make this call? The answer is a Grant, the third parcel."""

import attrs

from gateway.domain.call import Call
from gateway.domain.caller import Caller
from gateway.domain.price import ONE_PPM, Price, PriceList
from gateway.domain.usage import NO_USAGE, Usage


@attrs.define
class Delivery:
    """What became of a granted call; the relay alone writes here. Times are of the event loop's clock, in seconds."""

    channel: str | None = None
    model: str | None = None
    multiplier_ppm: int = ONE_PPM
    attempts: int = 0
    usage: Usage = NO_USAGE
    first_byte_at: float | None = None
    upstream_s: float = 0.0


@attrs.frozen
class Grant:
    """Leave to call, with the price under which it was given."""

    caller: Caller
    call: Call
    price: Price | None
    delivery: Delivery = attrs.Factory(Delivery)


def admit(caller: Caller, call: Call, prices: PriceList) -> Grant:
    """Check the caller's restrictions and grant the call. Raises ``ModelNotAllowed``."""
    caller.check_model(call.model)
    return Grant(caller, call, prices.find(call.model))
