"""Replaces the name of an end user in requests, sums, balances, video jobs and the audit log.

Requests and sums may be many: they are changed in several commits, for which other writes do not wait long.
"""

from collections.abc import Collection
from typing import Any

import orjson
from sqlalchemy import bindparam, delete, func, select, text, update

from gateway.domain.limit import LimitCharge, build_charges, parse_charges, rename_charge, rename_charges
from gateway.domain.traffic import SUMMED_FIELDS
from gateway.domain.video import ENDED_STATES
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkAddition
from gateway.storage.database import Database
from gateway.storage.limit_counters import ADD_ORPHANS, ADD_SPENT
from gateway.storage.schema import (
    IS_NAMED,
    audit,
    limit_counters,
    orphan_charges,
    requests,
    subject_counts,
    subject_usage,
    videos,
)

_ROWS_PER_STEP = 500
_DAYS_PER_STEP = 31
_ADD_SUMS = BulkAddition(subject_usage, SUMMED_FIELDS)
_VALUE_INDEX = subject_usage.c.keys().index("value")
_UPDATE_ROW = (
    update(requests)
    .where(requests.c.sequence == bindparam("row"))
    .values(end_user=bindparam("new_name"), limit_charges=bindparam("charges"))
)
_UPDATE_RECEIPT = update(videos).where(videos.c.id == bindparam("job")).values(receipt=bindparam("new_receipt"))
_DELETE_EMPTY = delete(limit_counters).where(
    limit_counters.c.counter == bindparam("of"),
    limit_counters.c.subject == bindparam("named"),
    limit_counters.c.start_s == bindparam("start"),
    limit_counters.c.spent_nanos == 0,
)
_NAMED_BALANCES = text(
    r"SELECT owner_id, counter, subject FROM credit_balances WHERE owner = 2 AND counter ~ '\|user\|[^|]*\|[^|]*$'"
    " ORDER BY owner_id FOR UPDATE"
)
_UPDATE_BALANCE = text("UPDATE credit_balances SET subject = :subject WHERE owner = 2 AND owner_id = :id")
_UPDATE_DETAIL = update(audit).where(audit.c.sequence == bindparam("row")).values(detail=bindparam("new_detail"))


class ForgottenUserRepository:
    """Renames an end user; with ``account_id``, only in what belongs to that account.

    A user may be stored under several ``names``: as clients name it, and as a hash.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_last_row(self) -> int:
        """Return the sequence of the newest stored request; 0 if there is none."""
        ((sequence,),) = await self._database.read(select(func.max(requests.c.sequence)))
        return sequence or 0

    async def rename_sums(self, name: str, new_name: str, account_id: int | None) -> int:
        """Rename the sums of all days, or add them to those of the new name; return their number."""
        days_query = select(subject_counts.c.day).where(subject_counts.c.kind == "user").order_by(subject_counts.c.day)
        days = [row.day for row in await self._database.read(days_query)]
        renamed_count = 0
        for start in range(0, len(days), _DAYS_PER_STEP):
            conditions = [
                subject_usage.c.kind == "user",
                subject_usage.c.name == "",
                subject_usage.c.day.in_(days[start : start + _DAYS_PER_STEP]),
                subject_usage.c.value == name,
            ]
            if account_id is not None:
                conditions.append(subject_usage.c.account_id == account_id)

            async def work(connection: AsyncConnection, conditions: Any = tuple(conditions)) -> int:
                sums = (await connection.execute(select(subject_usage).where(*conditions))).all()
                if sums:
                    await connection.execute(delete(subject_usage).where(*conditions))
                    new_sums = [(*line[:_VALUE_INDEX], new_name, *line[_VALUE_INDEX + 1 :]) for line in sums]
                    await _ADD_SUMS.run(connection, new_sums)
                return len(sums)

            renamed_count += await self._database.write(work)
        return renamed_count

    async def rename_rows(self, name: str, new_name: str, account_id: int | None, last_sequence: int) -> int:
        """Rename the user in up to 500 request rows and in their ``limit_charges``; return the number of these rows.

        After the last row the number is 0. ``last_sequence`` is that of the newest row to rename. The counters of
        limits are changed alike.
        """
        query = select(requests.c.sequence, requests.c.limit_charges, requests.c.cost_nanos)
        query = query.where(IS_NAMED["end_user"], requests.c.end_user == name, requests.c.sequence <= last_sequence)
        if account_id is not None:
            query = query.where(requests.c.account_id == account_id)
        query = query.order_by(requests.c.sequence).limit(_ROWS_PER_STEP)

        async def work(connection: AsyncConnection) -> int:
            rows = (await connection.execute(query)).all()
            sums: dict[LimitCharge, int] = {}
            changes = []
            for row in rows:
                charges = parse_charges(row.limit_charges)
                new_charges = [rename_charge(charge, {name}, new_name) for charge in charges]
                changes.append({"row": row.sequence, "new_name": new_name, "charges": build_charges(new_charges)})
                for old_charge, new_charge in zip(charges, new_charges, strict=True):
                    if old_charge != new_charge:
                        sums[old_charge] = sums.get(old_charge, 0) - row.cost_nanos
                        sums[new_charge] = sums.get(new_charge, 0) + row.cost_nanos
            if changes:
                await connection.execute(_UPDATE_ROW, changes)
            if sums:
                await ADD_SPENT.run(connection, [(*charge, nanos) for charge, nanos in sorted(sums.items())])
                for counter, subject, start_s in sorted(charge for charge, nanos in sums.items() if nanos < 0):
                    await connection.execute(_DELETE_EMPTY, {"of": counter, "named": subject, "start": start_s})
            return len(rows)

        return await self._database.write(work)

    async def rename_balances(self, names: Collection[str], new_name: str, account_id: int | None) -> None:
        """Rename the user in the balances from which nodes of a cluster take credit, and in charges for dead nodes.

        Both may keep the name for long: until a dead node comes back, its credit stays set aside, or counts as spent.
        """
        await self._rename_orphans(names, new_name, account_id)
        if self._database.credit is None:
            return

        async def work(connection: AsyncConnection) -> None:
            for row in (await connection.execute(_NAMED_BALANCES)).all():
                charge = rename_charge((row.counter, row.subject, 0), names, new_name)
                if charge[1] != row.subject and account_id in {None, int(row.subject.partition(":")[0])}:
                    await connection.execute(_UPDATE_BALANCE, {"id": row.owner_id, "subject": charge[1]})

        await self._database.write(work)

    async def _rename_orphans(self, names: Collection[str], new_name: str, account_id: int | None) -> None:
        async def work(connection: AsyncConnection) -> None:
            sums, orphans = [], []
            for row in (await connection.execute(select(orphan_charges))).all():
                charge = row.counter, row.subject, row.start_s
                new_charge = rename_charge(charge, names, new_name)
                if new_charge != charge and account_id in {None, int(row.subject.partition(":")[0])}:
                    place = zip(orphan_charges.c, (row.node, *charge), strict=False)
                    await connection.execute(
                        delete(orphan_charges).where(*[column == value for column, value in place])
                    )
                    sums += [(*charge, -row.spent_nanos), (*new_charge, row.spent_nanos)]
                    orphans.append((row.node, *new_charge, row.spent_nanos))
            if sums:
                await ADD_SPENT.run(connection, sorted(sums))
                await ADD_ORPHANS.run(connection, orphans)
                for counter, subject, start_s, nanos in sums:
                    if nanos < 0:
                        await connection.execute(_DELETE_EMPTY, {"of": counter, "named": subject, "start": start_s})

        if await self._database.read(select(orphan_charges.c.node).limit(1)):
            await self._database.write(work)

    async def rename_videos(self, names: Collection[str], new_name: str, account_id: int | None) -> int:
        """Rename the user in the receipts of video jobs; return their number.

        In a cluster, the counters in the receipt of an open job keep the name, because money is set aside in them.
        """
        query = select(videos.c.id, videos.c.state, videos.c.receipt)
        query = query.where(videos.c.receipt.contains('"end_user":"', autoescape=True))
        is_shared = self._database.credit is not None
        if account_id is not None:
            query = query.where(videos.c.account_id == account_id)

        async def work(connection: AsyncConnection) -> int:
            changes = []
            for row in (await connection.execute(query)).all():
                receipt = orjson.loads(row.receipt)
                if receipt["end_user"] in names:
                    receipt["end_user"] = new_name
                    if receipt.get("limit_charges") and (row.state in ENDED_STATES or not is_shared):
                        receipt["limit_charges"] = rename_charges(receipt["limit_charges"], names, new_name)
                    new_receipt = orjson.dumps(receipt).decode()
                    changes.append({"job": row.id, "new_receipt": new_receipt})
            if changes:
                await connection.execute(_UPDATE_RECEIPT, changes)
            return len(changes)

        return await self._database.write(work)

    async def rename_audit(self, names: Collection[str], new_name: str, account_id: int | None) -> int:
        """Rename the user in the audit rows of changed keys; return the number of changed rows."""
        is_key = func.substr(audit.c.action, 1, len("key.")) == "key."
        query = select(audit.c.sequence, audit.c.detail).where(is_key, audit.c.detail.contains('"user":'))
        if account_id is not None:
            query = query.where(audit.c.account_id == account_id)

        async def work(connection: AsyncConnection) -> int:
            changes = []
            for row in (await connection.execute(query)).all():
                detail = orjson.loads(row.detail)
                users = detail.get("user")
                if isinstance(users, list) and not set(names).isdisjoint(users):
                    new_users = [new_name if user in names else user for user in users]
                    new_detail = orjson.dumps({**detail, "user": new_users}).decode()
                    changes.append({"row": row.sequence, "new_detail": new_detail})
            if changes:
                await connection.execute(_UPDATE_DETAIL, changes)
            return len(changes)

        return await self._database.write(work)
