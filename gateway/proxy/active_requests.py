"""The requests under way: a list of them, and the way to cancel one.

A request is registered when it begins and removed when it is settled. Nothing is updated in between: its progress is
read from its own state on demand.
"""

from itertools import islice
from typing import Any, Literal, Protocol

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import NotFound
from gateway.request_context import Arrival, Delivery

Phase = Literal["reading", "waiting", "streaming"]
"""The body is being read; the request waits for a provider; the client is being answered."""
MOST_LISTED = 1_000
"""Maximum length of a list: the oldest requests."""

Fields = dict[str, Any]


class ActiveRequest(Protocol):
    """One request, as its handler knows it."""

    @property
    def arrival(self) -> Arrival:
        """Its id, caller and start."""
        ...

    @property
    def call(self) -> InferenceRequest | None:
        """The parsed body; None before it has been read."""
        ...

    @property
    def delivery(self) -> Delivery | None:
        """Its attempts; None before the quota has been reserved."""
        ...

    @property
    def address(self) -> str | None:
        """The client's IP address; None if it has left."""
        ...

    def leave(self) -> bool:
        """Handle that the client has left. Return whether the request goes on, to be charged for its reported usage."""
        ...

    def cancel(self) -> bool:
        """Cancel it; False if it has been cancelled before. Raises ``Conflict`` if it can no longer be cancelled."""
        ...


class ActiveRequests:
    """Every request under way by its id, the oldest first."""

    def __init__(self) -> None:
        self.calls: dict[str, ActiveRequest] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def get(self, request_id: str, actor: Actor) -> ActiveRequest:
        """Return a request that ``actor`` may see. Raises ``NotFound``, also for one of another account."""
        found = self.calls.get(request_id)
        if found is None or not actor.may_see(found.arrival.caller.account.id):
            raise NotFound(f"No request under way has the id {request_id[:64]!r}", should_retry=False)
        return found

    def list_calls(self, scope: int | None, now: float) -> list[Fields]:
        """Return the requests of the account ``scope``, or of all accounts; ``now`` is loop time."""
        wanted = (one for one in self.calls.values() if scope is None or one.arrival.caller.account.id == scope)
        return [build_call(one, now, whole=scope is None) for one in islice(wanted, MOST_LISTED)]


def build_call(one: ActiveRequest, now: float, *, whole: bool) -> Fields:
    """Return the fields of a request. ``whole``: with those for the operator alone, the channel and the address."""
    arrival, call, delivery = one.arrival, one.call, one.delivery
    option = delivery.option if delivery else None
    return {
        "id": arrival.id,
        "account": arrival.caller.account.name,
        "key_name": arrival.caller.key.name,
        "model": call.model if call else "",
        "operation": arrival.operation,
        "stream": call.stream if call else False,
        "started_at": build_time(arrival.started_ms // 1000),
        "running_ms": round((now - arrival.started_at) * 1000),
        "phase": find_phase(one),
        "channel": option.channel.name if whole and option else None,
        "attempts": delivery.attempts if delivery else 0,
        "address": one.address if whole else None,
    }


def find_phase(one: ActiveRequest) -> Phase:
    """Return the phase of a request."""
    delivery = one.delivery
    if delivery is not None and delivery.first_byte_at is not None:
        return "streaming"
    return "reading" if one.call is None else "waiting"
