"""What a call leaves behind: the parcels of its way through the house, and the row that is written from them."""

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from gateway.domain.call import Call, Operation
from gateway.domain.caller import Caller
from gateway.domain.fault import Fault
from gateway.domain.quota import Charge
from gateway.domain.request import ANSWERED, Ending, RequestRow, Tried, write_error, write_tried
from gateway.domain.usage import NO_USAGE, Usage
from gateway.flow.attempt import Attempt, Option

CLIENT_CLOSED_STATUS = 499
"""The status of a row whose caller left before it was answered; no caller ever sees it."""
INTERRUPTED_STATUS = 500
"""The status of a row whose call was cut off by a stop or a crash; what its caller saw of it is not known."""


@attrs.frozen
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
    """

    option: Option | None = None
    attempts: int = 0
    tried: list[Tried] = attrs.Factory(list)
    began_at: float = 0.0
    usage: Usage = NO_USAGE
    first_byte_at: float | None = None
    upstream_s: float = 0.0

    def begin(self, attempt: Attempt, now: float) -> None:
        """An attempt is made."""
        self.option = attempt.option
        self.attempts += 1
        self.began_at = now

    def note_failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        """It has failed, and nothing of it was sent."""
        ms = round((now - self.began_at) * 1000)
        self.tried.append(Tried(attempt.channel.name, fault.public_code or fault.code, ms))


@attrs.frozen
class Outcome:
    """How a request ended. ``fault`` None is a success; ``now`` is loop time, ``now_ms`` Unix time."""

    ending: Ending
    now: float
    now_ms: int
    fault: Fault | None = None


NOTHING_CHARGED = Charge(0, 0)
_STATUS: Mapping[Ending, int] = MappingProxyType(
    {"client_closed": CLIENT_CLOSED_STATUS, "interrupted": INTERRUPTED_STATUS},
)
_OUTCOME: Mapping[Ending, str] = MappingProxyType({"completed": ANSWERED})
_SILENT = Delivery()


def write_row(
    arrival: Arrival,
    call: Call | None,
    outcome: Outcome,
    *,
    delivery: Delivery = _SILENT,
    charge: Charge = NOTHING_CHARGED,
    reserved_nanos: int = 0,
) -> RequestRow:
    """The row of a request that has ended; ``call`` None: its body was never read."""
    first, usage, option, fault = delivery.first_byte_at, delivery.usage, delivery.option, outcome.fault
    account, key = arrival.caller.account, arrival.caller.key
    return RequestRow(
        *(arrival.id, arrival.started_ms, outcome.now_ms, arrival.operation),
        *(account.id, account.name, key.id, key.name),
        model=call.model if call else "",
        channel=option.line.channel.name if option else None,
        status=200 if first is not None else _read_status(outcome),
        ending=outcome.ending,
        error_code=fault.public_code if fault else None,
        stream=call.stream if call else False,
        attempts=delivery.attempts,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        usage_source=usage.source,
        cost_nanos=charge.cost_nanos,
        reserved_nanos=reserved_nanos,
        overrun_nanos=charge.overrun_nanos,
        first_byte_ms=None if first is None else round((first - arrival.started_at) * 1000),
        total_ms=round((outcome.now - arrival.started_at) * 1000),
        client_request_id=arrival.client_request_id,
        tried=_write_trail(delivery, outcome) if delivery.attempts > 1 else "",
        images=usage.images,
        duration_ms=usage.duration_ms,
        characters=usage.characters,
        error=write_error(fault.message) if fault else "",
    )


def _write_trail(delivery: Delivery, outcome: Outcome) -> str:
    """Every attempt of a call that took several, the last one with how the call ended."""
    tried = list(delivery.tried)
    if delivery.option is not None and len(tried) < delivery.attempts:
        fault = outcome.fault
        code = fault.public_code or fault.code if fault else _OUTCOME.get(outcome.ending, outcome.ending)
        tried.append(Tried(delivery.option.channel.name, code, round((outcome.now - delivery.began_at) * 1000)))
    return write_tried(tried)


def write_attempts(delivery: Delivery) -> dict[str, str]:
    """The headers that say how many attempts an answer took, and what became of those before it.

    Channels have no names there: which providers stand behind the gateway is not the caller's business.
    """
    headers = {"x-gateway-attempts": str(delivery.attempts)}
    if delivery.tried:
        headers["x-gateway-tried"] = ", ".join(f"{one.outcome};ms={one.ms}" for one in delivery.tried)
    return headers


def write_interrupted(arrival: Arrival, call: Call, option: Option | None, reserved_nanos: int) -> RequestRow:
    """The row of a call that is about to be made, for if nothing more should ever be heard of it."""
    outcome = Outcome("interrupted", arrival.started_at, arrival.started_ms)
    return write_row(arrival, call, outcome, delivery=Delivery(option, 1), reserved_nanos=reserved_nanos)


def _read_status(outcome: Outcome) -> int:
    if outcome.fault is not None:
        return outcome.fault.status
    return _STATUS.get(outcome.ending, 200)
