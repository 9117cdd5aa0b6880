"""Stores changes of the configuration, and applies them: what settings, groups, prices, routes and limits share."""

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gateway.config.merge import EffectiveConfig, merge_stored_settings, parse_stored_settings
from gateway.config.reload import LiveConfig, Reloader
from gateway.domain.audit_log import Actor, AuditRow, build_change
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.storage.settings import SettingRepository

log = structlog.stdlib.get_logger(__name__)


class StoredSettings:
    """Base of the services that change stored settings.

    ``reloader``: applies a changed configuration; its lock serializes changes.
    """

    def __init__(
        self, live_config: LiveConfig, reloader: Reloader, store: SettingRepository, *, clock: Callable[[], float]
    ) -> None:
        self._live = live_config
        self._reloader = reloader
        self._store = store
        self._clock = clock

    async def _put(self, path: str, value: Any, audit: AuditRow) -> None:
        await self._change({path: value}, {path: audit})

    async def _delete(self, path: str, audit: AuditRow) -> None:
        await self._change({path: None}, {path: audit})

    async def _change(self, changes: Mapping[str, Any], audits: Mapping[str, AuditRow], param: str = "value") -> None:
        """Store and apply the value at each path, all or none; None removes the setting there.

        Raises ``InvalidRequest``, which names ``param``, or the path of the first wrong value if ``param`` is empty.
        """
        adoptions, before = self._reloader.adoptions, self._live.effective.stored
        effective = await self._merge(changes, param)
        rows = {path: row for path, row in audits.items() if changes[path] is None or before.get(path) != changes[path]}
        await self._store.change_settings(changes, int(self._clock() * 1000), rows)  # no row if nothing changes
        await self._reloader.adopt(effective, adoptions)
        for path, value in changes.items():
            log.info("setting_removed" if value is None else "setting_changed", path=path)

    async def _merge(self, changes: Mapping[str, Any], param: str) -> EffectiveConfig:
        """Return the configuration with ``changes``.

        Raises ``InvalidRequest`` if a change is invalid, or makes another stored setting invalid.
        """
        stored_settings = {**parse_stored_settings(await self._store.list_settings()), **changes}
        for path, value in changes.items():
            if value is None:
                del stored_settings[path]
        effective = merge_stored_settings(self._live.effective.declared, dict(sorted(stored_settings.items())))
        before = self._live.effective.ignored
        wrong_paths = [path for path in effective.ignored if path in changes or path not in before]
        if wrong_paths:
            problems = "; ".join(f"{path}: {effective.ignored[path]}" for path in wrong_paths)
            raise InvalidRequest(problems, param=param or wrong_paths[0])
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
