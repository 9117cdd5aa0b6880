"""Replaces the name of an end user in rows and sums, in commits that other writes do not wait long for."""

from collections.abc import Collection

from sqlalchemy import bindparam, select, update

from gateway.domain.limit import LimitCharge, build_charges, parse_charges
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.limit_counters import ADD_SPENT
from gateway.storage.schema import IS_NAMED, requests, subject_counts, subject_usage

_ROWS_PER_STEP = 500
_DAYS_PER_STEP = 31
_UPDATE_ROW = (
    update(requests)
    .where(requests.c.sequence == bindparam("row"))
    .values(end_user=bindparam("new_name"), limit_charges=bindparam("charges"))
)


class ForgottenUserRepository:
    """Renames an end user; with ``account_id``, in the rows and sums of that account only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rename_sums(self, name: str, new_name: str, account_id: int | None) -> int:
        """Rename the sums of all days; return their number."""
        days_query = select(subject_counts.c.day).where(subject_counts.c.kind == "user").order_by(subject_counts.c.day)
        days = [row.day for row in await self._database.read(days_query)]
        renamed = 0
        for start in range(0, len(days), _DAYS_PER_STEP):
            statement = update(subject_usage).where(
                subject_usage.c.kind == "user",
                subject_usage.c.name == "",
                subject_usage.c.day.in_(days[start : start + _DAYS_PER_STEP]),
                subject_usage.c.value == name,
            )
            if account_id is not None:
                statement = statement.where(subject_usage.c.account_id == account_id)
            renamed += await self._database.change(statement.values(value=new_name))
        return renamed

    async def rename_rows(
        self, name: str, new_name: str, account_id: int | None, used_charges: Collection[tuple[str, str]]
    ) -> int:
        """Rename the user in up to 500 request rows, and in their limit charges; return the number of rows.

        The result is 0 after the last row. The counters of limits are changed alike, except for ``used_charges``
        (counter and subject), which running requests use.
        """
        query = select(requests.c.sequence, requests.c.limit_charges, requests.c.cost_nanos)
        query = query.where(IS_NAMED["end_user"], requests.c.end_user == name)
        if account_id is not None:
            query = query.where(requests.c.account_id == account_id)
        query = query.order_by(requests.c.sequence).limit(_ROWS_PER_STEP)

        def rename(charge: LimitCharge) -> LimitCharge:
            counter, subject, start_s = charge
            account, _, user = subject.partition(":")
            is_user = counter.rsplit("|", 3)[1:2] == ["user"] and user == name
            renames = is_user and (counter, subject) not in used_charges
            return (counter, f"{account}:{new_name}", start_s) if renames else charge

        async def work(connection: AsyncConnection) -> int:
            rows = (await connection.execute(query)).all()
            sums: dict[LimitCharge, int] = {}
            changes = []
            for row in rows:
                charges = parse_charges(row.limit_charges)
                new_charges = list(map(rename, charges))
                changes.append({"row": row.sequence, "new_name": new_name, "charges": build_charges(new_charges)})
                for old, new in zip(charges, new_charges, strict=True):
                    if old != new:
                        sums[old] = sums.get(old, 0) - row.cost_nanos
                        sums[new] = sums.get(new, 0) + row.cost_nanos
            if changes:
                await connection.execute(_UPDATE_ROW, changes)
            if sums:
                await ADD_SPENT.run(connection, [(*charge, nanos) for charge, nanos in sorted(sums.items())])
            return len(rows)

        return await self._database.write(work)
