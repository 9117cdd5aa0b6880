"""Lists and changes limits while the gateway runs."""

from collections.abc import Mapping
from typing import Any

from gateway.billing.limit_spec import LimitSpec
from gateway.config.stored_settings import StoredSettings, build_not_stored_error
from gateway.deferred import defer_function
from gateway.domain.audit_log import Actor
from gateway.domain.setting import Source, name_limit
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.wording import did_you_mean

_build_limit = defer_function("billing.limit_fields:build_limit")


@frozen
class LimitView:
    """A limit in force, and where it is declared. A stored limit has no view if the file has one of the same name."""

    spec: LimitSpec
    source: Source


class LimitService(StoredSettings):
    """Reads and changes limits while the gateway runs.

    A change is validated with the whole configuration and stored with its author. It is in force when the method
    returns. After an error nothing has changed; only after ``StoreUnavailable`` the change may be stored, and come
    into force with the next heartbeat. Changes raise ``NotFound``, ``InvalidRequest``, and ``Conflict`` if the file
    declares the limit, or other limits raise one that is deleted.
    """

    def list_limits(self) -> list[LimitView]:
        """List the limits in force, by name. A stored limit with the name of a limit in the file is left out."""
        effective = self._live.effective
        views = [LimitView(spec, "file") for spec in effective.config.limit]
        views += [LimitView(spec, "console") for spec in effective.limits]
        return sorted(views, key=lambda view: view.spec.name)

    def get_limit(self, name: str) -> LimitView:
        """Return the limit in force. Raises ``NotFound``."""
        views = {view.spec.name: view for view in self.list_limits()}
        if name not in views:
            raise NotFound(f"There is no limit {name[:120]!r}{did_you_mean(name, views)}")
        return views[name]

    async def put_limit(self, name: str, fields: Mapping[str, Any], by: Actor, *, reason: str = "") -> LimitView:
        """Store the whole limit ``name``. ``fields`` are those of ``LimitSpec``; a null field gets its default.

        ``reason`` is for the audit log. Raises ``InvalidRequest``, and ``Conflict`` for a limit of the file.
        """
        given_fields = {field: value for field, value in fields.items() if value is not None}
        spec = parse_spec({"name": name, **given_fields}, LimitSpec)
        if spec.name != name:
            raise InvalidRequest("The name of a limit cannot be changed", param="name")
        path, stored_fields = name_limit(name), _build_limit(spec.limit())
        async with self._reloader.changing:
            if self._is_declared(name):
                raise build_not_stored_error(f"the limit {name!r}", declared=True)
            after = _drop_name(stored_fields) | ({"reason": reason} if reason else {})
            audit = self._build_audit(by, "limit.changed", name, self._build_stored_fields(name), after)
            await self._put(path, stored_fields, audit)
        return LimitView(spec, "console")

    async def delete_limit(self, name: str, by: Actor) -> None:
        """Remove a stored limit.

        Raises ``NotFound``, and ``Conflict`` for a limit of the file, or one that other limits raise.
        """
        path = name_limit(name)
        async with self._reloader.changing:
            if path not in self._live.effective.stored:
                raise build_not_stored_error(f"the limit {name!r}", declared=self._is_declared(name))
            raised_by = [view.spec.name for view in self.list_limits() if view.spec.raises == name]
            if raised_by and not self._is_declared(name):
                raise Conflict(f"The limit {name!r} is raised by {raised_by[0]!r}: delete that one first")
            audit = self._build_audit(by, "limit.removed", name, self._build_stored_fields(name), {})
            await self._delete(path, audit)

    def _is_declared(self, name: str) -> bool:
        return any(spec.name == name for spec in self._live.effective.config.limit)

    def _build_stored_fields(self, name: str) -> dict[str, Any]:
        """Return the fields of the stored limit; empty if no such limit is stored, or it is ignored."""
        specs = (spec for spec in self._live.effective.limits if spec.name == name)
        return next((_drop_name(_build_limit(spec.limit())) for spec in specs), {})


def _drop_name(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "name"}
