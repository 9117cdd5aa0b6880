"""Sent alerts in the database, so that a restart does not send them again."""

from collections.abc import Sequence

from sqlalchemy import delete, insert, select

from gateway.domain.alert import OpenAlert, Subject
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.schema import alerts


class AlertRepository:
    """The ``alerts`` table. Every method raises ``StoreUnavailable`` if the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_alerts(self) -> Sequence[OpenAlert]:
        rows = await self._database.read(select(alerts))
        return [OpenAlert(row.kind, row.subject, row.since_s, row.open) for row in rows]

    async def replace(self, gone: Sequence[Subject], changed: Sequence[OpenAlert]) -> None:
        async def work(connection: AsyncConnection) -> None:
            for kind, subject in (*gone, *((one.kind, one.subject) for one in changed)):
                await connection.execute(delete(alerts).where(alerts.c.kind == kind, alerts.c.subject == subject))
            if changed:
                values = [
                    {"kind": one.kind, "subject": one.subject, "since_s": one.since_s, "open": one.open}
                    for one in changed
                ]
                await connection.execute(insert(alerts), values)

        await self._database.write(work)
