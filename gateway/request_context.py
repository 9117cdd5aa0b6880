"""What a call leaves behind: the parcels of its way through the house, and the row that is written from them."""

import os
import time
from collections.abc import Mapping
from types import MappingProxyType

import attrs

from gateway.billing.abandoned import may_have_done
from gateway.domain.account import Caller
from gateway.domain.balance import Charge, Reservation
from gateway.domain.frozen import frozen
from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.rate_limit import RateLimitPermit, RateLimitStatus
from gateway.domain.request_log import (
    ANSWERED,
    ID_PREFIX,
    INTERRUPTED_STATUS,
    Ending,
    FailedAttempt,
    RequestRecord,
    RequestStart,
    build_error,
    build_tried,
)
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import GatewayError
from gateway.routing.route import Route
from gateway.routing.target import Attempt, Target

CLIENT_CLOSED_STATUS = 499
"""The status of a row whose caller left before it was answered; no caller ever sees it."""


WARNING_HEADER = "x-gateway-warning"
_ID_MASK = 0xFF_FFFF_FFFF
_ID_BYTES = 7


def make_request_id() -> str:
    """Return ``req_`` and 24 hexadecimal digits: ten of the time in milliseconds, fourteen random ones.

    The database appends ids that grow with time to one end of its index. The random digits are unpredictable because
    the id is also the boundary of multipart forms that the gateway sends to providers.
    """
    return f"{ID_PREFIX}{time.time_ns() // 1_000_000 & _ID_MASK:010x}{os.urandom(_ID_BYTES).hex()}"


@frozen
class Arrival:
    """Who came when: what is known of a request before its body has been read."""

    id: str
    caller: Caller
    operation: Operation
    started_ms: int
    started_at: float
    client_request_id: str | None = None


@attrs.define
class Delivery:
    """What became of a granted call; the relay alone writes here. Times are of the event loop's clock, in seconds.

    Attributes:
        option: the channel of the last attempt, and what it costs.
        attempts: how many there were.
        tried: those that failed before the first byte.
        began_at: when the last one began.
        upstream_s: how long all of them took.
        answered: the model that its provider says has answered, if that may be another than was asked for; empty if it
            does not say.
        response_id: what the provider calls the response that it has made, if it may have stored it.
        attempt: the last one.
        bought: the last one that failed and may have been done all the same.
    """

    option: Target | None = None
    attempts: int = 0
    tried: tuple[FailedAttempt, ...] = ()
    began_at: float = 0.0
    usage: Usage = NO_USAGE
    first_byte_at: float | None = None
    upstream_s: float = 0.0
    answered: str = ""
    response_id: str = ""
    attempt: Attempt | None = None
    bought: Attempt | None = None

    def begin(self, attempt: Attempt, now: float) -> None:
        """An attempt is made."""
        self.attempt = attempt
        self.option = attempt.option
        self.attempts += 1
        self.began_at = now

    def record_failure(self, attempt: Attempt, fault: GatewayError, now: float) -> None:
        """It has failed, and nothing of it was sent."""
        if attempt.pending and may_have_done(fault, now - self.began_at):
            self.bought = attempt
        attempt.pending = False
        ms = round((now - self.began_at) * 1000)
        self.tried += (FailedAttempt(attempt.channel.name, fault.public_code or fault.code, ms),)


@attrs.define(eq=False)
class Grant:
    """Permission to forward a request: the reserved money, and the permit of the rate limits.

    Attributes:
        hold: the reservation.
        turn: the permit; None if the caller has no rate limit, or once it has been given back.
        row: the record of the settled request; None until then.
    """

    call: InferenceRequest
    hold: Reservation
    turn: RateLimitPermit | None = None
    delivery: Delivery = attrs.Factory(Delivery)
    row: RequestRecord | None = None


@attrs.define(eq=False)
class RequestContext:
    """Everything that the middlewares of the server know about one request. Each field has one writer.

    ===============  ===================================================================
    ``id``           ``request_context``
    ``arrival``      ``settle_request``; its caller is read again after a slow body
    ``call``         ``parse_request`` or ``parse_form``; ``quota`` completes it
    ``read_at``      ``parse_request`` or ``parse_form``
    ``route``        ``quota``
    ``grant``        ``quota``; for a video job, the handler that submits it
    ``rate_limits``  ``quota``; ``settle_request`` if they refuse the request
    ``record``       ``settle_request``, or the end of the stream before it
    ``headers``      ``CrossOrigin``, then ``warn``
    ===============  ===================================================================

    Attributes:
        id: ``req_`` and 24 hexadecimal digits.
        arrival: the caller, the operation and the time; set on inference routes only.
        call: the checked body; None before.
        read_at: when the body had been read, in seconds of the monotonic clock.
        route: the channels that may serve it; None before ``quota``.
        grant: what was reserved for it; None before ``quota``.
        rate_limits: how much of its rate limits the caller has left; None if it has none.
        record: how the request was settled; None before.
        headers: further headers of the response.
    """

    id: str
    arrival: Arrival = attrs.field(init=False)
    call: InferenceRequest | None = None
    read_at: float = 0.0
    route: Route | None = None
    grant: Grant | None = None
    rate_limits: RateLimitStatus | None = None
    record: RequestRecord | None = None
    headers: dict[str, str] | None = None

    def warn(self, warning: str) -> None:
        """Add a warning header: a field or header that has no effect, then why. ASCII without commas."""
        headers = self.headers or {}
        before = headers.get(WARNING_HEADER)
        self.headers = {**headers, WARNING_HEADER: f"{before}, {warning}" if before else warning}


@frozen
class Outcome:
    """How a request ended. ``fault`` None is a success; ``now`` is loop time, ``now_ms`` Unix time."""

    ending: Ending
    now: float
    now_ms: int
    fault: GatewayError | None = None


NOTHING_CHARGED = Charge(0, 0)
_STATUS: Mapping[Ending, int] = MappingProxyType(
    {"client_closed": CLIENT_CLOSED_STATUS, "interrupted": INTERRUPTED_STATUS},
)
_OUTCOME: Mapping[Ending, str] = MappingProxyType({"completed": ANSWERED})
_SILENT = Delivery()


def build_row(
    arrival: Arrival,
    call: InferenceRequest | None,
    outcome: Outcome,
    *,
    delivery: Delivery = _SILENT,
    charge: Charge = NOTHING_CHARGED,
    reserved_nanos: int = 0,
) -> RequestRecord:
    """The row of a request that has ended; ``call`` None: its body was never read."""
    usage, option, fault = delivery.usage, delivery.option, outcome.fault
    account, key = arrival.caller.account, arrival.caller.key
    model, stream = (call.model, call.stream) if call else ("", False)
    first_byte_ms, status = None, 200
    if delivery.first_byte_at is None:
        status = _parse_status(outcome)
    else:
        first_byte_ms = round((delivery.first_byte_at - arrival.started_at) * 1000)
    total_ms = round((outcome.now - arrival.started_at) * 1000)
    tried = _build_trail(delivery, outcome) if delivery.attempts > 1 else ""
    error = build_error(fault.message) if fault else ""
    # In the order of the fields: so many arguments with their names take twice the time of the row itself.
    return RequestRecord(
        *(arrival.id, arrival.started_ms, outcome.now_ms, arrival.operation, account.id),
        *(account.name, key.id, key.name, model, option.line.channel.name if option else None),
        *(status, outcome.ending, fault.public_code if fault else None, stream, delivery.attempts),
        *(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.source, charge.cost_nanos),
        *(reserved_nanos, charge.overrun_nanos, first_byte_ms, total_ms, arrival.client_request_id),
        *(tried, usage.images, usage.duration_ms, usage.characters, error),
    )


def _build_trail(delivery: Delivery, outcome: Outcome) -> str:
    """Every attempt of a call that took several, the last one with how the call ended."""
    tried = list(delivery.tried)
    if delivery.option is not None and len(tried) < delivery.attempts:
        fault = outcome.fault
        code = fault.public_code or fault.code if fault else _OUTCOME.get(outcome.ending, outcome.ending)
        tried.append(FailedAttempt(delivery.option.channel.name, code, round((outcome.now - delivery.began_at) * 1000)))
    return build_tried(tried)


def build_attempts(delivery: Delivery) -> dict[str, str]:
    """The headers that say how many attempts an answer took, and what became of those before it.

    Channels have no names there: which providers stand behind the gateway is not the caller's business.
    """
    headers = {"x-gateway-attempts": str(delivery.attempts)}
    if delivery.tried:
        headers["x-gateway-tried"] = ", ".join(f"{one.outcome};ms={one.ms}" for one in delivery.tried)
    return headers


def build_interrupted(
    arrival: Arrival, call: InferenceRequest, option: Target | None, reserved_nanos: int
) -> RequestStart:
    """What is left of a call that is about to be made, if nothing more should ever be heard of it."""
    account, key = arrival.caller.account, arrival.caller.key
    return RequestStart(
        arrival.id,
        arrival.started_ms,
        arrival.operation,
        account.id,
        account.name,
        key.id,
        key.name,
        call.model,
        option.line.channel.name if option else None,
        call.stream,
        reserved_nanos,
        arrival.client_request_id,
    )


def _parse_status(outcome: Outcome) -> int:
    if outcome.fault is not None:
        return outcome.fault.status
    return _STATUS.get(outcome.ending, 200)
