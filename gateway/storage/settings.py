"""Settings in the database."""

from collections.abc import Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.audit_log import AuditRow
from gateway.domain.setting import Setting
from gateway.storage.database import Database
from gateway.storage.schema import settings


class SettingRepository:
    """``domain.setting.SettingStore`` over the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_settings(self) -> Sequence[Setting]:
        """Every setting, by path."""
        rows = await self._database.read(select(settings).order_by(settings.c.path))
        return [Setting(row.path, row.value, row.changed_ms) for row in rows]

    async def put_setting(self, setting: Setting, audit: AuditRow | None = None) -> None:
        """Store a setting."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(delete(settings).where(settings.c.path == setting.path))
            values = {"path": setting.path, "value": setting.value, "changed_ms": setting.changed_ms}
            await connection.execute(insert(settings).values(values))

        await self._database.write(work, audit)

    async def delete_setting(self, path: str, audit: AuditRow | None = None) -> bool:
        """Remove a setting."""
        return bool(await self._database.change(delete(settings).where(settings.c.path == path), audit))
