"""The balances and credit leases of a cluster, as the transactions of one node change them; their check."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Executable, Row, select, text

from gateway.cluster.credit.restored_leases import record_excess, record_limit_excess, set_leases
from gateway.cluster.credit.rows import OWNER_NUMBERS, OWNERS, Connection, build_arrays, build_key, post_spending
from gateway.cluster.credit.unposted import list_charged_balances
from gateway.domain.balance import DAY_S, Quota, QuotaPeriod, UtcDay, parse_day
from gateway.domain.credit import BalanceId, CreditFigures, LeaseClaim
from gateway.domain.ledger import LedgerEntry, day_of, describe_overrun
from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoJob
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.postgres.lock_numbers import OVERRUNS_LOCK
from gateway.storage.schema import keys

_PERIODS: Mapping[QuotaPeriod, int] = {"lifetime": 0, "daily": 1, "monthly": 2}
_OPEN_BALANCE = "SELECT open_balance($1, $2, $3, $4, $5)"
_DELETE_BALANCE_LEASES = "DELETE FROM credit_leases WHERE owner = $1 AND owner_id = $2"
_ADD_CREDIT = "SELECT add_credit($1, $2, $3, $4, $5)"
_RESERVE_JOB = "SELECT reserve_job($1, $2, $3, $4)"
_FINISH_JOB = "SELECT finish_job($1, $2, $3, $4, $5, $6)"
_LOCK_OVERRUNS = f"SELECT pg_advisory_xact_lock({OVERRUNS_LOCK})"
_LIST_UNOPENED = """
  SELECT k.owner::smallint AS owner, k.id AS owner_id,
    array_position(ARRAY['lifetime', 'daily', 'monthly'], k.quota_period::text) - 1 AS period
  FROM (SELECT 0 AS owner, id, quota_nanos, quota_period FROM accounts
        UNION ALL SELECT 1, id, quota_nanos, quota_period FROM keys) k
  WHERE k.quota_nanos IS NOT NULL AND k.quota_period <> 'none'
    AND NOT EXISTS (SELECT 1 FROM credit_balances b WHERE b.owner = k.owner AND b.owner_id = k.id)
  ORDER BY 1, 2
"""
_OPEN_ALL_BALANCES = f"SELECT open_balance(o.owner, o.owner_id, o.period::smallint, $1, $2) FROM ({_LIST_UNOPENED}) o"  # noqa: S608
# One pass over each table for all balances: there may be thousands. A balance without a write in the current period has
# spent nothing in it. A balance without a limit sums all charges ever made.
_WITH_SUMS = """
spans AS (SELECT owner, owner_id, start FROM asked WHERE summed),
charged AS (
  SELECT s.owner, s.owner_id, sum(u.cost_nanos)::bigint AS nanos FROM spans s
    JOIN usage_days u ON u.key_id = s.owner_id AND u.day >= s.start WHERE s.owner = 1 GROUP BY 1, 2
  UNION ALL SELECT s.owner, s.owner_id, sum(u.cost_nanos)::bigint FROM spans s
    JOIN usage_days u ON u.account_id = s.owner_id AND u.day >= s.start WHERE s.owner = 0 GROUP BY 1, 2),
credited AS (
  SELECT s.owner, s.owner_id, sum(e.amount_nanos)::bigint AS nanos FROM spans s
    JOIN entries e ON e.key_id = s.owner_id AND e.kind <> 'charge' AND e.at_ms >= s.start::bigint * 86400000
    WHERE s.owner = 1 GROUP BY 1, 2
  UNION ALL SELECT s.owner, s.owner_id, sum(e.amount_nanos)::bigint FROM spans s
    JOIN entries e ON e.account_id = s.owner_id AND e.key_id IS NULL AND e.kind <> 'charge'
      AND e.at_ms >= s.start::bigint * 86400000
    WHERE s.owner = 0 GROUP BY 1, 2),
jobs AS (
  SELECT 1::smallint AS owner, key_id AS owner_id, sum(held_nanos)::bigint AS nanos FROM videos
    WHERE state NOT IN ('completed', 'failed') GROUP BY 1, 2
  UNION ALL SELECT 0::smallint, account_id, sum(held_nanos)::bigint FROM videos
    WHERE state NOT IN ('completed', 'failed') GROUP BY 1, 2),
leases AS (
  SELECT owner, owner_id, sum(granted)::bigint AS granted, sum(posted)::bigint AS posted,
    sum(greatest(granted - posted - late, 0))::bigint AS outstanding
  FROM credit_leases JOIN asked USING (owner, owner_id) GROUP BY 1, 2)
"""
_FROM_SUMS = """
FROM asked a LEFT JOIN credit_balances b USING (owner, owner_id) LEFT JOIN charged c USING (owner, owner_id)
LEFT JOIN credited d USING (owner, owner_id) LEFT JOIN jobs j USING (owner, owner_id)
LEFT JOIN leases l USING (owner, owner_id)
"""
_FIGURES_QUERY = text(
    f"""
WITH asked AS (
  SELECT o.owner, o.owner_id, b.owner IS NULL OR n.start > b.start AS summed, coalesce(n.start, 0) AS start
  FROM unnest(CAST(:owners AS smallint[]), CAST(:ids AS bigint[])) AS o(owner, owner_id)
  LEFT JOIN credit_balances b ON b.owner = o.owner AND b.owner_id = o.owner_id
  CROSS JOIN LATERAL (SELECT CASE WHEN b.owner IS NOT NULL THEN
    credit_start(b.period, CAST(:day AS integer), CAST(:month AS integer)) END AS start) n),
{_WITH_SUMS}
SELECT owner, owner_id,
  CASE WHEN b.owner IS NULL THEN coalesce(c.nanos, 0) WHEN a.summed THEN 0 ELSE b.settled + coalesce(l.posted, 0) END
    AS spent,
  CASE WHEN a.summed THEN coalesce(d.nanos, 0) ELSE b.credit END AS credit,
  CASE WHEN b.owner IS NULL THEN coalesce(j.nanos, 0)
    ELSE b.reserved + coalesce(l.outstanding, 0) END AS held
{_FROM_SUMS}
"""  # noqa: S608 - our own words
)
_DIFFERENCES_QUERY = text(
    f"""
WITH asked AS (SELECT owner, owner_id, true AS summed, start FROM credit_balances),
{_WITH_SUMS}
SELECT owner, owner_id, b.settled, b.leased, b.reserved, b.credit, coalesce(c.nanos, 0) AS charged,
  coalesce(d.nanos, 0) AS credited, coalesce(j.nanos, 0) AS held, coalesce(l.granted, 0) AS granted,
  coalesce(l.posted, 0) AS posted, credit_limit(owner, owner_id) AS cap
{_FROM_SUMS}
ORDER BY owner, owner_id
"""  # noqa: S608 - our own words
)
_MISSING_BALANCES_QUERY = text(f"SELECT o.owner, o.owner_id FROM ({_LIST_UNOPENED}) o ORDER BY 1, 2")  # noqa: S608 - our own words
_DELETE_BALANCES = text("DELETE FROM credit_balances")
# A live node may have an old last beat: it could not beat while the server was down. A beat in the future dates from
# before a change of the server's clock.
_FIND_LIVE_NODE = text("""
SELECT n.id, n.url FROM nodes n JOIN beats b ON b.node = n.id
CROSS JOIN (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms,
  (extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint AS started_ms) now
WHERE n.state = 'live'
  AND (abs(now.ms - b.at_ms) < CAST(:dead_ms AS bigint) OR now.ms - now.started_ms < CAST(:dead_ms AS bigint))
ORDER BY n.id LIMIT 1
""")
_DELETE_LEASES = text("DELETE FROM credit_leases WHERE node = :node")


class PostgresCredit:
    """Reads and changes the balances of all nodes, and the leases of one.

    Methods with a ``connection`` are part of a write, which holds ``LIMITS_LOCK``, so no other write changes a limit
    meanwhile.
    """

    def __init__(self, database: Database, node: str, today: Callable[[], UtcDay]) -> None:
        self._database = database
        self._node = node
        self._today = today

    async def find_figures(
        self, balances: Sequence[BalanceId], connection: AsyncConnection | None = None
    ) -> Mapping[BalanceId, CreditFigures]:
        day = self._today()
        values = {"owners": [OWNER_NUMBERS[owner] for owner, _ in balances], "ids": [number for _, number in balances]}
        statement = _FIGURES_QUERY.params(**values, day=day.number, month=day.month_number)
        reading = self._database.read(statement) if connection is None else connection.execute(statement)
        rows = await reading
        return {
            (OWNERS[row.owner], row.owner_id): CreditFigures(int(row.spent), int(row.credit), int(row.held))
            for row in rows
        }

    async def list_problems(
        self, more_queries: Sequence[Executable] = ()
    ) -> tuple[Sequence[str], Sequence[str], Sequence[Sequence[Row[Any]]]]:
        balance_rows, missing_rows, *more_rows = await self._database.read_snapshot(
            [_DIFFERENCES_QUERY, _MISSING_BALANCES_QUERY, *more_queries]
        )
        problems = [
            f"{OWNERS[row.owner]} {row.owner_id}: {name} is {balance_nanos}, {source_phrase} {sum_nanos} (nano-USD)"
            for row in balance_rows
            for name, balance_nanos, source_phrase, sum_nanos in (
                ("set aside", row.leased, "its leases say", row.granted),
                ("spent in the period", row.settled + row.posted, "its charges say", row.charged),
                ("credited in the period", row.credit, "its entries say", row.credited),
                ("reserved", row.reserved, "its open jobs say", row.held),
            )
            if balance_nanos != sum_nanos and (row.owner != OWNER_NUMBERS["limit"] or name == "set aside")
        ]
        problems += [
            f"{OWNERS[row.owner]} {row.owner_id}: its limit is not enforced, it has no balance" for row in missing_rows
        ]
        overruns = [
            describe_overrun(OWNERS[row.owner], row.owner_id, overrun_nanos)
            for row in balance_rows
            if row.owner != OWNER_NUMBERS["limit"]
            and (overrun_nanos := row.settled + row.posted - row.credit - (row.cap or 0)) > 0
        ]
        return problems, overruns, more_rows

    async def post(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        """Count the charges of ``rows`` for each day. The newest day's statement takes all locks."""
        days: defaultdict[int, Counter[BalanceId]] = defaultdict(Counter)
        for row in rows:
            if row.cost_nanos:
                days[day_of(row)].update(dict.fromkeys(list_charged_balances(row), row.cost_nanos))
        driver = await _find_driver(connection)
        for number, amounts in sorted(days.items(), reverse=True):
            balances = chain.from_iterable(days.values()) if number == max(days) else ()
            await post_spending(
                driver, self._node, parse_day(number * DAY_S), {**dict.fromkeys(balances, 0), **amounts}
            )

    async def restore_leases(self, claims: Mapping[BalanceId, LeaseClaim]) -> None:
        day = self._today()

        async def work(connection: AsyncConnection) -> None:
            driver = await _find_driver(connection)
            balances = await set_leases(driver, self._node, day, claims)
            since_ms = (day.start_s - DAY_S) * 1000
            await record_excess(driver, balances, since_ms=since_ms)
            await record_limit_excess(driver, claims, since_ms=since_ms)

        await self._database.write(work)

    async def record_overruns(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        if rows:
            balances: set[BalanceId] = {("account", row.account_id) for row in rows}
            balances |= {("key", row.key_id) for row in rows}
            since_ms = min(row.settled_ms for row in rows)
            driver = await _find_driver(connection)
            # Of two nodes that store their rows at the same time, the later one counts those of the other, too.
            await driver.execute(_LOCK_OVERRUNS)
            await record_excess(driver, balances, since_ms=since_ms)

    async def refund(self, connection: AsyncConnection, rows: Sequence[RequestRecord]) -> None:
        driver = await _find_driver(connection)
        for row in rows:
            if row.cost_nanos:
                day, owners = parse_day(row.settled_ms / 1000), [row.account_id, row.key_id]
                await driver.execute(_FINISH_JOB, day.number, day.month_number, [0, 1], owners, 0, -row.cost_nanos)

    async def open_missing_balances(self, connection: AsyncConnection) -> None:
        driver = await _find_driver(connection)
        day = self._today()
        await driver.execute(_OPEN_ALL_BALANCES, day.number, day.month_number)

    async def set_limit(self, connection: AsyncConnection, balance: BalanceId, quota: Quota) -> None:
        day, (owner, owner_id) = self._today(), balance
        period = _PERIODS[quota.period] if quota.capped else None
        driver = await _find_driver(connection)
        await driver.execute(_OPEN_BALANCE, OWNER_NUMBERS[owner], owner_id, period, day.number, day.month_number)

    async def end_balances(self, connection: AsyncConnection, owner: BalanceId) -> None:
        owners: list[BalanceId] = [owner]
        if owner[0] == "account":
            key_ids = await connection.scalars(
                select(keys.c.id).where(keys.c.account_id == owner[1]).order_by(keys.c.id)
            )
            owners += [("key", key_id) for key_id in key_ids]
        driver = await _find_driver(connection)
        for balance in owners:
            await self.set_limit(connection, balance, Quota())
            await driver.execute(_DELETE_BALANCE_LEASES, OWNER_NUMBERS[balance[0]], balance[1])

    async def add_credit(self, connection: AsyncConnection, entry: LedgerEntry) -> None:
        day = parse_day(entry.at_ms / 1000)
        owner_key = (0, entry.account_id) if entry.key_id is None else (1, entry.key_id)
        driver = await _find_driver(connection)
        await driver.execute(_ADD_CREDIT, *owner_key, day.number, day.month_number, entry.amount_nanos)

    async def reserve_job(self, connection: AsyncConnection, job: VideoJob) -> None:
        driver = await _find_driver(connection)
        await driver.execute(_RESERVE_JOB, self._node, *_build_job_arrays(job), job.held_nanos)

    async def finish_jobs(self, connection: AsyncConnection, ends: Sequence[tuple[VideoJob, RequestRecord]]) -> None:
        days = [parse_day(row.settled_ms / 1000) for _, row in ends]
        values = [
            (day.number, day.month_number, *_build_job_arrays(job), job.held_nanos, row.cost_nanos)
            for day, (job, row) in zip(days, ends, strict=True)
        ]
        await (await _find_driver(connection)).executemany(_FINISH_JOB, values)


async def clear_credit(connection: AsyncConnection, dead_s: float) -> None:
    """Delete every balance, as part of a write: a single gateway does not maintain them.

    The next start of a node creates them again. The leases of dead nodes stay.

    Raises ``DatabaseStartupError`` if a live node has sent a beat in the last ``dead_s`` seconds, or could not because
    the server has started since then. The node's lock proves nothing: a running node may lack it while it reconnects.
    """
    live_node = (await connection.execute(_FIND_LIVE_NODE, {"dead_ms": round(dead_s * 1000)})).first()
    if live_node is not None:
        raise DatabaseStartupError(
            f"The node {live_node.id} of a cluster ({live_node.url or 'without an address'}) uses the database. "
            "Stop every node first, or set cluster.enabled for this gateway. If the node was killed, or the database "
            f"has just started, try again in {dead_s:.0f} seconds"
        )
    await connection.execute(_DELETE_BALANCES)


async def delete_leases(connection: AsyncConnection, node: str) -> None:
    """Delete a node's leases, in a write of a single gateway. The node's journal has to be stored already.

    A single gateway has no balances in the database.
    """
    await connection.execute(_DELETE_LEASES, {"node": node})


def _build_job_arrays(job: VideoJob) -> tuple[Any, Any]:
    """Return the columns of the balances that a job's reservation is in, in the order in which they are locked."""
    return build_arrays(sorted(list_charged_balances(job.receipt), key=build_key))


async def _find_driver(connection: AsyncConnection) -> Connection:
    driver = (await connection.get_raw_connection()).driver_connection
    if driver is None or not driver.is_in_transaction():
        raise RuntimeError("credit outside of a transaction would commit by itself")
    return driver
