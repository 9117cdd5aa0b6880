"""The requests under way: a list of them, and the way to cancel one.

A request is registered when it begins and removed when it is settled. Nothing is updated in between: its progress is
read from its own state on demand.
"""

from itertools import islice
from typing import Any, Literal, Protocol

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.errors import NotFound
from gateway.request_context import RequestContext

Phase = Literal["reading", "waiting", "streaming"]
"""The body is being read; the request waits for a provider; the client is being answered."""
MOST_LISTED = 1_000
"""Maximum length of a list: the oldest requests."""

Fields = dict[str, Any]


class ActiveRequest(Protocol):
    """One request, as its handler knows it."""

    @property
    def context(self) -> RequestContext:
        """Everything that is known about it."""
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
    """Every request under way at this gateway by its id, the oldest first.

    ``node``: the id of this node of a cluster, if it is one.
    """

    def __init__(self) -> None:
        self.calls: dict[str, ActiveRequest] = {}
        self.node: str | None = None

    def __len__(self) -> int:
        return len(self.calls)

    def get(self, request_id: str, actor: Actor) -> ActiveRequest:
        """Return a request that ``actor`` may see. Raises ``NotFound``, also for one of another account."""
        found = self.calls.get(request_id)
        if found is None or not actor.may_see(found.context.caller.account.id):
            raise NotFound(f"No request under way has the id {request_id[:64]!r}", should_retry=False)
        return found

    def list_calls(self, scope: int | None, now: float) -> list[Fields]:
        """Return the requests of the account ``scope``, or of all accounts; ``now`` is loop time."""
        wanted = (one for one in self.calls.values() if scope is None or one.context.caller.account.id == scope)
        return [build_call(one, now, self.node, whole=scope is None) for one in islice(wanted, MOST_LISTED)]


def build_call(one: ActiveRequest, now: float, node: str | None, *, whole: bool) -> Fields:
    """Return the fields of a request.

    ``whole``: with those for the operator alone, the channel, the address and the ``node``.
    """
    ctx, inference = one.context, one.context.parsed
    return {
        "id": ctx.id,
        "account": ctx.caller.account.name,
        "key_name": ctx.caller.key.name,
        "model": inference.model if inference else "",
        "operation": ctx.operation,
        "stream": inference.stream if inference else False,
        "started_at": build_time(ctx.started_ms // 1000),
        "running_ms": round((now - ctx.started_at) * 1000),
        "phase": find_phase(ctx),
        "channel": ctx.attempts[-1].channel.name if whole and ctx.attempts else None,
        "attempts": len(ctx.attempts),
        "address": one.address if whole else None,
        "node": node if whole else None,
    }


def find_phase(ctx: RequestContext) -> Phase:
    """Return the phase of a request."""
    if ctx.first_byte_at is not None:
        return "streaming"
    return "reading" if ctx.parsed is None else "waiting"
