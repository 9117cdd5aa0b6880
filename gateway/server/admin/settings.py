"""Admin API: settings, groups and prices."""

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, get_args

import attrs

from gateway.billing.price_spec import GroupSpec, PriceSpec, SettingSpec, build_price
from gateway.domain.price import ONE_PPM
from gateway.domain.setting import GroupView, PriceSource, PriceView, SettingView, Source
from gateway.errors import InvalidRequest
from gateway.parsing import parse_spec
from gateway.server.admin.handler import AdminRequest, Fields, Query, admin_operation
from gateway.server.admin.io import allow_in_force, read_change
from gateway.server.openapi import schema as s

_SOURCES: tuple[Source, ...] = get_args(Source)
_PRICE_SOURCES: tuple[PriceSource, ...] = get_args(PriceSource)
SETTING = allow_in_force(
    s.record(
        value=s.ANYTHING,
        default=s.ANYTHING,
        source=s.one_of(*_SOURCES),
        editable=s.FLAG,
        type=s.one_of("text", "integer", "number", "boolean", "list", "choice"),
        choices=s.array(s.TEXT),
        expected=s.maybe(s.TEXT),
        about=s.TEXT,
    )
)
GROUP = allow_in_force(
    s.record(name=s.TEXT, price_multiplier=s.NUMBER, source=s.one_of(*_SOURCES), keys=s.COUNT, channels=s.COUNT)
)


def _rates(amount: s.Shape) -> dict[str, s.Shape]:
    return {
        "input_usd_per_million": amount,
        "cached_input_usd_per_million": s.maybe(amount),
        "output_usd_per_million": amount,
        "cache_write_usd_per_million": s.maybe(amount),
        "cache_write_long_usd_per_million": s.maybe(amount),
    }


PRICE = s.record(
    model=s.TEXT,
    provider=s.maybe(s.TEXT),
    **_rates(s.NUMBER),
    usd_per_image=s.NUMBER,
    usd_per_second=s.NUMBER,
    usd_per_million_characters=s.NUMBER,
    audio_input_usd_per_million=s.maybe(s.NUMBER),
    cached_audio_input_usd_per_million=s.maybe(s.NUMBER),
    audio_output_usd_per_million=s.maybe(s.NUMBER),
    image_input_usd_per_million=s.maybe(s.NUMBER),
    cached_image_input_usd_per_million=s.maybe(s.NUMBER),
    image_output_usd_per_million=s.maybe(s.NUMBER),
    video_input_usd_per_million=s.maybe(s.NUMBER),
    video_output_usd_per_million=s.maybe(s.NUMBER),
    reasoning_usd_per_million=s.NUMBER,
    citation_usd_per_million=s.NUMBER,
    usd_per_search=s.NUMBER,
    usd_per_file_search=s.NUMBER,
    usd_per_call=s.NUMBER,
    tiers_served=s.table(s.NUMBER),
    free=s.FLAG,
    tiers=s.array(s.record(above_tokens=s.COUNT, **_rates(s.NUMBER))),
    sizes=s.array(s.record(size=s.TEXT, usd_per_second=s.NUMBER)),
)
"""Null means: cached input and cache writes cost as input does, writes for an hour as other writes, audio as text."""
LISTED_PRICE = s.extend(PRICE, source=s.one_of(*_PRICE_SOURCES), in_force=s.FLAG)


@admin_operation(answer=s.record(sections=s.table(s.table(SETTING))))
async def list_settings(request: AdminRequest) -> Fields:
    """List all settings except secrets, by section, with their values and sources."""
    sections: dict[str, dict[str, Any]] = {}
    for view in request.services.admin.settings.list_settings():
        sections.setdefault(view.section, {})[view.key] = _build_setting(view)
    return {"sections": sections}


@admin_operation(takes=SettingSpec, answer=SETTING, change=True)
async def put_setting(request: AdminRequest) -> Fields:
    """Set a setting, in force at once; 409 if the file or the environment sets it, or if only a start reads it."""
    spec, where = parse_spec(await read_change(request), SettingSpec), request.match_info
    view = await request.services.admin.settings.put_setting(where["section"], where["key"], spec.value, request.actor)
    return _build_setting(view)


@admin_operation(answer=SETTING, change=True)
async def delete_setting(request: AdminRequest) -> Fields:
    """Remove a setting's stored value: the file's value applies again, or the default."""
    where = request.match_info
    view = await request.services.admin.settings.delete_setting(where["section"], where["key"], request.actor)
    return _build_setting(view)


@admin_operation(answer=s.listing(GROUP))
async def list_groups(request: AdminRequest) -> list[Fields]:
    """List the groups that keys, accounts or channels use, or that have a price multiplier."""
    return await _list_groups(request, request.services.admin.settings.list_groups())


@admin_operation(takes=GroupSpec, partly=True, answer=GROUP, change=True)
async def put_group(request: AdminRequest) -> Fields:
    """Set the price multiplier of a group's keys, on top of the price of model and channel."""
    fields = await read_change(request)
    view = await request.services.admin.settings.put_group(request.match_info["name"], fields, request.actor)
    groups = await _list_groups(request, [view])
    return next(group for group in groups if group["name"] == view.name)


@admin_operation(answer=allow_in_force(s.record(name=s.TEXT, deleted=s.FLAG)), change=True)
async def delete_group(request: AdminRequest) -> Fields:
    """Remove a group's price multiplier; its keys and channels stay."""
    name = request.match_info["name"]
    await request.services.admin.settings.delete_group(name, request.actor)
    return {"name": name, "deleted": True}


@admin_operation(
    query=(
        Query("model", "Only prices that may apply to this model."),
        Query("source", "Only prices from this source.", s.one_of(*_PRICE_SOURCES)),
    ),
    answer=s.listing(LISTED_PRICE),
)
async def list_prices(request: AdminRequest) -> list[Fields]:
    """List all prices in dollars: the file's, then the console's, then the built-in list."""
    model, source = request.query.get("model"), request.query.get("source")
    if source is not None and source not in _PRICE_SOURCES:
        raise InvalidRequest(f"'source' must be one of {', '.join(_PRICE_SOURCES)}", param="source")
    prices = request.services.admin.settings.list_prices()
    return [
        _build_listed_price(view)
        for view in prices
        if source in {None, view.source} and (model is None or _is_for(view.price.model, model))
    ]


@admin_operation(takes=PriceSpec, partly=True, answer=LISTED_PRICE)
async def put_price(request: AdminRequest) -> Fields:
    """Set the whole price of a model, or of all models that a glob matches; with ``provider`` only at that provider."""
    fields = await read_change(request)
    view = await request.services.admin.settings.put_price(request.match_info["model"], fields, request.actor)
    return _build_listed_price(view)


@admin_operation(
    query=(Query("provider", "The price at this provider; without it, the price at any provider."),),
    answer=s.record(model=s.TEXT, provider=s.maybe(s.TEXT), deleted=s.FLAG),
)
async def delete_price(request: AdminRequest) -> Fields:
    """Remove a price that was set here; with ``provider`` that provider's."""
    model, provider = request.match_info["model"], request.query.get("provider")
    await request.services.admin.settings.delete_price(model, provider, request.actor)
    return {"model": model, "provider": provider, "deleted": True}


def _build_setting(view: SettingView) -> dict[str, Any]:
    fields = attrs.asdict(view)
    del fields["section"], fields["key"]
    return {**fields, "choices": list(view.choices)}


async def _list_groups(request: AdminRequest, view: Iterable[GroupView]) -> list[dict[str, Any]]:
    """Return the groups with a multiplier and the groups in use, sorted by name."""
    services = request.services
    keys = Counter(key["group"] for key in await services.auth.accounts.list_keys(request.actor) if key["group"])
    channels = Counter(group for channel in services.routing.catalog.channels for group in set(channel.groups))
    accounts = await services.auth.accounts.list_accounts(request.actor)
    used = {*keys, *channels, *(group for account in accounts for group in account["groups"])}
    groups = {name: GroupView(name, ONE_PPM, "default") for name in used} | {group.name: group for group in view}
    return [
        {
            "name": name,
            "price_multiplier": groups[name].multiplier_ppm / ONE_PPM,
            "source": groups[name].source,
            "keys": keys[name],
            "channels": channels[name],
        }
        for name in sorted(groups)
    ]


def _build_listed_price(view: PriceView) -> dict[str, Any]:
    return {**build_price(view.price), "source": view.source, "in_force": view.in_force}


def _is_for(glob: str, model: str) -> bool:
    return glob == model or fnmatchcase(model, glob)
