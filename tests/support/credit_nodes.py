"""Nodes that spend credit leases of one PostgreSQL database at random, and an auditor that looks at it meanwhile.

Each node has a connection for leases and one for rows, as a gateway has. It can be killed: its connections are cut,
what it knew is gone, and its journal of settled rows stays. It hears of a change of a limit with some later request,
or not at all before the next change. What is wrong in any snapshot is collected.
"""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import asyncpg
import attrs

from gateway.cluster.credit.rows import (
    LIMITS_LOCK,
    Connection,
    end_leases,
    find_leases,
    post_spending,
    return_credit,
    take_credit,
)
from gateway.domain.balance import Quota, QuotaPeriod, UtcDay, parse_day
from gateway.domain.credit import BalanceId, CreditGrant, CreditRequest
from gateway.domain.leased_balance import LeasedBalance

DAY_S = 86_400
FIRST_DAY = 20_000
PERIODS: dict[QuotaPeriod, int | None] = {"none": None, "lifetime": 0, "daily": 1, "monthly": 2}
LIMITS: dict[BalanceId, Quota] = {
    ("account", 1): Quota(90_000, "daily"),
    ("key", 11): Quota(60_000, "lifetime"),
    ("key", 12): Quota(50_000, "daily"),
    ("key", 13): Quota(),
}
MOST = 800
"""The largest reservation in nano-USD."""
_AUDIT = """
SELECT b.*, credit_limit(b.owner, b.owner_id) AS cap, charged_since(b.owner, b.owner_id, b.start) AS charged,
  credited_since(b.owner, b.owner_id, b.start) AS credited,
  held_by_jobs(b.owner, b.owner_id) AS held,
  coalesce(sum(l.granted), 0) AS granted, coalesce(sum(l.posted), 0) AS posted,
  coalesce(sum(greatest(l.posted - l.granted, 0)), 0) AS overrun
FROM credit_balances b LEFT JOIN credit_leases l USING (owner, owner_id) WHERE b.owner < 2 GROUP BY b.owner, b.owner_id
"""
CHARGE = """
INSERT INTO usage_days (day, account_id, key_id, model, requests, prompt_tokens, completion_tokens, cached_tokens,
  cost_nanos) VALUES ($1, $2, $3, 'm', 1, 0, 0, 0, $4) ON CONFLICT (day, account_id, key_id, model)
DO UPDATE SET cost_nanos = usage_days.cost_nanos + excluded.cost_nanos
"""


@attrs.frozen
class Row:
    """A settled request."""

    id: str
    account: int
    key: int
    cost: int
    day: UtcDay

    @property
    def balances(self) -> tuple[BalanceId, BalanceId]:
        return ("account", self.account), ("key", self.key)


@attrs.define(eq=False)
class World:
    """What all nodes share: the database, the day, the limits, and the random numbers.

    What may be spent and set aside of a balance is its limit, or ``before`` if that is more: what was so when the limit
    was set; and what is ``beside`` all leases: nodes have admitted it without a limit, before or after that. Of a
    balance whose limit was ``removed`` once, the store may have set aside more than a node counts: what is posted
    without a limit and a lease is in no lease. No balance is looked at while its limit is ``changing``.
    """

    dsn: str
    chance: random.Random
    day: UtcDay = attrs.Factory(lambda: parse_day(FIRST_DAY * DAY_S))
    overruns: bool = False
    ending: bool = False
    limits: dict[BalanceId, Quota] = attrs.Factory(lambda: dict(LIMITS))
    before: Counter[BalanceId] = attrs.Factory(Counter)
    beside: Counter[BalanceId] = attrs.Factory(Counter)
    removed: set[BalanceId] = attrs.Factory(set)
    changing: asyncio.Lock = attrs.Factory(asyncio.Lock)
    wrong: list[str] = attrs.Factory(list)
    done: Counter[str] = attrs.Factory(Counter)
    numbers: "itertools.count[int]" = attrs.Factory(itertools.count)

    async def connect(self) -> Connection:
        return await asyncpg.connect(self.dsn)


@attrs.define(eq=False)
class Node:
    """One gateway, as far as money goes."""

    name: str
    world: World
    journal: list[Row]
    leases: dict[BalanceId, LeasedBalance] = attrs.field(init=False)
    granting: asyncio.Lock = attrs.Factory(asyncio.Lock)
    posting: asyncio.Lock = attrs.Factory(asyncio.Lock)
    lane: Connection = attrs.field(init=False)
    rows: Connection = attrs.field(init=False)

    async def start(self) -> None:
        """Connect, post the journal, and end the leases of the life before."""
        self.leases = {balance: LeasedBalance(balance[0], owner_id=balance[1]) for balance in LIMITS}
        for balance in self.leases:
            self._hear(balance)
        self.lane, self.rows = await self.world.connect(), await self.world.connect()
        await self.flush(known=True)
        await end_leases(self.lane, self.name)

    async def take(self, credit_requests: list[CreditRequest], day: UtcDay, *, lost: bool = False) -> None:
        """Ask for credit; ``lost``: the answer never arrives, and the node looks at what the store has."""
        async with self.granting:
            quotas = {request.balance: self.leases[request.balance].quota for request in credit_requests}
            grants = await take_credit(self.lane, self.name, 4, day, credit_requests)
            if not lost:
                self._accept(grants, quotas)
                return
            await self._read_back()
        self.world.done["lost"] += 1

    async def _read_back(self) -> None:
        async with self.posting:
            stored = {lease.balance: lease for lease in await find_leases(self.lane, self.name)}
            unposted = await self._sum_unposted()
            for balance, lease in self.leases.items():
                lease.resync(stored.get(balance), unposted[balance])

    def _accept(self, grants: Sequence[CreditGrant], quotas: Mapping[BalanceId, Quota]) -> None:
        for grant in grants:
            lease = self.leases[grant.balance]
            if not grant.limited:
                lease.unlimited = quotas[grant.balance]
                continue
            lease.grant(grant.granted_nanos)
            if lease.exceeds(grant.outstanding_nanos):
                self.world.wrong.append(f"{self.name} has {lease} of {grant}")

    async def _sum_unposted(self) -> Counter[BalanceId]:
        known = await self._find_stored([row.id for row in self.journal])
        sums: Counter[BalanceId] = Counter()
        for row in self.journal:
            if row.id not in known:
                sums.update(dict.fromkeys(row.balances, row.cost))
        return sums

    async def _find_stored(self, ids: list[str]) -> set[str]:
        found = await self.rows.fetch("SELECT request_id FROM entries WHERE request_id = ANY($1)", ids)
        return {row["request_id"] for row in found}

    async def hold(self, balances: tuple[BalanceId, BalanceId], nanos: int) -> bool:
        """Reserve in both balances or in none, with one question to the store at most."""
        chance = self.world.chance
        for each in balances:
            if chance.random() < 0.2:
                self._hear(each)
        for last in (False, True):
            if any(self.leases[each].leased and self.leases[each].lease_unknown for each in balances):
                async with self.granting:
                    await self._read_back()
            short = [each for each in balances if not self.leases[each].covers(nanos)]
            if not short:
                for each in balances:
                    self._reserve(each, nanos)
                return True
            if last:
                return False
            credit_requests = [CreditRequest(each, lack, lack, lack + 3 * nanos) for each in short
                     if (lack := nanos - self.leases[each].room_nanos)]  # fmt: skip
            await self.take(credit_requests, self.world.day, lost=chance.random() < 0.03)
        raise AssertionError

    def _hear(self, balance: BalanceId) -> None:
        """Apply the current limit."""
        lease, quota = self.leases[balance], self.world.limits[balance]
        if quota is not lease.quota:
            lease.set_quota(quota, self.world.day)
            self.world.done["heard"] += 1

    def _reserve(self, balance: BalanceId, nanos: int) -> None:
        lease = self.leases[balance]
        lease.hold(nanos)
        if not lease.leased and self.world.limits[balance].capped:
            self.world.beside[balance] += nanos
            self.world.done["late"] += 1

    def settle(self, row: Row, held: int) -> None:
        """Charge a request."""
        for each in row.balances:
            self.leases[each].settle(held, row.cost, row.day)
        self.journal.append(row)

    async def sum_beside(self, balance: BalanceId, outstanding: int) -> int:
        """Return what is reserved and not posted, and the store has not set aside. Nothing is posted meanwhile."""
        held = self.leases[balance].held_nanos  # now: what is settled meanwhile may be counted twice, but not left out
        unposted = await self._sum_unposted()
        return max(0, held + unposted[balance] - max(0, outstanding))

    async def flush(self, *, known: bool = False) -> None:
        """Store the journal's rows, each once; ``known``: some may be there already."""
        async with self.posting:
            rows = list(self.journal)
            if known:
                stored = await self._find_stored([row.id for row in rows])
                fresh = [row for row in rows if row.id not in stored]
            else:
                fresh = rows
            for day in sorted({row.day for row in fresh}, key=lambda each: each.number):
                some = [row for row in fresh if row.day is day or row.day == day]
                await self._post(some, day)
            del self.journal[: len(rows)]

    async def _post(self, rows: list[Row], day: UtcDay) -> None:
        sums: Counter[BalanceId] = Counter()
        async with self.rows.transaction():
            await self.rows.execute("SELECT pg_advisory_xact_lock_shared($1)", LIMITS_LOCK)
            for row in sorted(rows, key=lambda each: each.key):
                await insert_charge(self.rows, row)
                sums.update(dict.fromkeys(row.balances, row.cost))
            await post_spending(self.rows, self.name, day, sums)

    async def give_back(self) -> None:
        """Return idle credit of one balance."""
        async with self.granting:
            balance = self.world.chance.choice(list(self.leases))
            if given := self.leases[balance].return_credit(self.world.chance.randrange(2 * MOST)):
                await return_credit(self.lane, self.name, {balance: given})

    async def end(self) -> None:
        """Store every row, compare each lease with what the store has of it, and end them all."""
        await self.flush()
        stored = {lease.balance: lease for lease in await find_leases(self.lane, self.name)}
        for balance, lease in self.leases.items():
            there = stored[balance].outstanding_nanos if balance in stored else 0
            here = lease.granted_nanos - lease.used_nanos
            wrong = here > there if balance in self.world.removed else here != there
            if lease.held_nanos or (lease.leased and not lease.lease_unknown and wrong):
                self.world.wrong.append(f"{self.name} has {lease} of {balance}, the store {there}")
        await end_leases(self.lane, self.name)
        self.kill()

    def kill(self) -> None:
        """End at once, as ``kill -9`` does."""
        self.lane.terminate()
        self.rows.terminate()


async def insert(connection: Connection, table: str, **values: object) -> None:
    """Insert a row; columns that must have a value and are not named are empty or 0."""
    columns = await connection.fetch(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'public'"
        " AND table_name = $1 AND is_nullable = 'NO' AND column_default IS NULL AND NOT column_name = ANY($2)",
        table, list(values),
    )  # fmt: skip
    empty = {"bigint": 0, "boolean": False, "bytea": b"", "json": "[]"}
    row = {**values, **{name: empty.get(kind, "") for name, kind in columns}}
    names = ", ".join(f'"{name}"' for name in row)
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", *row.values())  # noqa: S608 - our own


async def insert_charge(connection: Connection, row: Row) -> None:
    """Store a row's charge, as the ledger does."""
    await connection.execute(
        "INSERT INTO entries (at_ms, kind, account_id, key_id, amount_nanos, request_id)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        row.day.start_s * 1000, "charge", row.account, row.key, row.cost, row.id,
    )  # fmt: skip
    await connection.execute(CHARGE, row.day.number, row.account, row.key, row.cost)


async def look(connection: Connection, world: World) -> None:
    """Check every balance in one snapshot."""
    async with world.changing, connection.transaction(isolation="repeatable_read", readonly=True):
        for b in await connection.fetch(_AUDIT):
            world.done["looked"] += 1
            owner: BalanceId = ("key" if b["owner"] else "account", b["owner_id"])
            spent = b["settled"] + b["leased"] + b["reserved"] + b["overrun"]
            most = max(b["cap"] + b["credit"], world.before[owner]) + world.beside[owner]
            faults = {
                f"above {most}": not world.overruns and spent > most,
                "leases": b["leased"] != b["granted"],
                "charges": b["settled"] + b["posted"] != b["charged"],
                "credit": b["credit"] != b["credited"],
                "jobs": b["reserved"] != b["held"],
            }
            world.wrong += [f"{name}: {dict(b)}" for name, fault in faults.items() if fault]


async def watch(connection: Connection, world: World) -> None:
    """Look again and again."""
    while True:
        await look(connection, world)
        await asyncio.sleep(0.01)


async def repeat(world: World, work: Callable[[], Awaitable[None]], pause_s: Callable[[], float]) -> None:
    """Do ``work`` again and again until the world ends; a connection that was cut ends it, too."""
    with contextlib.suppress(asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError):
        while not world.ending:
            await work()
            await asyncio.sleep(pause_s())
