"""A node's connection to the credit leases in PostgreSQL: it runs one statement at a time and receives recalls."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog

from gateway.cluster.credit.grant_gate import CreditHeldBack, GrantGate
from gateway.cluster.credit.rows import (
    LIMITS_LOCK,
    Connection,
    end_leases,
    find_leases,
    return_credit,
    take_credit,
    take_limit_credit,
)
from gateway.domain.balance import BalanceOwner, UtcDay
from gateway.domain.credit import (
    BalanceId,
    CreditGrant,
    CreditRecalled,
    CreditRequest,
    CreditReturned,
    RecallAnswered,
    StoredLease,
)
from gateway.errors import StoreUnavailable
from gateway.events import Events
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.hosts import FAILURES
from gateway.storage.postgres.incarnation import read_generation

STATEMENT_TIMEOUT_S = 2.0
"""Time limit of a statement. Then the connection is closed, because the server may or may not have finished it."""
END_LEASES_TIMEOUT_S = 10.0
CHANNEL = "gateway_credit"
_NOTIFY_NODES = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload"
_AWAIT_WRITES = "SELECT pg_advisory_xact_lock_shared($1)"
_TERMINATE_CONNECTION = """
SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE pid = $1 AND application_name = $2
"""
_BALANCES_PER_NOTIFICATION = 200
"""Balances per notification: PostgreSQL limits a notification to 8,000 bytes."""
_OWNERS_BY_LETTER: dict[str, BalanceOwner] = {"a": "account", "k": "key", "l": "limit"}
OVERDRAFT_LOCKS: Mapping[BalanceOwner, int] = {"account": 7131, "key": 7132, "limit": 7133}
"""The first keys of the advisory locks for overdrafts; the second key is the balance's id modulo 2**31 - 1."""
_LOCK_OVERDRAFT = "SELECT pg_try_advisory_lock($1, ($2::bigint % 2147483647)::integer)"
_UNLOCK_OVERDRAFT = "SELECT pg_advisory_unlock($1, ($2::bigint % 2147483647)::integer)"

log = structlog.stdlib.get_logger(__name__)


class PostgresCreditAuthority:
    """Takes and returns the credit of one node over a dedicated connection.

    Recalls, and news of added credit, go to the other nodes by NOTIFY. Both may be lost, which only costs a wait.
    ``node``: the id of the node. ``count_live``: returns the number of live nodes, at least 1. ``events``: gets
    events about other nodes. ``gate``: holds back credit after the server was replaced; None if nothing does.
    """

    def __init__(
        self,
        address: Address,
        node: str,
        count_live: Callable[[], int],
        events: Events,
        *,
        gate: GrantGate | None = None,
    ) -> None:
        self._address = address
        self._node = node
        self._count_live = count_live
        self._connection: Connection | None = None
        self._pid = self._former_pid = 0
        self._overdrafts: set[BalanceId] = set()
        self._lock = asyncio.Lock()
        self._events = events
        self._gate = gate
        self._generation = ""
        self._is_granting = gate is None

    async def take(self, credit_requests: Sequence[CreditRequest], day: UtcDay) -> Sequence[CreditGrant]:
        async with self._use_connection() as connection:
            if self._gate is not None and not self._is_granting:
                await self._gate.check_granting(connection, self._generation)
                self._is_granting = True
            limit_requests = [request for request in credit_requests if request.terms is not None]
            if not limit_requests:
                return await take_credit(connection, self._node, self._count_live(), day, credit_requests)
            other_requests = [request for request in credit_requests if request.terms is None]
            grants = [*await take_limit_credit(connection, self._node, self._count_live(), limit_requests)]
            if other_requests:
                grants += await take_credit(connection, self._node, self._count_live(), day, other_requests)
            return grants

    async def return_credit(
        self, amounts: Mapping[BalanceId, int], reported_balances: Collection[BalanceId] = ()
    ) -> None:
        async with self._use_connection() as connection:
            messages = self._write_messages("returned", reported_balances)
            await return_credit(connection, self._node, amounts, CHANNEL, messages)

    async def report_kept(self, balances: Collection[BalanceId]) -> None:
        async with self._use_connection() as connection:
            await self._notify(connection, "kept", balances)

    async def recall(self, balances: Collection[BalanceId]) -> None:
        async with self._use_connection() as connection:
            await self._notify(connection, "recall", balances)

    async def take_overdrafts(self, balances: Collection[BalanceId]) -> bool:
        """Take overdrafts of all ``balances``, or of none; return whether they were taken.

        Each is an advisory lock. It ends with the connection, and the next connection takes it again.
        """
        async with self._use_connection() as connection:
            locked_balances = [balance for balance in sorted(balances) if await _lock(connection, balance)]
            if len(locked_balances) < len(balances):
                await _unlock(connection, locked_balances)
                return False
            self._overdrafts |= set(locked_balances)
            return True

    async def end_overdrafts(self, balances: Collection[BalanceId]) -> None:
        ended_balances = self._overdrafts.intersection(balances)
        self._overdrafts -= ended_balances
        if ended_balances:
            async with self._use_connection() as connection:
                await _unlock(connection, ended_balances)

    async def find_leases(self) -> Sequence[StoredLease]:
        is_first_use = self._connection is None
        try:
            return await self._read_leases()
        except StoreUnavailable:
            if is_first_use:
                raise
        return await self._read_leases()  # a restart had closed the connection, and a read can safely be repeated

    async def _read_leases(self) -> Sequence[StoredLease]:
        async with self._use_connection() as connection, connection.transaction():
            await connection.execute(_AWAIT_WRITES, LIMITS_LOCK)  # a job may be about to take its credit
            return await find_leases(connection, self._node)

    async def end_leases(self) -> None:
        async with self._use_connection(END_LEASES_TIMEOUT_S) as connection:
            await end_leases(connection, self._node)

    async def listen(self) -> None:
        async with self._use_connection():
            pass

    async def close(self) -> None:
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.terminate()

    @asynccontextmanager
    async def _use_connection(self, timeout_s: float = STATEMENT_TIMEOUT_S) -> AsyncIterator[Connection]:
        """Hold the connection exclusively for one operation.

        Any exception but ``CreditHeldBack``, including cancellation, closes the connection.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(timeout_s):
                    connection = await self._connect()
                    if self._gate is not None:
                        self._gate.check_restored(self._generation)
                    yield connection
            except CreditHeldBack:
                raise
            except BaseException as error:
                if self._connection is not None:
                    self._former_pid = self._pid
                    self._connection.terminate()
                    self._connection = None
                if not isinstance(error, FAILURES):
                    raise
                log.warning("credit_unanswered", error=str(error) or type(error).__name__)
                raise StoreUnavailable("The gateway's store does not answer", retry_after_s=2) from error

    async def _connect(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            connection = await self._address.connect(
                statement_timeout=f"{int(END_LEASES_TIMEOUT_S * 1000)}ms",
                lock_timeout="1500ms",
                idle_in_transaction_session_timeout="10s",
            )
            if self._former_pid:  # no statement of the former connection may take effect after the leases are read
                await connection.execute(_TERMINATE_CONNECTION, self._former_pid, self._address.user)
                self._former_pid = 0
            self._overdrafts = {balance for balance in sorted(self._overdrafts) if await _lock(connection, balance)}
            await connection.add_listener(CHANNEL, self._on_notification)
            if self._gate is not None:
                self._generation, self._is_granting = await read_generation(connection), False
            # asyncpg no longer knows the server process of a connection that was closed.
            self._pid, self._connection = connection.get_server_pid(), connection
        return self._connection

    async def _notify(self, connection: Connection, verb: str, balances: Iterable[BalanceId]) -> None:
        await connection.execute(_NOTIFY_NODES, CHANNEL, self._write_messages(verb, balances))

    def _write_messages(self, verb: str, balances: Iterable[BalanceId]) -> Sequence[str]:
        names = [f"{owner[0]}{number}" for owner, number in sorted(balances)]
        return [f"{verb} {self._node} {' '.join(batch)}" for batch in _batch(names, _BALANCES_PER_NOTIFICATION)]

    def _on_notification(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        verb, node, *names = payload.split()
        if node == self._node:
            return
        balances = [(_OWNERS_BY_LETTER[name[0]], int(name[1:])) for name in names]
        if verb == "recall":
            self._events.publish(CreditRecalled(balances))
            return
        if verb == "returned":
            self._events.publish(CreditReturned(balances))
        self._events.publish(RecallAnswered(node, balances))


async def _lock(connection: Connection, balance: BalanceId) -> bool:
    return bool(await connection.fetchval(_LOCK_OVERDRAFT, OVERDRAFT_LOCKS[balance[0]], balance[1]))


async def _unlock(connection: Connection, balances: Iterable[BalanceId]) -> None:
    for owner, number in balances:
        await connection.execute(_UNLOCK_OVERDRAFT, OVERDRAFT_LOCKS[owner], number)


def _batch(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))
