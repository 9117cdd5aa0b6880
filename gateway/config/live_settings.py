"""Lists and changes settings, groups and prices while the gateway runs."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import attrs

from gateway.billing.price_spec import GroupSpec, PriceSpec, build_price
from gateway.config.loader import read_shipped_prices
from gateway.config.merge import EDITABLE, list_sections
from gateway.config.stored_settings import StoredSettings, build_not_stored_error
from gateway.domain.audit_log import Actor, AuditRow
from gateway.domain.price import ONE_PPM, Price, PriceList
from gateway.domain.setting import (
    MAX_PATH_CHARS,
    GroupView,
    PriceView,
    SettingView,
    name_group,
    name_price,
    name_setting,
)
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.parsing import find_about, find_check, parse_spec
from gateway.providers.registry import PROVIDERS
from gateway.wording import did_you_mean

Fields = dict[str, Any]
Kind = Literal["text", "integer", "number", "boolean", "list", "choice"]
_KINDS: Mapping[Any, Kind] = {str: "text", int: "integer", float: "number", bool: "boolean"}


class SettingsService(StoredSettings):
    """Reads and changes settings, groups and prices while the gateway runs.

    A change is validated with the whole configuration and stored with its author. It is in force when the method
    returns. After an error nothing has changed; only after ``StoreUnavailable`` the change may be stored, and come
    into force with the next heartbeat. Changes raise ``NotFound``, ``InvalidRequest``, and ``Conflict`` if the value
    is read-only, or set by the file or the environment.
    """

    def list_settings(self) -> list[SettingView]:
        return [
            self._build_view(section, field)
            for section, part in list_sections(self._live.config)
            for field in attrs.fields(type(part))
            if field.repr
        ]

    async def put_setting(self, section: str, key: str, value: Any, by: Actor) -> SettingView:
        field = self._get_field(section, key)
        if value is None:
            raise InvalidRequest("value: expected a value; use DELETE to remove one", param="value")
        async with self._reloader.changing:
            before = self._build_view(section, field)
            if not before.editable:
                raise _build_read_only_error(before)
            await self._put(name_setting(section, key), value, self._audit_setting(by, before, value))
            return self._build_view(section, field)

    async def change_settings(
        self, changes: Mapping[str, Any], by: Actor, former: Mapping[str, Any] = {}
    ) -> list[SettingView]:
        """Set the values at paths such as ``routing.max_attempts``, all or none; None removes the stored value.

        ``former`` has values that must still be in force; otherwise ``Conflict`` is raised. Return the settings
        afterwards. Errors name the path.
        """
        fields: dict[str, tuple[str, attrs.Attribute[Any]]] = {}
        for path in changes:
            section, _, key = path.partition(".")
            fields[path] = section, self._get_field(section, key)
        async with self._reloader.changing:
            before = {path: self._build_view(*found) for path, found in fields.items()}
            for path in former:
                if path in before and before[path].value != former[path]:
                    raise Conflict(f"{path} was changed meanwhile: load the page again", param=path)
            needed = {
                path: value
                for path, value in changes.items()
                if value is not None or path in self._live.effective.stored
            }
            for path, value in needed.items():
                if value is not None and not before[path].editable:
                    raise _build_read_only_error(before[path])
            audits = {path: self._audit_setting(by, before[path], value) for path, value in needed.items()}
            if needed:
                await self._change(needed, audits, param="")
            return [self._build_view(*found) for found in fields.values()]

    async def delete_setting(self, section: str, key: str, by: Actor) -> SettingView:
        """Remove a stored setting, if one is stored.

        Raises ``NotFound`` for an unknown setting, and ``Conflict`` if none is stored and it cannot be changed here.
        """
        field, path = self._get_field(section, key), name_setting(section, key)
        async with self._reloader.changing:
            before = self._build_view(section, field)
            if path in self._live.effective.stored:
                await self._delete(path, self._audit_setting(by, before, None))
            elif not before.editable:
                raise _build_read_only_error(before)
            return self._build_view(section, field)

    def list_groups(self) -> list[GroupView]:
        effective = self._live.effective
        declared_names = {group.name for group in effective.declared.config.group}
        groups = [
            GroupView(
                group.name, int(group.price_multiplier * ONE_PPM), "file" if group.name in declared_names else "console"
            )
            for group in effective.config.group
        ]
        return sorted(groups, key=lambda group: group.name)

    async def put_group(self, name: str, fields: Fields, by: Actor) -> GroupView:
        spec = parse_spec({"name": name, **fields}, GroupSpec)
        if spec.name != name:
            raise InvalidRequest("The name of a group cannot be changed", param="name")
        after = {"price_multiplier": float(spec.price_multiplier)}
        async with self._reloader.changing:
            if any(group.name == name for group in self._live.effective.declared.config.group):
                raise Conflict(f"The configuration file declares the group {name!r}; change it there")
            before = self._find_stored_group(name) or {}
            await self._put(name_group(name), after, self._build_audit(by, "group.changed", name, before, after))
        return next(group for group in self.list_groups() if group.name == name)

    async def delete_group(self, name: str, by: Actor) -> None:
        path = name_group(name)
        async with self._reloader.changing:
            before = self._find_stored_group(name)
            if before is None:
                is_declared = any(group.name == name for group in self._live.config.group)
                raise build_not_stored_error(f"the group {name!r}", declared=is_declared)
            await self._delete(path, self._build_audit(by, "group.removed", name, before, {}))

    def list_prices(self, *, with_shipped: bool = True) -> list[PriceView]:
        """List the prices of the file, then the console's, then the built-in prices that are in effect.

        ``with_shipped``: whether to list built-in prices at all. The first list with built-in prices parses all of
        them, which takes a second of the event loop.
        """
        effective = self._live.effective
        file = PriceList([spec.price() for spec in effective.config.price])
        console = PriceList([spec.price() for spec in effective.prices])
        before = PriceList(file, console)
        shipped_prices = read_shipped_prices().list_prices() if with_shipped else []
        return [
            *(PriceView(price, "file", in_force=True) for price in file.list_prices()),
            *(
                PriceView(console_price, "console", in_force=_find_precedent(file, console_price) is None)
                for console_price in console.list_prices()
            ),
            *(
                PriceView(price, "shipped", in_force=True)
                for price in shipped_prices
                if _find_precedent(before, price) is None
            ),
        ]

    async def put_price(self, model: str, fields: Fields, by: Actor) -> PriceView:
        spec = _parse_price(model, fields)
        price, path = spec.price(), name_price(model, spec.provider)
        table = {name: value for name, value in fields.items() if value is not None} | {"model": model}
        async with self._reloader.changing:
            file_prices = PriceList([spec.price() for spec in self._live.config.price])
            if (first := _find_precedent(file_prices, price)) is not None:
                raise Conflict(f"The configuration file has a price for {first.model!r}, which takes precedence")
            before = self._build_present_price(model, spec.provider)
            audit = self._build_audit(
                by, "price.changed", _name_price(model, spec.provider), before, build_price(price)
            )
            await self._put(path, table, audit)
        return PriceView(price, "console", in_force=True)

    async def delete_price(self, model: str, provider: str | None, by: Actor) -> None:
        path = name_price(model, provider)
        async with self._reloader.changing:
            if path not in self._live.effective.stored:
                is_declared = any((spec.model, spec.provider) == (model, provider) for spec in self._live.config.price)
                raise build_not_stored_error(f"a price for {_name_price(model, provider)}", declared=is_declared)
            before, after = self._build_present_price(model, provider), _build_shipped_price(model, provider)
            await self._delete(
                path, self._build_audit(by, "price.removed", _name_price(model, provider), before, after)
            )

    def _get_field(self, section: str, key: str) -> "attrs.Attribute[Any]":
        """Return the field of a setting. Raises ``NotFound``, also for a secret setting."""
        field_by_name: dict[str, attrs.Attribute[Any]] = {
            name_setting(name, field.name): field
            for name, part in list_sections(self._live.config)
            for field in attrs.fields(type(part))
            if field.repr
        }
        path = name_setting(section, key)
        if path not in field_by_name:
            raise NotFound(f"There is no setting {path[:MAX_PATH_CHARS]!r}{did_you_mean(path, field_by_name)}")
        return field_by_name[path]

    def _build_view(self, section: str, field: "attrs.Attribute[Any]") -> SettingView:
        effective = self._live.effective
        source = effective.sources.get(name_setting(section, field.name), "default")
        part, check = getattr(effective.config, section), find_check(field)
        is_choice = get_origin(field.type) is Literal
        return SettingView(
            section=section,
            key=field.name,
            value=_to_json(getattr(part, field.name)),
            default=_to_json(getattr(type(part)(), field.name)),
            source=source,
            editable=section in EDITABLE and source in {"default", "console"},
            type="choice" if is_choice else _KINDS.get(field.type, "list"),
            choices=get_args(field.type) if is_choice else (),
            expected=None if check is None else check.expected,
            about=find_about(field),
        )

    def _audit_setting(self, by: Actor, before: SettingView, value: Any) -> AuditRow:
        """Build the row of a change to ``value``; None: the stored value is removed."""
        action = "setting.changed" if value is not None else "setting.removed"
        if value is None:
            value = before.default if before.editable else before.value
        path = name_setting(before.section, before.key)
        return self._build_audit(by, action, path, {before.key: before.value}, {before.key: value})

    def _find_stored_group(self, name: str) -> Fields | None:
        """Return the stored fields of a group, empty if the stored value is not a table; None if nothing is stored."""
        stored_settings, path = self._live.effective.stored, name_group(name)
        value = stored_settings.get(path)
        return value if isinstance(value, dict) else {} if path in stored_settings else None

    def _build_present_price(self, model: str, provider: str | None) -> Fields:
        """Return the fields of the stored price, else of the matching built-in price; empty without either."""
        for spec in self._live.effective.prices:
            if (spec.model, spec.provider) == (model, provider):
                return build_price(spec.price())
        return _build_shipped_price(model, provider)


def _to_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _build_read_only_error(view: SettingView) -> Conflict:
    name = name_setting(view.section, view.key)
    if view.source == "environment":
        return Conflict(f"{name} is set by the environment or the command line; change it there")
    if view.source == "file":
        return Conflict(f"{name} is set in the configuration file; change it there")
    return Conflict(f"{name} is only read at start; set it in the configuration file and restart the gateway")


def _build_shipped_price(model: str, provider: str | None) -> Fields:
    """Return the fields of the built-in price that applies to ``model``; empty if it has no such price."""
    price = read_shipped_prices().find(model, provider)
    return {} if price is None else build_price(attrs.evolve(price, model=model, provider=provider))


def _parse_price(model: str, fields: Fields) -> PriceSpec:
    """Parse the fields of a price; null removes a rate. Raises ``InvalidRequest``."""
    if fields.get("model", model) is None:
        raise InvalidRequest("model: expected the name of a model, not null; leave it out to keep it", param="model")
    given_fields = {name: value for name, value in fields.items() if value is not None}
    spec = parse_spec({"model": model, **given_fields}, PriceSpec)
    if spec.model != model:
        raise InvalidRequest("The model of a price cannot be changed", param="model")
    if spec.provider is not None and spec.provider not in PROVIDERS:
        raise InvalidRequest(f"provider: expected one of {', '.join(PROVIDERS)}", param="provider")
    if len(name_price(model, spec.provider)) > MAX_PATH_CHARS:
        raise InvalidRequest("model: expected a shorter name", param="model")
    return spec


def _find_precedent(prices: PriceList, price: Price) -> Price | None:
    """Return the price that takes precedence over ``price``; None if there is none.

    It has the same model and provider, or applies to the model of ``price``. If that model is a glob, its text is
    compared: ``gpt-*`` matches ``gpt-4*``.
    """
    same_prices = (
        candidate
        for candidate in prices.list_prices()
        if (candidate.model, candidate.provider) == (price.model, price.provider)
    )
    return next(same_prices, None) or prices.find(price.model, price.provider)


def _name_price(model: str, provider: str | None) -> str:
    return model if provider is None else f"{model} at {provider}"
