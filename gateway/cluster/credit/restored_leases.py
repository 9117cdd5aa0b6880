"""Sets the leases of a node anew in a database that may lack the last commits, and records what exceeds a limit then.

The node's own figures count. What its requests hold and what it has spent since the last stored row is set aside, even
beyond the limit, because it is or will be spent. Its idle credit is set aside as far as the limit allows.
"""

from collections.abc import Collection, Mapping

from gateway.cluster.credit.rows import OWNERS, Connection, build_arrays, build_key
from gateway.domain.balance import DAY_S, UtcDay
from gateway.domain.credit import BalanceId, LeaseClaim
from gateway.domain.limit import build_charges

_LIST_OWN_LEASES = "SELECT owner, owner_id FROM credit_leases WHERE node = $1"
# The calls lock the balances, in their order.
_TURN_BALANCES = """
SELECT turn_balance(a.owner, a.owner_id, $1, $2) FROM unnest($3::smallint[], $4::bigint[]) AS a(owner, owner_id)
"""
_OPEN_LIMIT_BALANCES = """
INSERT INTO credit_balances AS b (owner, owner_id, period, start, counter, subject)
SELECT owner, owner_id, 0, 0, counter, subject
FROM unnest($1::smallint[], $2::bigint[], $3::text[], $4::text[]) AS a(owner, owner_id, counter, subject)
WHERE owner = 2
ON CONFLICT (owner, owner_id) DO UPDATE SET counter = coalesce(excluded.counter, b.counter),
  subject = coalesce(excluded.subject, b.subject)
"""
# ``room`` is what the limit leaves for this lease beside the others. An exceeded lease counts as its ``posted``.
_SET_LEASES = """
INSERT INTO credit_leases AS l (owner, owner_id, node, start, granted)
SELECT owner, owner_id, $1, start, greatest(need, least(need + idle, room)) FROM (
  SELECT a.*, b.start, credit_limit(a.owner, a.owner_id) + b.credit - b.settled - b.reserved - coalesce((
      SELECT sum(CASE WHEN e.node = $1 THEN e.posted + e.late ELSE greatest(e.granted, e.posted) END)
      FROM credit_leases e WHERE e.owner = a.owner AND e.owner_id = a.owner_id), 0)::bigint AS room
  FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS a(owner, owner_id, need, idle)
  JOIN credit_balances b USING (owner, owner_id)) rooms
ORDER BY 1, 2
ON CONFLICT (node, owner, owner_id) DO UPDATE SET granted = l.posted + l.late + excluded.granted
"""
_SUM_LEASES = """
UPDATE credit_balances b SET leased = coalesce(
  (SELECT sum(l.granted) FROM credit_leases l WHERE l.owner = b.owner AND l.owner_id = b.owner_id), 0)
FROM unnest($1::smallint[], $2::bigint[]) AS a(owner, owner_id) WHERE b.owner = a.owner AND b.owner_id = a.owner_id
"""
_FIND_EXCESS = """
SELECT * FROM (
  SELECT b.owner, b.owner_id, b.start, b.settled + b.reserved - b.credit - credit_limit(b.owner, b.owner_id)
    + coalesce((SELECT sum(greatest(l.granted, l.posted)) FROM credit_leases l
      WHERE l.owner = b.owner AND l.owner_id = b.owner_id), 0)::bigint AS nanos
  FROM credit_balances b JOIN unnest($1::smallint[], $2::bigint[]) AS a(owner, owner_id) USING (owner, owner_id)) found
WHERE nanos > 0 ORDER BY owner DESC, owner_id
"""
_FIND_LIMIT_EXCESS = """
SELECT b.reserved + coalesce((SELECT CASE WHEN $4 THEN sum(c.spent_nanos) ELSE max(c.spent_nanos) END
      FROM limit_counters c WHERE c.counter = b.counter AND c.subject = b.subject AND c.start_s >= $3), 0)
    + coalesce((SELECT sum(greatest(l.granted - l.posted - l.late, 0)) FROM credit_leases l
      WHERE l.owner = 2 AND l.owner_id = b.owner_id), 0) - $2::bigint AS nanos
FROM (SELECT x.owner_id, x.reserved, $5::text AS counter, $6::text AS subject FROM credit_balances x
  WHERE x.owner = 2 AND x.owner_id = $1) b
"""
# The newest requests have the overrun, each up to its cost.
_RECORD_OVERRUNS = """
UPDATE requests r SET overrun_nanos = r.overrun_nanos + n.more FROM (
  SELECT id, greatest(0, least(free, missing - before)) AS more FROM (
    SELECT id, free, $3::bigint - coalesce((
        SELECT sum(overrun_nanos) FROM requests
        WHERE COLUMN = $1 AND settled_ms >= $4 AND overrun_nanos > 0 AND strpos(limit_charges, $5) > 0), 0)
      AS missing, sum(free) OVER (ORDER BY settled_ms DESC, id) - free AS before
    FROM (SELECT id, settled_ms, cost_nanos - overrun_nanos AS free FROM requests
      WHERE COLUMN = $1 AND settled_ms >= $2 AND cost_nanos > overrun_nanos AND strpos(limit_charges, $5) > 0
      ) latest) ranked) n
WHERE r.id = n.id AND n.more > 0
"""


async def set_leases(
    connection: Connection, node: str, day: UtcDay, claims: Mapping[BalanceId, LeaseClaim]
) -> Collection[BalanceId]:
    """Make ``claims`` the leases of ``node``, in a transaction that excludes all other writes.

    A stored lease that is not among the claims has no credit left. Return the balances of both.
    """
    stored_balances = {
        (OWNERS[row["owner"]], row["owner_id"]) for row in await connection.fetch(_LIST_OWN_LEASES, node)
    }
    all_claims = {**dict.fromkeys(stored_balances, LeaseClaim(0, 0)), **claims}
    balances = sorted(all_claims, key=build_key)
    columns = build_arrays(balances)
    terms = [all_claims[balance].terms for balance in balances]
    names = [[term and term.counter for term in terms], [term and term.subject for term in terms]]
    await connection.execute(_OPEN_LIMIT_BALANCES, *columns, *names)
    await connection.execute(_TURN_BALANCES, day.number, day.month_number, *columns)
    needed_nanos, idle_nanos = (
        [all_claims[balance].needed_nanos for balance in balances],
        [all_claims[balance].idle_nanos for balance in balances],
    )
    await connection.execute(_SET_LEASES, node, *columns, needed_nanos, idle_nanos)
    await connection.execute(_SUM_LEASES, *columns)
    return balances


async def record_excess(connection: Connection, balances: Collection[BalanceId], *, since_ms: int) -> None:
    """Record by how much the limits of ``balances`` are exceeded, as overruns of stored requests.

    What is spent and what is set aside count; overruns on record are not recorded twice. ``since_ms``: only requests
    settled since then get an overrun (Unix milliseconds).
    """
    for row in await connection.fetch(_FIND_EXCESS, *build_arrays(sorted(balances, key=build_key))):
        statement = _RECORD_OVERRUNS.replace("COLUMN", f"{OWNERS[row['owner']]}_id")
        await connection.execute(statement, row["owner_id"], since_ms, row["nanos"], row["start"] * DAY_S * 1000, "")


async def record_limit_excess(connection: Connection, claims: Mapping[BalanceId, LeaseClaim], *, since_ms: int) -> None:
    """Record overruns as ``record_excess`` does, for subjects of limits in ``claims``, under their node's terms."""
    for balance in sorted(claims, key=build_key):
        terms = claims[balance].terms
        if terms is None:
            continue
        counter, subject = terms.counter, terms.subject
        excess_nanos = await connection.fetchval(
            _FIND_LIMIT_EXCESS, balance[1], terms.cap_nanos, terms.since_s, terms.is_rolling, counter, subject
        )
        if excess_nanos is not None and excess_nanos > 0:
            is_key = counter.rsplit("|", 3)[1] == "key"
            statement = _RECORD_OVERRUNS.replace("COLUMN", "key_id" if is_key else "account_id")
            owner_id, charge = int(subject.partition(":")[0]), build_charges([(counter, subject, 0)])
            await connection.execute(
                statement, owner_id, since_ms, int(excess_nanos), terms.since_s * 1000, charge.removesuffix("0]]")[1:]
            )
