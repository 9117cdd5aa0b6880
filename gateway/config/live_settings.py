"""Settings, groups and prices, looked at and changed while the gateway runs: whole or not at all."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

import attrs
import structlog

from gateway.billing.price_spec import GroupSpec, PriceSpec, build_price
from gateway.config.loader import read_shipped
from gateway.config.merge import (
    EDITABLE,
    EffectiveConfig,
    list_sections,
    parse_stored,
    settle,
)
from gateway.config.reload import LiveConfig, Reloader
from gateway.domain.audit_log import Actor, AuditRow, build_change
from gateway.domain.price import ONE_PPM, Price, PriceList
from gateway.domain.setting import (
    MAX_PATH,
    GroupView,
    PriceView,
    Setting,
    SettingView,
    name_group,
    name_price,
    name_setting,
)
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.parsing import find_about, find_check, parse_spec
from gateway.providers.registry import PROVIDERS
from gateway.storage.settings import SettingRepository

log = structlog.stdlib.get_logger(__name__)

Fields = dict[str, Any]
Kind = Literal["text", "integer", "number", "boolean", "list", "choice"]
_KINDS: Mapping[Any, Kind] = MappingProxyType({str: "text", int: "integer", float: "number", bool: "boolean"})


class SettingsService:
    """``domain.setting.Configuration``.

    Args:
        in_force: the configuration in force.
        reloader: brings a changed one into force, and lets one at a time.
        store: where what is set lives.
        clock: Unix seconds.
    """

    def __init__(
        self, in_force: LiveConfig, reloader: Reloader, store: SettingRepository, *, clock: Callable[[], float]
    ) -> None:
        self._in_force = in_force
        self._reloader = reloader
        self._store = store
        self._clock = clock

    def list_settings(self) -> list[SettingView]:
        """Every setting that is no secret."""
        return [
            self._tell(section, field)
            for section, part in list_sections(self._in_force.config)
            for field in attrs.fields(type(part))
            if field.repr
        ]

    async def put_setting(self, section: str, key: str, value: Any, by: Actor) -> SettingView:
        """Set a setting."""
        field = self._get_field(section, key)
        if value is None:
            raise InvalidRequest("value: expected a value; DELETE takes one back", param="value")
        async with self._reloader.changing:
            before = self._tell(section, field)
            if not before.editable:
                raise _not_here(before)
            audit = self._audit(by, "setting.changed", f"{section}.{key}", {key: before.value}, {key: value})
            await self._put(name_setting(section, key), value, audit)
            return self._tell(section, field)

    async def delete_setting(self, section: str, key: str, by: Actor) -> SettingView:
        """Back to what holds where nobody says anything; nothing where it is so already."""
        field, path = self._get_field(section, key), name_setting(section, key)
        async with self._reloader.changing:
            before = self._tell(section, field)
            if path in self._in_force.settled.stored:
                after = {key: before.default} if before.editable else {key: before.value}
                await self._delete(path, self._audit(by, "setting.removed", path, {key: before.value}, after))
            elif not before.editable:
                raise _not_here(before)
            return self._tell(section, field)

    def list_groups(self) -> list[GroupView]:
        """Every group that is said anything of, by name."""
        settled = self._in_force.settled
        declared = {group.name for group in settled.declared.config.group}
        told = [
            GroupView(
                group.name, int(group.price_multiplier * ONE_PPM), "file" if group.name in declared else "console"
            )
            for group in settled.config.group
        ]
        return sorted(told, key=lambda group: group.name)

    async def put_group(self, name: str, fields: Fields, by: Actor) -> GroupView:
        """Say what a group pays."""
        spec = parse_spec({"name": name, **fields}, GroupSpec)
        if spec.name != name:
            raise InvalidRequest("A group keeps its name", param="name")
        after = {"price_multiplier": float(spec.price_multiplier)}
        async with self._reloader.changing:
            if any(group.name == name for group in self._in_force.settled.declared.config.group):
                raise Conflict(f"The configuration file declares the group {name!r}; change it there")
            before = self._find_stored_group(name) or {}
            await self._put(name_group(name), after, self._audit(by, "group.changed", name, before, after))
        return next(group for group in self.list_groups() if group.name == name)

    async def delete_group(self, name: str, by: Actor) -> None:
        """Say no more of a group."""
        path = name_group(name)
        async with self._reloader.changing:
            before = self._find_stored_group(name)
            if before is None:
                declared = any(group.name == name for group in self._in_force.config.group)
                raise _not_stored(f"the group {name!r}", declared=declared)
            await self._delete(path, self._audit(by, "group.removed", name, before, {}))

    def list_prices(self) -> list[PriceView]:
        """Every price: of the file, then of the console, then those that ship and are in force."""
        settled = self._in_force.settled
        file = PriceList([spec.price() for spec in settled.config.price])
        console = PriceList([spec.price() for spec in settled.prices])
        before = PriceList(file, console)
        shipped = [price for price in read_shipped().list_prices() if _goes_first(before, price) is None]
        return [
            *(PriceView(price, "file", in_force=True) for price in file.list_prices()),
            *(PriceView(each, "console", in_force=_goes_first(file, each) is None) for each in console.list_prices()),
            *(PriceView(price, "shipped", in_force=True) for price in shipped),
        ]

    async def put_price(self, model: str, fields: Fields, by: Actor) -> PriceView:
        """Say what a model, or whatever a glob matches, costs."""
        spec = _parse_price(model, fields)
        price, path = spec.price(), name_price(model, spec.provider)
        table = {name: value for name, value in fields.items() if value is not None} | {"model": model}
        async with self._reloader.changing:
            declared = PriceList([spec.price() for spec in self._in_force.config.price])
            if (first := _goes_first(declared, price)) is not None:
                raise Conflict(f"The configuration file has a price for {first.model!r}, which goes first")
            before = self._build_stored_price(model, spec.provider)
            audit = self._audit(by, "price.changed", _name(model, spec.provider), before, build_price(price))
            await self._put(path, table, audit)
        return PriceView(price, "console", in_force=True)

    async def delete_price(self, model: str, provider: str | None, by: Actor) -> None:
        """Take a price back."""
        path = name_price(model, provider)
        async with self._reloader.changing:
            if path not in self._in_force.settled.stored:
                known = any((spec.model, spec.provider) == (model, provider) for spec in self._in_force.config.price)
                raise _not_stored(f"a price for {_name(model, provider)}", declared=known)
            before, free = self._build_stored_price(model, provider), build_price(Price(model, provider=provider))
            await self._delete(path, self._audit(by, "price.removed", _name(model, provider), before, free))

    async def _put(self, path: str, value: Any, audit: AuditRow) -> None:
        """Check, store, and bring into force; ``changing`` is held."""
        settled, stored = await self._settle(path, value), self._in_force.settled.stored
        same = path in stored and stored[path] == value  # what changes nothing is no change
        await self._store.put_setting(Setting(path, value, audit.at_ms), None if same else audit)
        self._reloader.adopt(settled)
        log.info("setting_changed", path=path)

    async def _delete(self, path: str, audit: AuditRow) -> None:
        """The same for what is taken back."""
        settled = await self._settle(path, None)
        await self._store.delete_setting(path, audit)
        self._reloader.adopt(settled)
        log.info("setting_removed", path=path)

    async def _settle(self, path: str, value: Any) -> EffectiveConfig:
        """The whole configuration with ``value`` (None: without any) at ``path``.

        Raises ``InvalidRequest`` where that leaves out anything which was not left out before.
        """
        stored = {**parse_stored(await self._store.list_settings()), path: value}
        if value is None:
            del stored[path]
        settled = settle(self._in_force.settled.declared, dict(sorted(stored.items())))
        before = self._in_force.settled.ignored
        wrong = [where for where in settled.ignored if where == path or where not in before]
        if wrong:
            problems = "; ".join(f"console: {where}: {settled.ignored[where]}" for where in wrong)
            raise InvalidRequest(problems, param="value")
        return settled

    def _get_field(self, section: str, key: str) -> "attrs.Attribute[Any]":
        """The field of a setting. Raises ``NotFound``, also of what is secret."""
        for name, part in list_sections(self._in_force.config):
            field = attrs.fields_dict(type(part)).get(key) if name == section else None
            if field is not None and field.repr:
                return field
        raise NotFound(f"There is no setting {f'{section}.{key}'[:MAX_PATH]!r}")

    def _tell(self, section: str, field: "attrs.Attribute[Any]") -> SettingView:
        settled = self._in_force.settled
        source = settled.sources.get(name_setting(section, field.name), "default")
        part, check = getattr(settled.config, section), find_check(field)
        is_choice = get_origin(field.type) is Literal
        return SettingView(
            section=section,
            key=field.name,
            value=_write(getattr(part, field.name)),
            default=_write(getattr(type(part)(), field.name)),
            source=source,
            editable=section in EDITABLE and source in {"default", "console"},
            type="choice" if is_choice else _KINDS.get(field.type, "list"),
            choices=get_args(field.type) if is_choice else (),
            expected=None if check is None else check.expected,
            about=find_about(field),
        )

    def _find_stored_group(self, name: str) -> Fields | None:
        """What the store has of a group, as it has it: an empty table where that is none."""
        stored, path = self._in_force.settled.stored, name_group(name)
        value = stored.get(path)
        return value if isinstance(value, dict) else {} if path in stored else None

    def _build_stored_price(self, model: str, provider: str | None) -> Fields:
        """The price that was set of a model there; that of what costs nothing where none was."""
        told = (
            spec.price() for spec in self._in_force.settled.prices if (spec.model, spec.provider) == (model, provider)
        )
        return build_price(next(told, Price(model, provider=provider)))

    def _audit(self, by: Actor, action: str, subject: str, before: Fields, after: Fields) -> AuditRow:
        return by.did(action, subject, int(self._clock() * 1000), detail=build_change(before, after))


def _write(value: Any) -> Any:
    """A value of a section as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def _not_here(told: SettingView) -> Conflict:
    """Why a setting cannot be changed while the gateway runs."""
    name = name_setting(told.section, told.key)
    if told.source == "environment":
        return Conflict(f"The environment, or the command line, says {name}; change it there")
    if told.source == "file":
        return Conflict(f"The configuration file says {name}; change it there")
    return Conflict(f"{name} is read at the start of the gateway; say it in the configuration file, and restart")


def _not_stored(what: str, *, declared: bool) -> NotFound | Conflict:
    if declared:
        return Conflict(f"The configuration file declares {what}; change it there")
    return NotFound(f"Nobody has set {what}")


def _parse_price(model: str, fields: Fields) -> PriceSpec:
    """What a price is to be. Raises ``InvalidRequest``. Null takes a rate back; the model cannot be taken back."""
    if fields.get("model", model) is None:
        raise InvalidRequest("model: expected the name of a model, not null; leave it out to keep it", param="model")
    told = {name: value for name, value in fields.items() if value is not None}
    spec = parse_spec({"model": model, **told}, PriceSpec)
    if spec.model != model:
        raise InvalidRequest("A price keeps its model", param="model")
    if spec.provider is not None and spec.provider not in PROVIDERS:
        raise InvalidRequest(f"provider: expected one of {', '.join(PROVIDERS)}", param="provider")
    if len(name_price(model, spec.provider)) > MAX_PATH:
        raise InvalidRequest("model: expected a shorter name", param="model")
    return spec


def _goes_first(prices: PriceList, price: Price) -> Price | None:
    """The price that is asked for wherever ``price`` could be: a glob that matches another's text matches all it does.

    With marks in ``price`` that a text does not match, such as ``[ab]``, only its own like is found.
    """
    same = (each for each in prices.list_prices() if (each.model, each.provider) == (price.model, price.provider))
    return next(same, None) or prices.find(price.model, price.provider)


def _name(model: str, provider: str | None) -> str:
    return model if provider is None else f"{model} at {provider}"
