"""Batches in the database. While they run, their results are in files (``batches/result_files.py``)."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from sqlalchemy import Row, Select, delete, insert, select, true, update
from sqlalchemy import func as sql
from sqlalchemy.exc import IntegrityError

from gateway.domain.batch import ENDED_STATES, RUNNING_STATUSES, Batch, BatchError, BatchFilter, BatchTally
from gateway.errors import NotFound
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import contain_text
from gateway.storage.schema import batches, requests

_COLUMNS = frozenset({"id", "account_id", "key_id", "status", "created_ms", "expires_ms", "claimed", "keep_bodies"})


def find_no_process() -> str:
    """Return the empty text, which is the name of a process outside a cluster in claims."""
    return ""


class BatchRepository:
    """The ``batches`` table. ``find_process`` returns this process's name in claims; see ``find_no_process``."""

    def __init__(self, database: Database, find_process: Callable[[], str]) -> None:
        self._database = database
        self._find_process = find_process

    async def add_batch(self, batch: Batch, *, is_own: bool = True) -> None:
        """Store a new batch. With ``is_own``, this process runs it; otherwise a node claims it.

        Raises ``NotFound`` if its account was deleted.
        """
        owner = self._find_process() if is_own else ""
        row = {**_build_row(batch), "owner": owner}

        async def add(connection: AsyncConnection) -> None:
            await connection.execute(insert(batches).values(row))

        try:
            await self._database.write(add)
        except IntegrityError:
            raise NotFound("The account was deleted") from None
        self._keep(batch, owner)

    async def save_batch(self, batch: Batch) -> bool:
        """Save a changed batch. Return False if the batch was deleted.

        In a cluster, also return False if another node runs the batch now, or has cancelled it.
        """
        values = {name: value for name, value in _build_row(batch).items() if name != "id"}
        query, owner = update(batches).where(batches.c.id == batch.id), self._find_process()
        if owner:
            query = query.where(batches.c.owner == owner)
            if batch.status in RUNNING_STATUSES:
                query = query.where(batches.c.status != "cancelling")
        is_saved = bool(await self._database.change(query.values(values)))
        if is_saved:
            self._keep(batch, owner)
        return is_saved

    async def is_own(self, batch_id: str) -> bool | None:
        """Return whether this node runs a batch; None without a cluster, or if the batch does not exist."""
        owner = self._find_process()
        rows = await self._database.read(select(batches.c.owner).where(batches.c.id == batch_id)) if owner else ()
        is_owner = rows[0][0] == owner if rows else None
        self._database.check_found(found=is_owner is True)
        return is_owner

    async def list_free(self) -> Sequence[Batch]:
        is_unfinished = batches.c.status.not_in(sorted(ENDED_STATES))
        return await self._read(
            select(batches).where(is_unfinished, batches.c.owner == "").order_by(batches.c.sequence)
        )

    async def list_cancelled(self) -> Sequence[str]:
        query = select(batches.c.id).where(batches.c.status == "cancelling", batches.c.owner == self._find_process())
        return [row[0] for row in await self._database.read(query)]

    async def claim_batch(self, batch: Batch) -> Batch | None:
        """Claim a batch that no node runs.

        Return None if another node has claimed it, or its status has changed since it was read.
        """
        claimed_batch = attrs.evolve(batch, moves=batch.moves + 1)
        row = {"owner": self._find_process(), "detail": _build_row(claimed_batch)["detail"]}
        claim_query = update(batches).where(
            batches.c.id == batch.id, batches.c.owner == "", batches.c.status == batch.status
        )

        async def claim(connection: AsyncConnection) -> bool:
            is_claimed = bool((await connection.execute(claim_query.values(row))).rowcount)
            # A replaced database may not know that another node has claimed it, or which lines were sent.
            self._database.check_found(found=False)
            return is_claimed

        if not await self._database.write_shared(claim):
            return None
        self._keep(claimed_batch, self._find_process())
        return claimed_batch

    async def cancel_batch(self, batch_id: str) -> bool:
        """Mark a batch for cancellation by the node that runs or will run it; return False if it is too late."""
        running_query = update(batches).where(batches.c.id == batch_id, batches.c.status.in_(sorted(RUNNING_STATUSES)))
        cancel_query = running_query.values(status="cancelling").returning(batches)

        async def cancel(connection: AsyncConnection) -> Row[Any] | None:
            row: Row[Any] | None = (await connection.execute(cancel_query)).first()
            return row

        row = await self._database.write_shared(cancel)
        if row is not None:
            self._keep(_parse(row), row.owner, cancelled=True)
        return row is not None

    async def find_batch(self, batch_id: str, account_id: int | None) -> Batch | None:
        query = select(batches).where(batches.c.id == batch_id)
        batches_found = await self._read(
            query if account_id is None else query.where(batches.c.account_id == account_id)
        )
        self._database.check_found(found=bool(batches_found))
        return batches_found[0] if batches_found else None

    async def list_batches(self, batch_filter: BatchFilter, limit: int) -> Sequence[Batch]:
        number, query = batches.c.sequence, select(batches).limit(limit)
        is_account = true() if batch_filter.account_id is None else batches.c.account_id == batch_filter.account_id
        query = query.where(is_account)
        for other_id, comparison in ((batch_filter.after, number.__lt__), (batch_filter.before, number.__gt__)):
            if other_id is not None:
                query = query.where(
                    comparison(select(number).where(batches.c.id == other_id, is_account).scalar_subquery())
                )
        if batch_filter.prefix is not None:
            query = query.where(batches.c.id.startswith(batch_filter.prefix, autoescape=True))
        if batch_filter.status is not None:
            query = query.where(batches.c.status == batch_filter.status)
        if batch_filter.search:
            query = query.where(contain_text(batch_filter.search, batches.c.id, batches.c.model))
        if batch_filter.live:
            query = query.where(batches.c.status.not_in(sorted(ENDED_STATES)))
        return await self._read(query.order_by(number if batch_filter.before is not None else number.desc()))

    async def sum_cost(self, batch_id: str) -> tuple[int, int]:
        """Return the number of a batch's recorded requests, and their total cost in nano-USD."""
        cost = requests.c.cost_nanos
        query: Select[Any] = select(sql.count(cost), sql.coalesce(sql.sum(cost), 0))
        sums: Any = await self._database.read(query.where(requests.c.batch_id == batch_id))
        count, nanos = sums[0]
        return count, int(nanos)  # PostgreSQL sums to a decimal type

    async def delete_batch(self, batch_id: str) -> bool:
        is_deleted = bool(await self._database.change(delete(batches).where(batches.c.id == batch_id)))
        self._database.check_found(found=is_deleted)
        if self._database.kept is not None:
            self._database.kept.keep("batch", batch_id, {"removed": batch_id})
        return is_deleted

    async def list_unfinished(self) -> Sequence[Batch]:
        return await self._read(
            select(batches).where(batches.c.status.not_in(sorted(ENDED_STATES))).order_by(batches.c.sequence)
        )

    async def sweep_batches(self, before_ms: int) -> int:
        has_ended = batches.c.status.in_(sorted(ENDED_STATES))
        return await self._database.change(delete(batches).where(has_ended, batches.c.created_ms < before_ms))

    def _keep(self, batch: Batch, owner: str, *, cancelled: bool = False) -> None:
        """Keep a batch's state in case the database loses it. ``cancelled``: this node has only cancelled the batch."""
        if self._database.kept is not None:
            state = {"row": {**_build_row(batch), "owner": owner}, "cancelled": cancelled}
            self._database.kept.keep("batch", batch.id, state)

    async def _read(self, query: Select[Any]) -> Sequence[Batch]:
        return [_parse(row) for row in await self._database.read(query)]


def _build_row(batch: Batch) -> dict[str, Any]:
    values = attrs.asdict(batch)
    row = {name: value for name, value in values.items() if name in _COLUMNS}
    return {**row, "detail": {name: value for name, value in values.items() if name not in _COLUMNS}}


def _parse(row: Row[Any]) -> Batch:
    values = row._mapping  # noqa: SLF001 - the documented access to a row's column names
    detail = dict(values["detail"])
    detail["tally"] = BatchTally(**detail["tally"])
    detail["returned"] = tuple(detail.get("returned", ()))
    detail["errors"] = tuple(BatchError(**error) for error in detail["errors"])
    return Batch(**{name: values[name] for name in _COLUMNS}, **detail)
