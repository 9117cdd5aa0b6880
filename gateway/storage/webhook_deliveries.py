"""Webhook deliveries in the database, from the end of a job until retention deletes them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Executable, Select, bindparam, case, delete, func, select, update

from gateway.domain.webhook import WebhookDelivery
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.row_mapping import DELIVERY_COLUMNS, Values, build_delivery_row, parse_delivery
from gateway.storage.schema import HAS_DUE_TIME, deliveries

_COLUMNS = tuple(deliveries.c[name] for name in DELIVERY_COLUMNS)
_DUE_INDEX = DELIVERY_COLUMNS.index("due_ms")
_IS_DUE = deliveries.c.due_ms <= bindparam("now_ms")
_IS_FREE = deliveries.c.lease_until_ms <= bindparam("now_ms")


def _write_choice() -> Select[tuple[int]]:
    """Return the statement that selects claimable deliveries by their position in their account.

    Deliveries in progress take the first positions.
    """
    due_ms, sequence, lease_until_ms = deliveries.c.due_ms, deliveries.c.sequence, deliveries.c.lease_until_ms
    rank = func.row_number().over(
        partition_by=deliveries.c.account_id, order_by=(case((_IS_FREE, 1), else_=0), due_ms, sequence)
    )
    ranked_deliveries = select(due_ms, sequence, lease_until_ms, rank.label("place")).where(_IS_DUE).subquery()
    return (
        select(ranked_deliveries.c.sequence)
        .where(
            ranked_deliveries.c.lease_until_ms <= bindparam("now_ms"), ranked_deliveries.c.place <= bindparam("each")
        )
        .order_by(ranked_deliveries.c.place, ranked_deliveries.c.due_ms, ranked_deliveries.c.sequence)
        .limit(bindparam("most"))
    )


_CHOOSE_DUE = _write_choice()
_CLAIM_DELIVERY = (
    update(deliveries)
    .where(deliveries.c.sequence.in_(_CHOOSE_DUE), _IS_DUE, _IS_FREE)  # repeated, for databases with several writers
    .values(owner=bindparam("by"), lease_until_ms=bindparam("until_ms"))
    .returning(*_COLUMNS, deliveries.c.sequence)
)

_UPDATE_DELIVERY = update(deliveries).where(
    deliveries.c.id == bindparam("delivery_id"), deliveries.c.status == "pending"
)


class WebhookDeliveryRepository:
    """The ``deliveries`` table; ``VideoRepository.finish`` adds its rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_deliveries(
        self,
        process: str,
        now_ms: int,
        *,
        claim_ms: int,
        max_rows: int,
        max_per_account: int,
        accounts: frozenset[int] | None = None,
    ) -> Sequence[WebhookDelivery]:
        """Claim due deliveries on which no live process works; return them, longest due first.

        ``max_rows`` limits all of them, ``max_per_account`` an account's deliveries in progress. If too many are due,
        accounts with few deliveries in progress come first. ``accounts`` are those of this node's share; None for a
        single process.
        """
        if accounts is not None:
            return await self._claim_share(
                {
                    "by": process,
                    "now_ms": now_ms,
                    "until_ms": now_ms + claim_ms,
                    "most": max_rows,
                    "each": max_per_account,
                },
                accounts,
            )
        choice = {"now_ms": now_ms, "most": max_rows, "each": max_per_account}
        if not await self._database.read(_CHOOSE_DUE.params(choice)):  # a read needs neither the writer nor a commit
            return []
        return await self._claim(_CLAIM_DELIVERY, {**choice, "by": process, "until_ms": now_ms + claim_ms})

    async def _claim_share(self, values: Values, accounts: frozenset[int]) -> Sequence[WebhookDelivery]:
        from gateway.storage.shared_claims import write_delivery_claim  # noqa: PLC0415 - only in a cluster

        if not accounts:
            return []
        due_query = (
            select(deliveries.c.id).where(_IS_DUE, _IS_FREE, deliveries.c.account_id.in_(sorted(accounts))).limit(1)
        )
        if not await self._database.read(due_query.params(now_ms=values["now_ms"])):
            return []
        return await self._claim(write_delivery_claim(), {**values, "only": sorted(accounts)})

    async def _claim(self, claim: Executable, values: Values) -> Sequence[WebhookDelivery]:
        async def work(connection: AsyncConnection) -> list[WebhookDelivery]:
            rows = (await connection.execute(claim, values)).all()
            return [parse_delivery(row[:-1]) for row in sorted(rows, key=lambda row: (row[_DUE_INDEX], row[-1]))]

        return await self._database.write(work)

    async def list_due_accounts(self, process: str, now_ms: int) -> Sequence[tuple[int, bool]]:
        """Return the accounts with pending deliveries, and whether a node other than ``process`` is sending some."""
        from gateway.storage.shared_claims import write_due_accounts  # noqa: PLC0415 - only in a cluster

        rows: Any = await self._database.read(write_due_accounts().params(by=process, now_ms=now_ms))
        return [(row[0], bool(row[1])) for row in rows]

    async def note_delivery(self, delivery: WebhookDelivery) -> None:
        """Store the result of an attempt. A delivery that has ended is not reopened."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(_UPDATE_DELIVERY, {"delivery_id": delivery.id, **build_delivery_row(delivery)})

        await self._database.write_shared(work)

    async def list_deliveries(
        self, *, video_id: str | None, limit: int, account_id: int | None = None
    ) -> Sequence[WebhookDelivery]:
        statement = select(*_COLUMNS).order_by(deliveries.c.sequence.desc()).limit(limit)
        if video_id is not None:
            statement = statement.where(deliveries.c.video_id == video_id)
        if account_id is not None:
            statement = statement.where(deliveries.c.account_id == account_id)
        return [parse_delivery(row) for row in await self._database.read(statement)]

    async def find_next_delivery(self, accounts: frozenset[int] | None = None) -> int | None:
        """Return when the next delivery of ``accounts`` is due, in Unix ms, claimed or not; None without one.

        ``accounts`` None: of all.
        """
        query = select(func.min(deliveries.c.due_ms)).where(HAS_DUE_TIME)
        if accounts is not None:
            query = query.where(deliveries.c.account_id.in_(sorted(accounts)))
        ((due_ms,),) = await self._database.read(query)
        return None if due_ms is None else int(due_ms)

    async def free_deliveries(self, process: str) -> int:
        """Release the claims of all other processes; return their number. No other process may use the database."""
        release_query = update(deliveries).where(HAS_DUE_TIME, deliveries.c.owner != process, deliveries.c.owner != "")
        return await self._database.change(release_query.values(owner="", lease_until_ms=0))

    async def sweep_deliveries(self, before_ms: int) -> int:
        return await self._database.change(delete(deliveries).where(deliveries.c.ended_ms < before_ms))
