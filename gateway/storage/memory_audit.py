"""The audit trail in memory. It ships, and keeps the same contract as the database's."""

from collections.abc import Sequence

import attrs

from gateway.domain.audit_log import AuditFilter, AuditRow


class MemoryAuditTrail:
    """``domain.audit.AuditTrail`` in a list; for every other store in memory to write to."""

    def __init__(self) -> None:
        self._rows: list[AuditRow] = []

    async def list_audit(self, wanted: AuditFilter, limit: int) -> Sequence[AuditRow]:
        """The newest that match, the newest first."""
        return [row for row in reversed(self._rows) if _matches(row, wanted)][:limit]

    async def add_audit(self, row: AuditRow) -> None:
        """A row about what is not in the store."""
        self.note(row)

    def note(self, row: AuditRow | None) -> None:
        """The row of a change that was made, where there is one."""
        if row is not None:
            self._rows.append(attrs.evolve(row, sequence=len(self._rows) + 1))


def _matches(row: AuditRow, wanted: AuditFilter) -> bool:
    return (
        wanted.account_id in {None, row.account_id}
        and wanted.actor in {None, row.actor or row.actor_kind}
        and wanted.action in {None, row.action, row.action.partition(".")[0]}
        and (wanted.before is None or row.sequence < wanted.before)
    )
