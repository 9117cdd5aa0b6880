"""Stores one change of the configuration, and applies it: what settings, groups, prices and routes have in common."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gateway.config.merge import EffectiveConfig, merge_stored_settings, parse_stored_settings
from gateway.config.reload import LiveConfig, Reloader
from gateway.domain.audit_log import Actor, AuditRow, build_change
from gateway.domain.setting import Setting
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.storage.settings import SettingRepository

log = structlog.stdlib.get_logger(__name__)


class StoredSettings:
    """Base of the services that change stored settings.

    ``reloader``: applies a changed configuration; its lock serializes changes. ``clock``: Unix seconds.
    """

    def __init__(
        self, live_config: LiveConfig, reloader: Reloader, store: SettingRepository, *, clock: Callable[[], float]
    ) -> None:
        self._live = live_config
        self._reloader = reloader
        self._store = store
        self._clock = clock

    async def _put(self, path: str, value: Any, audit: AuditRow) -> None:
        adoptions = self._reloader.adoptions
        effective, stored_settings = await self._merge(path, value), self._live.effective.stored
        is_unchanged = path in stored_settings and stored_settings[path] == value  # no audit row if nothing changes
        await self._store.put_setting(Setting(path, value, audit.at_ms), None if is_unchanged else audit)
        await self._reloader.adopt(effective, adoptions)
        log.info("setting_changed", path=path)

    async def _delete(self, path: str, audit: AuditRow) -> None:
        adoptions = self._reloader.adoptions
        effective = await self._merge(path, None)
        await self._store.delete_setting(path, audit)
        await self._reloader.adopt(effective, adoptions)
        log.info("setting_removed", path=path)

    async def _merge(self, path: str, value: Any) -> EffectiveConfig:
        """Return the configuration with ``value`` (None removes it) at ``path``. Raises ``InvalidRequest``."""
        stored_settings = {**parse_stored_settings(await self._store.list_settings()), path: value}
        if value is None:
            del stored_settings[path]
        effective = merge_stored_settings(self._live.effective.declared, dict(sorted(stored_settings.items())))
        before = self._live.effective.ignored
        wrong_paths = [other_path for other_path in effective.ignored if other_path == path or other_path not in before]
        if wrong_paths:
            problems = "; ".join(f"{other_path}: {effective.ignored[other_path]}" for other_path in wrong_paths)
            raise InvalidRequest(problems, param="value")
        return effective

    def _build_audit(
        self, by: Actor, action: str, subject: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> AuditRow:
        return by.build_audit_row(action, subject, int(self._clock() * 1000), detail=build_change(before, after))


def build_not_stored_error(noun: str, *, declared: bool) -> NotFound | Conflict:
    """Return the error for a change of something that is not stored. ``declared`` says that the file has it."""
    if declared:
        return Conflict(f"The configuration file declares {noun}; change it there")
    return NotFound(f"{noun[0].upper()}{noun[1:]} is not set")
