"""Releases the leases of nodes that do not come back, or charges them in full; reverses the charges if they do."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import delete, select, text

from gateway.domain.audit_log import AuditRow
from gateway.domain.balance import parse_day
from gateway.domain.ledger import OnCrash
from gateway.domain.limit import find_window_start
from gateway.errors import Conflict, NotFound
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.limit_counters import ADD_ORPHANS, ADD_SPENT
from gateway.storage.schema import orphan_charges

if TYPE_CHECKING:
    from gateway.billing.limits import SpendingLimits

EndNodeLeases = Callable[[str, OnCrash, float, AuditRow], Awaitable[int]]
"""``end_orphans`` for a fixed database and its limits."""
_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_LIST_ORPHANED_NODES = text(f"""
SELECT l.node FROM (SELECT DISTINCT node FROM credit_leases) l
LEFT JOIN nodes n ON n.id = l.node LEFT JOIN beats b ON b.node = l.node
WHERE n.state IS DISTINCT FROM 'live' AND {_NOW_MS} - coalesce(n.ended_ms, b.at_ms, 0) >= CAST(:after_ms AS bigint)
ORDER BY l.node
""")  # noqa: S608 - our own words
# The row keeps the node from registering before the commit, even if the node has no row yet.
_INSERT_NODE_ROW = text("""
INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms)
SELECT :node, 0, 'gone', '', '', '', '', 0 WHERE EXISTS (SELECT 1 FROM credit_leases WHERE node = :node)
ON CONFLICT (id) DO NOTHING
""")
_LOCK_NODE_STATE = text("SELECT state FROM nodes WHERE id = :node FOR UPDATE")
_MARK_NODE_GONE = text("UPDATE nodes SET state = 'gone' WHERE id = :node")
_SUM_OUTSTANDING = text("""
SELECT coalesce(sum(granted - posted - late) FILTER (WHERE owner = 0), 0)::bigint AS accounts,
  coalesce(sum(granted - posted - late) FILTER (WHERE owner = 1), 0)::bigint AS keys
FROM credit_leases JOIN credit_balances USING (owner, owner_id) WHERE node = :node AND granted > posted + late
""")
_LIST_LIMIT_LEASES = text("""
SELECT b.counter, b.subject, l.granted - l.posted - l.late AS nanos
FROM credit_leases l JOIN credit_balances b USING (owner, owner_id)
WHERE l.node = :node AND l.owner = 2 AND b.counter IS NOT NULL AND l.granted > l.posted + l.late
""")
_TURN_BALANCES = text("""
SELECT turn_balance(b.owner, b.owner_id, CAST(:day AS integer), CAST(:month AS integer))
FROM credit_balances b JOIN credit_leases l USING (owner, owner_id) WHERE l.node = :node ORDER BY owner, owner_id
""")
_INSERT_CHARGES = text("""
INSERT INTO entries (at_ms, kind, account_id, key_id, amount_nanos, reference, note)
SELECT CAST(:now_ms AS bigint), 'orphan', coalesce(k.account_id, l.owner_id), k.id,
  l.posted + l.late - l.granted, :node, :note
FROM credit_leases l JOIN credit_balances b USING (owner, owner_id) LEFT JOIN keys k ON l.owner = 1 AND k.id = owner_id
WHERE l.node = :node AND l.granted > l.posted + l.late AND (l.owner = 0 OR k.id IS NOT NULL)
ORDER BY l.owner, l.owner_id
""")
# The reversal counts in the window of the charge that it reverses.
_INSERT_REVERSALS = text("""
INSERT INTO entries (at_ms, kind, account_id, key_id, amount_nanos, reference, note)
SELECT max(at_ms), 'orphan', account_id, key_id, -sum(amount_nanos), reference, :note FROM entries
WHERE kind = 'orphan' AND reference = :node GROUP BY account_id, key_id, reference HAVING sum(amount_nanos) <> 0
ORDER BY account_id, key_id NULLS FIRST
RETURNING amount_nanos
""")
_UPDATE_CREDIT = text("""
UPDATE credit_balances b SET credit = credited_since(b.owner, b.owner_id, b.start) FROM (
  SELECT x.owner, x.owner_id FROM credit_balances x JOIN entries e ON e.kind = 'orphan' AND e.reference = :node AND
    CASE x.owner WHEN 1 THEN e.key_id = x.owner_id ELSE e.key_id IS NULL AND e.account_id = x.owner_id END
  GROUP BY 1, 2) found
WHERE b.owner = found.owner AND b.owner_id = found.owner_id
""")
_CHARGE_NOTE = "a node that was lost had it set aside"
_REVERSAL_NOTE = "the node has come back and posted what it had spent"


async def list_orphaned_nodes(database: Database, after_s: float) -> Sequence[str]:
    """Return the nodes that ended at least ``after_s`` seconds ago and have leases."""
    return [row.node for row in await database.read(_LIST_ORPHANED_NODES.bindparams(after_ms=int(after_s * 1000)))]


async def end_orphans(
    database: Database,
    node: str,
    verdict: OnCrash,
    now_s: float,
    audit: AuditRow | None = None,
    *,
    spending: "SpendingLimits | None" = None,
) -> int:
    """End the leases of a node that is not live, and mark the node as gone.

    If the ``verdict`` is "charge", the outstanding credit becomes an entry of kind ``orphan`` for each balance, dated
    ``now_s`` (Unix seconds), and counts as spent under limits; otherwise it becomes free. ``spending`` knows the
    windows of the limits; None if no limit is in force.

    Returns:
        The outstanding nano-USD: the larger of the sums over account balances and over key balances. A request whose
        key or account has no limit is only in the other sum.

    Raises:
        NotFound: there is no such node.
        Conflict: the node is live.
    """
    day = parse_day(now_s)

    async def work(connection: AsyncConnection) -> int:
        await _lock_ended_node(connection, node)
        await connection.execute(_TURN_BALANCES.bindparams(node=node, day=day.number, month=day.month_number))
        outstanding_sums = (await connection.execute(_SUM_OUTSTANDING.bindparams(node=node))).one()
        if verdict == "charge":
            await connection.execute(_INSERT_CHARGES.bindparams(node=node, note=_CHARGE_NOTE, now_ms=int(now_s * 1000)))
            await connection.execute(_UPDATE_CREDIT.bindparams(node=node))
            await _charge_limits(connection, node, now_s, spending)
        await connection.execute(text("SELECT fold_leases(:node)").bindparams(node=node))
        await connection.execute(_MARK_NODE_GONE.bindparams(node=node))
        return max(int(outstanding_sums.accounts), int(outstanding_sums.keys))

    return await database.write(work, audit)


async def _lock_ended_node(connection: AsyncConnection, node: str) -> None:
    """Lock the state of a node. Raises ``NotFound``, and ``Conflict`` if the node is live."""
    await connection.execute(_INSERT_NODE_ROW.bindparams(node=node))
    state = await connection.scalar(_LOCK_NODE_STATE.bindparams(node=node))
    if state is None:
        raise NotFound(f"There is no node {node}")
    if state == "live":
        raise Conflict(f"The node {node} lives. Stop it first")


async def reverse_orphan_charges(database: Database, node: str) -> int:
    """Reverse the charges for a lost node that came back and posted its spending. Return the number of entries."""

    async def work(connection: AsyncConnection) -> int:
        entries = (await connection.execute(_INSERT_REVERSALS.bindparams(node=node, note=_REVERSAL_NOTE))).all()
        if entries:
            await connection.execute(_UPDATE_CREDIT.bindparams(node=node))
        await _reverse_limits(connection, node)
        return len(entries)

    return await database.write(work)


async def _charge_limits(
    connection: AsyncConnection, node: str, now_s: float, spending: "SpendingLimits | None"
) -> None:
    """Count the outstanding credit of a node under limits as spent, in the windows of ``now_s``."""
    rows = (await connection.execute(_LIST_LIMIT_LEASES.bindparams(node=node))).all()
    charges = []
    for row in rows:
        if spending is None:
            start_s = find_window_start(row.counter, now_s)
        else:
            start_s = spending.find_subject_start(row.counter, row.subject, now_s)
        charges.append((row.counter, row.subject, start_s, int(row.nanos)))
    charges.sort()
    if charges:
        await ADD_SPENT.run(connection, charges)
        await ADD_ORPHANS.run(connection, [(node, *charge) for charge in charges])


async def _reverse_limits(connection: AsyncConnection, node: str) -> None:
    is_of_node = orphan_charges.c.node == node
    rows = (await connection.execute(select(orphan_charges).where(is_of_node))).all()
    charges = sorted((row.counter, row.subject, int(row.start_s), -int(row.spent_nanos)) for row in rows)
    if charges:
        await ADD_SPENT.run(connection, charges)
        await connection.execute(delete(orphan_charges).where(is_of_node))
