"""Brings back the changes of operators and members that a replaced store has lost.

A standby that lags takes over without the last commits. A key that was revoked in them would be valid again. Every node
therefore keeps the audit rows of the last minutes in memory. When the store is replaced (``read_generation``), each
node compares them with those of the new store, while it takes no requests. The node applies again the parts of lost
changes that take rights away (``reapply``), and records the rest for an operator: ``gateway nodes lost-changes``.

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

ROW_RETENTION_MS = 600_000
"""For how long a node keeps an audit row, in milliseconds: longer than any standby should lag."""
_IGNORED_ACTIONS = frozenset(
    {"member.signed_in", "session.refused", "member.passkey_refused", "configuration.reloaded"}
)
"""Actions that change nothing for an operator to repeat."""

log = structlog.stdlib.get_logger(__name__)


class ChangeKeeper:
    """Keeps the audit rows of the last minutes, applies lost changes again that take rights away, records the others.

    ``find_caller``: returns the key with this id, and its account, as this process last read them; None if never.
    """

    def __init__(self, node: "ClusterNode", database: Database, find_caller: Callable[[int], Caller | None]) -> None:
        self._node = node
        self._database = database
        self._find_caller = find_caller
        self._repository = LostChangeRepository(database)
        self._kept_rows: dict[int, AuditRow] = {}
        self._newest_sequence = 0

    @property
    def _now_ms(self) -> int:
        return int(self._node.clock.now() * 1000)

    async def keep_new_rows(self) -> None:
        """Keep the audit rows written since the last call."""
        rows = await self._repository.list_newest_rows(self._newest_sequence)
        since_ms = self._now_ms - ROW_RETENTION_MS
        for row in rows:
            self._kept_rows.setdefault(row.sequence, row)
        self._newest_sequence = max(self._kept_rows, default=self._newest_sequence)
        self._kept_rows = {sequence: row for sequence, row in self._kept_rows.items() if row.at_ms >= since_ms}

    async def bring_back(self) -> None:
        """Apply again what takes rights away, and record all lost changes."""
        lost_rows = await self._find_lost_rows()
        async with self._node.bring_back_alone():
            record, generation = await self._repository.read(), self._node.generation
            known_rows = {change.row for change in record.changes}
            new_rows, applied_count = [row for row in lost_rows if row not in known_rows], 0
            if new_rows or record.generation != generation:
                now_ms = self._now_ms
                changes = await Reapplication(self._database, self._find_caller, now_ms).run(new_rows)
                await self._repository.put(ReplacedStore(generation, now_ms, (*record.changes, *changes)))
                applied_count = sum(change.applied != "{}" for change in changes)
        if lost_rows:
            reason = f"this node applied {applied_count} of them again; see: gateway nodes lost-changes"
            log.warning("changes_lost", node=self._node.process, rows=len(lost_rows), reason=reason)
        self._kept_rows, self._newest_sequence = {}, 0  # the new store gives the numbers of lost rows to others

    async def _find_lost_rows(self) -> Sequence[AuditRow]:
        if not self._kept_rows:
            return ()
        stored_rows = set(await self._repository.list_between(min(self._kept_rows), max(self._kept_rows)))
        kept_rows = [row for _, row in sorted(self._kept_rows.items()) if row.action not in _IGNORED_ACTIONS]
        return [row for row in kept_rows if row not in stored_rows]
