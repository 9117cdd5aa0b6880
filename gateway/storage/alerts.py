"""Sent alerts in the database, so that a restart does not send them again."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import delete, insert, select

from gateway.domain.alert import AlertKind, OpenAlert, Subject
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.schema import alerts

_MAX_DELETED = 500
"""Maximum number of alerts that one statement deletes."""


class AlertRepository:
    """The ``alerts`` table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_alerts(self) -> Sequence[OpenAlert]:
        rows = await self._database.read(select(alerts))
        return [OpenAlert(row.kind, row.subject, row.since_s, row.open) for row in rows]

    async def replace(self, gone_subjects: Sequence[Subject], changed_alerts: Sequence[OpenAlert]) -> None:
        async def work(connection: AsyncConnection) -> None:
            subjects_by_kind: defaultdict[AlertKind, list[str]] = defaultdict(list)
            for kind, subject in (*gone_subjects, *((alert.kind, alert.subject) for alert in changed_alerts)):
                subjects_by_kind[kind].append(subject)
            for kind, subjects in subjects_by_kind.items():
                for first in range(0, len(subjects), _MAX_DELETED):
                    is_chosen = alerts.c.subject.in_(subjects[first : first + _MAX_DELETED])
                    await connection.execute(delete(alerts).where(alerts.c.kind == kind, is_chosen))
            if changed_alerts:
                values = [
                    {"kind": alert.kind, "subject": alert.subject, "since_s": alert.since_s, "open": alert.open}
                    for alert in changed_alerts
                ]
                await connection.execute(insert(alerts), values)

        await self._database.write(work)
