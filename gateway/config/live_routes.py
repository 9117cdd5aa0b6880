"""Lists and changes routes while the gateway runs."""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.config.merge import parse_stored_settings
from gateway.config.stored_settings import StoredSettings, build_not_stored_error
from gateway.domain.audit_log import Actor
from gateway.domain.route import Route
from gateway.domain.setting import RouteView, name_route
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.parsing import parse_spec
from gateway.routing.route_spec import RouteSpec, build_route
from gateway.wording import did_you_mean

NO_ROUTE_VERSION = "none"
"""The version of a route that does not exist."""


class RouteService(StoredSettings):
    """Reads and changes routes while the gateway runs.

    A change is validated with the whole configuration and stored with its author. It is in force when the method
    returns. After an error nothing has changed; only after ``StoreUnavailable`` the change may be stored, and come
    into force with the next heartbeat. Changes raise ``NotFound``, ``InvalidRequest``, and ``Conflict`` if the file
    declares the route, or the stored route has another version.
    """

    def list_routes(self) -> list[RouteView]:
        """List the routes by name. A stored route with the name of a route in the file follows that route."""
        effective = self._live.effective
        declared_views = [RouteView(spec.route(), "file") for spec in effective.config.route]
        names = {view.route.name for view in declared_views}
        stored_views = [
            RouteView(spec.route(), "console", in_force=spec.name not in names) for spec in effective.routes
        ]
        return sorted((*declared_views, *stored_views), key=lambda view: (view.route.name, not view.in_force))

    def get_route(self, name: str) -> RouteView:
        """Return the route in force. Raises ``NotFound``."""
        routes = {view.route.name: view for view in self.list_routes() if view.in_force}
        if name not in routes:
            raise NotFound(f"There is no route {name[:120]!r}{did_you_mean(name, routes)}")
        return routes[name]

    async def put_route(
        self, name: str, fields: Mapping[str, Any], by: Actor, *, version: str | None = None
    ) -> RouteView:
        """Store the whole route ``name``. ``fields`` are those of ``RouteSpec``; a null field gets its default.

        ``version``: the version that the change was made from (``find_version``); None replaces any version.
        Raises ``InvalidRequest``, and ``Conflict`` if the file declares the route, or another version is stored.
        """
        route, path = parse_route(name, fields), name_route(name)
        async with self._reloader.changing:
            if self._is_declared(name):
                raise build_not_stored_error(f"the route {name!r}", declared=True)
            if version is not None and version != await self._read_version(path):
                raise _build_version_error(name, version)
            audit = self._build_audit(by, "route.changed", name, self._build_stored_fields(name), _build_fields(route))
            await self._put(path, build_route(route), audit)
        return RouteView(route, "console")

    async def delete_route(self, name: str, by: Actor) -> None:
        """Remove a stored route, also one that a route of the configuration file hides.

        Raises ``NotFound``, and ``Conflict`` for a route that only the file declares.
        """
        path = name_route(name)
        async with self._reloader.changing:
            if path not in self._live.effective.stored:
                raise build_not_stored_error(f"the route {name!r}", declared=self._is_declared(name))
            audit = self._build_audit(by, "route.removed", name, self._build_stored_fields(name), {})
            await self._delete(path, audit)

    async def _read_version(self, path: str) -> str:
        """Read the version of the stored route, which another node may have just changed.

        Return ``NO_ROUTE_VERSION`` if no route is stored, or the stored one is ignored.
        """
        stored_settings = parse_stored_settings(await self._store.list_settings())
        if path not in stored_settings:
            return NO_ROUTE_VERSION
        try:
            return find_version(parse_spec(stored_settings[path], RouteSpec).route())
        except InvalidRequest:  # of another version of the gateway: it is ignored
            return NO_ROUTE_VERSION

    def _is_declared(self, name: str) -> bool:
        return any(spec.name == name for spec in self._live.effective.config.route)

    def _build_stored_fields(self, name: str) -> dict[str, Any]:
        """Return the fields of the stored route; empty if no such route is stored, or it is ignored."""
        return next((_build_fields(spec.route()) for spec in self._live.effective.routes if spec.name == name), {})


def _build_fields(route: Route) -> dict[str, Any]:
    return {name: value for name, value in build_route(route).items() if name != "name"}


def parse_route(name: str, fields: Mapping[str, Any]) -> Route:
    """Return the route ``name`` with the ``fields`` of ``RouteSpec``; a null field gets its default.

    Raises ``InvalidRequest``.
    """
    given_fields = {field: value for field, value in fields.items() if value is not None}
    spec = parse_spec({"name": name, **given_fields}, RouteSpec)
    if spec.name != name:
        raise InvalidRequest("The name of a route cannot be changed", param="name")
    return spec.route()


def find_version(route: Route) -> str:
    """Return a text that differs if anything of the route differs."""
    return hashlib.sha256(orjson.dumps(build_route(route), option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _build_version_error(name: str, version: str) -> Conflict:
    if version == NO_ROUTE_VERSION:
        return Conflict(f"There is a route {name!r} already", param="version", should_retry=False)
    return Conflict(f"The route {name!r} was changed meanwhile: read it anew", param="version", should_retry=False)
