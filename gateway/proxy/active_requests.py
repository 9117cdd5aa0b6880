"""The registry of active requests, to list and cancel them.

Nothing is updated between the begin and the settlement: a listing reads the progress from the request's own state.
"""

from itertools import islice
from typing import Any, Literal, Protocol

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.errors import NotFound
from gateway.request_context import RequestContext

Phase = Literal["reading", "waiting", "streaming"]
"""``reading``: the body is being read. ``waiting``: for a provider. ``streaming``: the client gets the answer."""
MOST_LISTED = 1_000
"""Maximum length of a list, which then has the oldest requests."""

Fields = dict[str, Any]


class ActiveRequest(Protocol):
    """The interface of an active request, implemented by its handler."""

    @property
    def context(self) -> RequestContext: ...

    @property
    def address(self) -> str | None: ...

    def handle_disconnect(self) -> bool:
        """Handle a disconnected client. Return whether the request continues, to be charged for its reported usage."""
        ...

    def cancel(self) -> bool:
        """Cancel the request. Return False if it was already cancelled. Raises ``Conflict`` if it is too late."""
        ...


class ActiveRequests:
    """All active requests of this process by id, the oldest first. ``node``: id of this node in a cluster."""

    def __init__(self, node: str | None) -> None:
        self.calls: dict[str, ActiveRequest] = {}
        self.node = node

    def __len__(self) -> int:
        return len(self.calls)

    def get(self, request_id: str, actor: Actor) -> ActiveRequest:
        """Return a request that ``actor`` may see. Raises ``NotFound``, also for another account's request."""
        found = self.calls.get(request_id)
        if found is None or not actor.may_see(found.context.caller.account.id):
            raise NotFound(f"No request under way has the id {request_id[:64]!r}", should_retry=False)
        return found

    def list_calls(self, scope: int | None, now: float) -> list[Fields]:
        """Return the requests of the account ``scope``, or of all accounts; ``now`` is loop time."""
        wanted = (one for one in self.calls.values() if scope is None or one.context.caller.account.id == scope)
        return [build_call(one, now, self.node, whole=scope is None) for one in islice(wanted, MOST_LISTED)]


def build_call(one: ActiveRequest, now: float, node: str | None, *, whole: bool) -> Fields:
    """Return the fields of a request for listings. ``whole``: include the operators' fields, such as the channel."""
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
