"""Brings back the changes of operators and members that a replaced store has lost.

A standby that lags takes over without the last commits. A key that was revoked in them would be valid again. Every node
therefore keeps the audit rows of the last minutes in memory. When the store is replaced (``read_generation``), each
node compares them with those of the new store, while it takes no requests. Of a lost change it applies again what takes
rights away (``reapply``), and records the rest for an operator: ``gateway nodes lost-changes``.

Nodes do so one after the other, and a change that is on record is left alone: each is applied once, and a node that
comes back late undoes nothing that an operator has decided meanwhile. A change is lost for good if every node that knew
it has stopped before the standby took over.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from gateway.cluster.reapply import Reapplication
from gateway.domain.account import Caller
from gateway.domain.audit_log import AuditRow
from gateway.domain.lost_change import ReplacedStore
from gateway.storage.database import Database
from gateway.storage.lost_changes import LostChangeRepository

if TYPE_CHECKING:
    from gateway.cluster.membership.node import ClusterNode

KEPT_MS = 600_000
"""For how long a node keeps an audit row, in milliseconds: longer than any standby should lag."""
_IGNORED = frozenset({"member.signed_in", "session.refused", "member.passkey_refused", "configuration.reloaded"})
"""Actions that change nothing for an operator to repeat."""

log = structlog.stdlib.get_logger(__name__)


class ChangeKeeper:
    """Keeps the last audit rows, and brings lost ones back. ``find_caller``: a key as this process last knew it."""

    def __init__(self, node: "ClusterNode", database: Database, find_caller: Callable[[int], Caller | None]) -> None:
        self._node = node
        self._database = database
        self._find_caller = find_caller
        self._record = LostChangeRepository(database)
        self._kept: dict[int, AuditRow] = {}
        self._newest = 0

    @property
    def _now_ms(self) -> int:
        return int(self._node.clock.now() * 1000)

    async def note(self) -> None:
        """Keep the audit rows written since the last call. Raises ``StoreUnavailable``."""
        rows = await self._record.list_newest(self._newest)
        since_ms = self._now_ms - KEPT_MS
        for row in rows:
            self._kept.setdefault(row.sequence, row)
        self._newest = max(self._kept, default=self._newest)
        self._kept = {number: row for number, row in self._kept.items() if row.at_ms >= since_ms}

    async def bring_back(self) -> None:
        """Apply again what takes rights away, and record all lost changes. Raises ``StoreUnavailable``."""
        lost = await self._find_lost()
        async with self._node.bring_back_alone():
            record, generation = await self._record.read(), self._node.generation
            known = {change.row for change in record.changes}
            new, applied = [row for row in lost if row not in known], 0
            if new or record.generation != generation:
                now_ms = self._now_ms
                changes = await Reapplication(self._database, self._find_caller, now_ms).run(new)
                await self._record.put(ReplacedStore(generation, now_ms, (*record.changes, *changes)))
                applied = sum(change.applied != "{}" for change in changes)
        if lost:
            reason = f"this node applied {applied} of them again; see: gateway nodes lost-changes"
            log.warning("changes_lost", node=self._node.process, rows=len(lost), reason=reason)
        self._kept, self._newest = {}, 0  # the new store gives the numbers of lost rows to others

    async def _find_lost(self) -> Sequence[AuditRow]:
        if not self._kept:
            return ()
        stored = set(await self._record.list_between(min(self._kept), max(self._kept)))
        kept = [row for _, row in sorted(self._kept.items()) if row.action not in _IGNORED]
        return [row for row in kept if row not in stored]
