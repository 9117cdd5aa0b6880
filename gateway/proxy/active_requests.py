"""The registry of active requests, to list and cancel them.

Nothing is updated here while a request runs: a listing reads the progress from the request's own state.
"""

from contextlib import suppress
from itertools import islice
from typing import Literal, Protocol

from gateway.domain.audit_log import Actor
from gateway.errors import Conflict, NotFound
from gateway.request_context import RequestContext

Phase = Literal["reading", "waiting", "streaming"]
"""``reading``: the body is being read. ``waiting``: for a provider. ``streaming``: the client gets the answer."""
MAX_LISTED = 1_000
"""Maximum number of requests in a list: the oldest ones."""


class ActiveRequest(Protocol):
    """The interface through which the registry lists and cancels an active request."""

    @property
    def context(self) -> RequestContext: ...

    @property
    def address(self) -> str | None: ...

    def handle_disconnect(self) -> bool:
        """Handle a disconnected client. Return whether the request continues, to be charged for its reported usage."""
        ...

    def cancel(self) -> bool:
        """Cancel the request; return False if it was cancelled before, or waits in its batch.

        Raises ``Conflict`` if it is too late, because a video job is being submitted.
        """
        ...


class ActiveRequests:
    """All active requests of this process by id, oldest first. ``node``: id of this node; None without a cluster."""

    def __init__(self, node: str | None) -> None:
        self.calls: dict[str, ActiveRequest] = {}
        self.node = node

    def __len__(self) -> int:
        return len(self.calls)

    def get(self, request_id: str, actor: Actor) -> ActiveRequest:
        """Return a request that ``actor`` may see. Raises ``NotFound``, also for another account's request."""
        request_call = self.calls.get(request_id)
        if request_call is None or not actor.may_see(request_call.context.caller.account.id):
            raise NotFound(f"No request under way has the id {request_id[:64]!r}", should_retry=False)
        return request_call

    def list_calls(self, scope: int | None) -> list[ActiveRequest]:
        """Return the requests of the account ``scope``, or of all accounts if None; at most ``MAX_LISTED``."""
        matching_calls = (
            call for call in self.calls.values() if scope is None or call.context.caller.account.id == scope
        )
        return list(islice(matching_calls, MAX_LISTED))

    def list_session(self, account_id: int, session: str) -> list[ActiveRequest]:
        """Return the active requests of a session of an account."""
        return [
            call
            for call in self.calls.values()
            if call.context.attribution.session == session and call.context.caller.account.id == account_id
        ]

    def cancel_session(self, account_id: int, session: str) -> int:
        """Cancel the requests of a session; return how many were cancelled.

        A request that waits in its batch, or whose video job is being submitted, is not cancelled.
        """
        cancelled_count = 0
        for call in self.list_session(account_id, session):
            with suppress(Conflict):
                cancelled_count += call.cancel()
        return cancelled_count


def find_phase(ctx: RequestContext) -> Phase:
    """Return the phase that a request has reached, judging by its parsed body and the first byte to the client."""
    if ctx.first_byte_at is not None:
        return "streaming"
    return "reading" if ctx.parsed is None else "waiting"
