"""Applies what other nodes of the cluster change of sessions: their budgets, and their end."""

from collections.abc import Collection, Sequence

from gateway.billing.live_limits import LiveLimits
from gateway.cluster.changes import ChangeFollower
from gateway.domain.node import Change
from gateway.proxy.active_requests import ActiveRequests


class SessionFollower:
    """Reads sessions that other nodes have changed, and cancels the requests of ended ones.

    ``follower`` applies other changes. A session that this node does not know is looked up with its next request.

    The methods return when the changes are in force.
    """

    def __init__(self, follower: ChangeFollower, limits: LiveLimits, active_requests: ActiveRequests) -> None:
        self._follower = follower
        self._limits = limits
        self._active_requests = active_requests

    async def apply(self, changes: Sequence[Change]) -> None:
        subjects = {change.id for change in changes if change.kind == "session"}
        if subjects:
            budgets, active_subjects = self._limits.open_budgets(), self._find_active()
            await self._read([subject for subject in subjects if subject in active_subjects or budgets.holds(subject)])
        await self._follower.apply(changes)

    async def reload(self) -> None:
        """Read the sessions of all active requests and everything else again.

        Other sessions are looked up with their next request.
        """
        if self._limits.budgets is None:
            await self._limits.load_sessions()
        else:
            self._limits.budgets.forget()
        if self._limits.budgets is not None:
            await self._read(self._find_active())
        await self._follower.reload()

    def _find_active(self) -> set[str]:
        """Return the subjects (``account:session``) of active requests that have a session."""
        contexts = [call.context for call in self._active_requests.calls.values()]
        return {f"{ctx.caller.account.id}:{ctx.attribution.session}" for ctx in contexts if ctx.attribution.session}

    async def _read(self, subjects: Collection[str]) -> None:
        budgets = self._limits.open_budgets()
        for subject in subjects:
            if await budgets.reload(subject):
                account, _, session = subject.partition(":")
                self._active_requests.cancel_session(int(account), session)
