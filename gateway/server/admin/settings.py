"""The admin API's part about what the gateway goes by: settings, groups and prices."""

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, get_args

import attrs
from aiohttp import web

from gateway.billing.price_spec import GroupSpec, PriceSpec, SettingSpec, build_price
from gateway.domain.price import ONE_PPM
from gateway.domain.setting import GroupView, PriceSource, PriceView, SettingView, Source
from gateway.errors import InvalidRequest
from gateway.parsing import parse_spec
from gateway.server.admin.io import read_change, write_json, write_listing
from gateway.server.admin.operation import AdminOperation, Query
from gateway.server.context import ACTOR, OFFICE
from gateway.server.openapi import schema as s

_SOURCES: tuple[Source, ...] = get_args(Source)
_PRICE_SOURCES: tuple[PriceSource, ...] = get_args(PriceSource)
SETTING = s.record(
    value=s.ANYTHING,
    default=s.ANYTHING,
    source=s.one_of(*_SOURCES),
    editable=s.FLAG,
    type=s.one_of("text", "integer", "number", "boolean", "list", "choice"),
    choices=s.array(s.TEXT),
    expected=s.maybe(s.TEXT),
    about=s.TEXT,
)
GROUP = s.record(name=s.TEXT, price_multiplier=s.NUMBER, source=s.one_of(*_SOURCES), keys=s.COUNT, channels=s.COUNT)


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
    tiers=s.array(s.record(above_tokens=s.COUNT, **_rates(s.NUMBER))),
    sizes=s.array(s.record(size=s.TEXT, usd_per_second=s.NUMBER)),
)
"""Of cached input and of what is written into a cache null is as input, of what is kept for an hour as of the rest."""
LISTED_PRICE = s.extend(PRICE, source=s.one_of(*_PRICE_SOURCES), in_force=s.FLAG)


async def list_settings(request: web.Request) -> web.Response:
    """Every setting that is no secret, by its section: what is in force, and who says it."""
    sections: dict[str, dict[str, Any]] = {}
    for told in request.app[OFFICE].settings.list_settings():
        sections.setdefault(told.section, {})[told.key] = _write_setting(told)
    return write_json({"sections": sections})


async def put_setting(request: web.Request) -> web.Response:
    """Set a setting, in force when this answers; 409 where the file or the environment says it, or a start reads it."""
    spec, where = parse_spec(await read_change(request), SettingSpec), request.match_info
    told = await request.app[OFFICE].settings.put_setting(where["section"], where["key"], spec.value, request[ACTOR])
    return write_json(_write_setting(told))


async def delete_setting(request: web.Request) -> web.Response:
    """Take back what was set: what the file says is in force again, or else the default."""
    where = request.match_info
    told = await request.app[OFFICE].settings.delete_setting(where["section"], where["key"], request[ACTOR])
    return write_json(_write_setting(told))


async def list_groups(request: web.Request) -> web.Response:
    """Every group that keys, accounts or channels are of, or that has a price multiplier."""
    return write_listing(await _list_groups(request, request.app[OFFICE].settings.list_groups()))


async def put_group(request: web.Request) -> web.Response:
    """Say what the keys of a group pay, over the price of model and channel."""
    fields = await read_change(request)
    told = await request.app[OFFICE].settings.put_group(request.match_info["name"], fields, request[ACTOR])
    groups = await _list_groups(request, [told])
    return write_json(next(group for group in groups if group["name"] == told.name))


async def delete_group(request: web.Request) -> web.Response:
    """Take a group's price multiplier back; its keys and channels stay as they are."""
    name = request.match_info["name"]
    await request.app[OFFICE].settings.delete_group(name, request[ACTOR])
    return write_json({"name": name, "deleted": True})


async def list_prices(request: web.Request) -> web.Response:
    """Every price, in dollars: the file's, then the console's, then those of the list that ships."""
    model, source = request.query.get("model"), request.query.get("source")
    if source is not None and source not in _PRICE_SOURCES:
        raise InvalidRequest(f"'source' must be one of {', '.join(_PRICE_SOURCES)}", param="source")
    prices = request.app[OFFICE].settings.list_prices()
    return write_listing(
        [
            _write_listed_price(told)
            for told in prices
            if source in {None, told.source} and (model is None or _is_for(told.price.model, model))
        ],
    )


async def put_price(request: web.Request) -> web.Response:
    """Say what a model, or every model a glob matches, costs; with ``provider`` only there. The whole price is said."""
    fields = await read_change(request)
    told = await request.app[OFFICE].settings.put_price(request.match_info["model"], fields, request[ACTOR])
    return write_json(_write_listed_price(told))


async def delete_price(request: web.Request) -> web.Response:
    """Take a price back that was set here; with ``provider``, the one that was for there."""
    model, provider = request.match_info["model"], request.query.get("provider")
    await request.app[OFFICE].settings.delete_price(model, provider, request[ACTOR])
    return write_json({"model": model, "provider": provider, "deleted": True})


SETTING_DOORS: tuple[AdminOperation, ...] = (
    AdminOperation("GET", "/settings", list_settings, answer=s.record(sections=s.table(s.table(SETTING)))),
    AdminOperation("PUT", "/settings/{section}/{key}", put_setting, takes=SettingSpec, answer=SETTING),
    AdminOperation("DELETE", "/settings/{section}/{key}", delete_setting, answer=SETTING),
    AdminOperation("GET", "/groups", list_groups, answer=s.listing(GROUP)),
    AdminOperation("PUT", "/groups/{name}", put_group, takes=GroupSpec, partly=True, answer=GROUP),
    AdminOperation("DELETE", "/groups/{name}", delete_group, answer=s.record(name=s.TEXT, deleted=s.FLAG)),
    AdminOperation(
        "GET",
        "/prices",
        list_prices,
        query=(
            Query("model", "Only those that may be what this model costs."),
            Query("source", "Only those that are said there.", s.one_of(*_PRICE_SOURCES)),
        ),
        answer=s.listing(LISTED_PRICE),
    ),
    AdminOperation("PUT", "/prices/{model}", put_price, takes=PriceSpec, partly=True, answer=LISTED_PRICE),
    AdminOperation(
        "DELETE",
        "/prices/{model}",
        delete_price,
        query=(Query("provider", "Of this provider; without it, of whoever serves the model."),),
        answer=s.record(model=s.TEXT, provider=s.maybe(s.TEXT), deleted=s.FLAG),
    ),
)


def _write_setting(told: SettingView) -> dict[str, Any]:
    fields = attrs.asdict(told)
    del fields["section"], fields["key"]
    return {**fields, "choices": list(told.choices)}


async def _list_groups(request: web.Request, told: Iterable[GroupView]) -> list[dict[str, Any]]:
    """Groups that are said something of and groups that are used, by name."""
    office = request.app[OFFICE]
    keys = Counter(key["group"] for key in await office.administration.list_keys(request[ACTOR]) if key["group"])
    channels = Counter(group for channel in office.catalog.channels for group in set(channel.groups))
    accounts = await office.administration.list_accounts(request[ACTOR])
    used = {*keys, *channels, *(group for account in accounts for group in account["groups"])}
    groups = {name: GroupView(name, ONE_PPM, "default") for name in used} | {group.name: group for group in told}
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


def _write_listed_price(told: PriceView) -> dict[str, Any]:
    return {**build_price(told.price), "source": told.source, "in_force": told.in_force}


def _is_for(glob: str, model: str) -> bool:
    return glob == model or fnmatchcase(model, glob)
