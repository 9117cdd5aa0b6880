"""The calls under way: which there are, how far each has come, and how one is ended by somebody else than its caller.

A call is entered when it begins and taken out when it is settled, and nothing is done for it in between: how far it has
come is read from what it carries with it, when somebody asks.
"""

from itertools import islice
from typing import Any, Literal, Protocol

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import NotFound
from gateway.request_context import Arrival, Delivery

Phase = Literal["reading", "waiting", "streaming"]
"""Its body is being read; it waits for its turn and for a provider; its caller is being answered."""
MOST_LISTED = 1_000
"""The longest under way of them. With more, nobody reads a list."""

Fields = dict[str, Any]


class ActiveRequest(Protocol):
    """One call, as whoever walks it through the rooms knows it."""

    @property
    def arrival(self) -> Arrival:
        """Who came when."""
        ...

    @property
    def call(self) -> InferenceRequest | None:
        """What is asked for; None until its body has been read."""
        ...

    @property
    def delivery(self) -> Delivery | None:
        """What has become of it; None until it has been granted."""
        ...

    @property
    def address(self) -> str | None:
        """Where its caller called from."""
        ...

    def leave(self) -> bool:
        """Its client has left: whether it goes on all the same, for what its provider says at the end."""
        ...

    def cancel(self) -> bool:
        """End it; False where somebody has done so before. Raises ``Conflict`` where it can no longer be ended."""
        ...


class ActiveRequests:
    """Every call under way, by its request's id, in the order in which they came."""

    def __init__(self) -> None:
        self.calls: dict[str, ActiveRequest] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def get(self, request_id: str, actor: Actor) -> ActiveRequest:
        """One that ``actor`` may see. Raises ``NotFound``: it has ended, or never was, or is another account's."""
        found = self.calls.get(request_id)
        if found is None or not actor.may_see(found.arrival.caller.account.id):
            raise NotFound(f"No request under way has the id {request_id[:64]!r}", should_retry=False)
        return found

    def list_calls(self, scope: int | None, now: float) -> list[Fields]:
        """Those of the account ``scope``, or of all, the one longest under way first; ``now`` is the loop's time."""
        wanted = (one for one in self.calls.values() if scope is None or one.arrival.caller.account.id == scope)
        return [build_call(one, now, whole=scope is None) for one in islice(wanted, MOST_LISTED)]


def build_call(one: ActiveRequest, now: float, *, whole: bool) -> Fields:
    """A call as it stands. ``whole``: with what is the operator's business, over which channel, and from where."""
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
    """How far it has come."""
    delivery = one.delivery
    if delivery is not None and delivery.first_byte_at is not None:
        return "streaming"
    return "reading" if one.call is None else "waiting"
