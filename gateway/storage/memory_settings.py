"""Settings in memory. It ships, and keeps the same contract as the database's."""

from collections.abc import Sequence

from gateway.domain.audit_log import AuditRow
from gateway.domain.setting import Setting
from gateway.storage.memory_audit import MemoryAuditTrail


class MemorySettingStore:
    """``domain.setting.SettingStore`` in a dictionary; ``trail`` has who changed what."""

    def __init__(self, trail: MemoryAuditTrail) -> None:
        self._trail = trail
        self._settings: dict[str, Setting] = {}

    async def list_settings(self) -> Sequence[Setting]:
        """Every setting, by path."""
        return [self._settings[path] for path in sorted(self._settings)]

    async def put_setting(self, setting: Setting, audit: AuditRow | None = None) -> None:
        """Store a setting."""
        self._settings[setting.path] = setting
        self._trail.note(audit)

    async def delete_setting(self, path: str, audit: AuditRow | None = None) -> bool:
        """Remove a setting."""
        if self._settings.pop(path, None) is None:
            return False
        self._trail.note(audit)
        return True
