"""Admin API: settings, groups and prices."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, get_args

import attrs

from gateway.answer_fields import FIRST, OMITTED, Count
from gateway.billing.price_spec import GroupSpec, PriceSpec, SettingChanges, SettingSpec, build_price
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.setting import GroupView, PriceSource, PriceView, SettingType, SettingView, Source
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.server.admin.answer import DeletedInForce, InForceField, build_view
from gateway.server.admin.handler import AdminRequest, Fields, ListPage, Query, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.admin.listing import Listing, replace_objects
from gateway.server.openapi import schema as s

_PRICE_SOURCES: tuple[PriceSource, ...] = get_args(PriceSource)


@frozen(kw_only=True)
class SettingAnswer:
    """A setting with its value in force."""

    value: Any
    default: Any
    source: Source
    editable: bool
    type: SettingType
    choices: Sequence[str]
    expected: str | None
    about: str
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@frozen
class SettingsView:
    """All settings, by section and key."""

    sections: Mapping[str, Mapping[str, SettingAnswer]]


@frozen(kw_only=True)
class GroupAnswer:
    """A group with the numbers of keys and channels in it."""

    name: str
    price_multiplier: float
    source: Source
    keys: Count
    channels: Count
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@frozen(kw_only=True)
class Rates:
    """Prices of text.

    If they are null, cached input and cache writes cost as input does, and cache writes for an hour as other ones.
    """

    input_usd_per_million: float
    cached_input_usd_per_million: float | None
    output_usd_per_million: float
    cache_write_usd_per_million: float | None
    cache_write_long_usd_per_million: float | None


@frozen(kw_only=True)
class TierAnswer(Rates):
    """The prices of requests with a longer prompt."""

    above_tokens: Count = attrs.field(metadata=FIRST)


@frozen
class SizeAnswer:
    """The price of a second of video of a size."""

    size: str
    usd_per_second: float


@frozen(kw_only=True)
class PriceAnswer(Rates):
    """A price.

    If a rate of audio, images or video is null, a more general one applies: that of tokens not cached, or that of text.
    """

    model: str = attrs.field(metadata=FIRST)
    provider: str | None = attrs.field(metadata=FIRST)
    usd_per_image: float
    usd_per_second: float
    usd_per_million_characters: float
    audio_input_usd_per_million: float | None
    cached_audio_input_usd_per_million: float | None
    audio_output_usd_per_million: float | None
    image_input_usd_per_million: float | None
    cached_image_input_usd_per_million: float | None
    image_output_usd_per_million: float | None
    video_input_usd_per_million: float | None
    video_output_usd_per_million: float | None
    reasoning_usd_per_million: float
    citation_usd_per_million: float
    usd_per_search: float
    usd_per_file_search: float
    usd_per_call: float
    tiers_served: Mapping[str, float]
    free: bool
    tiers: Sequence[TierAnswer]
    sizes: Sequence[SizeAnswer]


@frozen(kw_only=True)
class ListedPrice(PriceAnswer):
    """A price with its origin, and whether any request can use it."""

    source: PriceSource
    in_force: bool


@frozen
class DeletedPrice:
    """A price that was removed."""

    model: str
    provider: str | None
    deleted: bool = True


@admin_operation()
async def list_settings(request: AdminRequest) -> SettingsView:
    """List all settings except secrets, by section, with their values and sources."""
    return _build_settings(request.services.admin.settings.list_settings())


@admin_operation(takes=SettingChanges, change=True)
async def change_settings(request: AdminRequest) -> SettingsView:
    """Set several settings, all or none, in force at once; errors name the path of the setting."""
    spec = parse_spec(await read_change(request), SettingChanges)
    changed_views = await request.services.admin.settings.change_settings(spec.settings, request.actor, spec.former)
    return _build_settings(changed_views)


@admin_operation(takes=SettingSpec, change=True)
async def put_setting(request: AdminRequest) -> SettingAnswer:
    """Set a setting, in force at once; 409 if the file or the environment sets it, or if only a start reads it."""
    spec, path_values = parse_spec(await read_change(request), SettingSpec), request.match_info
    view = await request.services.admin.settings.put_setting(
        path_values["section"], path_values["key"], spec.value, request.actor
    )
    return build_view(SettingAnswer, view)


@admin_operation(change=True)
async def delete_setting(request: AdminRequest) -> SettingAnswer:
    """Remove a setting's stored value. The default applies again, unless file or environment set the setting."""
    path_values = request.match_info
    view = await request.services.admin.settings.delete_setting(
        path_values["section"], path_values["key"], request.actor
    )
    return build_view(SettingAnswer, view)


@admin_operation()
async def list_groups(request: AdminRequest) -> list[GroupAnswer]:
    """List the groups that keys, accounts or channels use, or that have a price multiplier."""
    return await _list_groups(request, request.services.admin.settings.list_groups())


@admin_operation(takes=GroupSpec, partly=True, change=True)
async def put_group(request: AdminRequest) -> GroupAnswer:
    """Set the price multiplier of a group's keys, on top of the price of model and channel."""
    fields = await read_change(request)
    view = await request.services.admin.settings.put_group(request.match_info["name"], fields, request.actor)
    groups = await _list_groups(request, [view])
    return next(group for group in groups if group.name == view.name)


@admin_operation(change=True)
async def delete_group(request: AdminRequest) -> DeletedInForce:
    """Remove a group's price multiplier; its keys and channels stay."""
    name = request.match_info["name"]
    await request.services.admin.settings.delete_group(name, request.actor)
    return DeletedInForce(name)


_PRICE_LISTING = Listing[PriceView](
    find_id=lambda view: f"{view.source}:{view.price.provider or ''}:{view.price.model}",
    find_texts=lambda view: (view.price.model, view.price.provider),
    sort_keys={
        "model": lambda view: view.price.model,
        "provider": lambda view: view.price.provider or "",
        "source": lambda view: _PRICE_SOURCES.index(view.source),
    },
    searched_fields="the names of its model and provider",
)


@admin_operation(
    query=(
        Query("model", "Only prices that may apply to this model."),
        Query("source", "Only prices from this source.", s.one_of(*_PRICE_SOURCES)),
        *_PRICE_LISTING.query,
    )
)
async def list_prices(request: AdminRequest) -> ListPage[ListedPrice]:
    """List all prices in dollars: the file's, then the console's, then the built-in list."""
    model, source = request.query.get("model"), request.query.get("source")
    if source is not None and source not in _PRICE_SOURCES:
        raise InvalidRequest(f"'source' must be one of {', '.join(_PRICE_SOURCES)}", param="source")
    prices = request.services.admin.settings.list_prices(with_shipped=source in {None, "shipped"})
    matching_views = [
        view
        for view in prices
        if source in {None, view.source} and (model is None or _matches_model(view.price.model, model))
    ]
    page = _PRICE_LISTING.list_page(request, matching_views)
    return replace_objects(page, [_build_listed_price(view) for view in page])


@admin_operation(takes=PriceSpec, partly=True)
async def put_price(request: AdminRequest) -> ListedPrice:
    """Set the whole price of a model, or of all models that a glob matches; with ``provider`` only at that provider."""
    fields = await read_change(request)
    view = await request.services.admin.settings.put_price(request.match_info["model"], fields, request.actor)
    return _build_listed_price(view)


@admin_operation(query=(Query("provider", "The price at this provider; without it, the price at any provider."),))
async def delete_price(request: AdminRequest) -> DeletedPrice:
    """Remove a price that was set here; with ``provider`` that provider's."""
    model, provider = request.match_info["model"], request.query.get("provider")
    await request.services.admin.settings.delete_price(model, provider, request.actor)
    return DeletedPrice(model, provider)


async def _list_groups(request: AdminRequest, views: Iterable[GroupView]) -> list[GroupAnswer]:
    """Return the groups of ``views`` and all groups in use, sorted by name."""
    services = request.services
    callers = await services.auth.accounts.list_callers(request.actor)
    keys = Counter(caller.key.group for caller in callers if caller.key.group)
    channels = Counter(group for channel in services.routing.catalog.channels for group in set(channel.groups))
    accounts = await services.auth.accounts.list_accounts(request.actor)
    used_names = {*keys, *channels, *(group for account in accounts for group in account["groups"])}
    groups = {name: GroupView(name, ONE_PPM, "default") for name in used_names} | {group.name: group for group in views}
    return [
        GroupAnswer(
            name=name,
            price_multiplier=groups[name].multiplier_ppm / ONE_PPM,
            source=groups[name].source,
            keys=keys[name],
            channels=channels[name],
        )
        for name in sorted(groups)
    ]


def _build_settings(views: Iterable[SettingView]) -> SettingsView:
    sections: dict[str, dict[str, SettingAnswer]] = {}
    for view in views:
        sections.setdefault(view.section, {})[view.key] = build_view(SettingAnswer, view)
    return SettingsView(sections)


def build_price_fields(price: Price, multiplier_ppm: int = ONE_PPM) -> Fields:
    """Return the fields of ``PriceAnswer``, with the price times a multiplier."""
    fields = build_price(price, multiplier_ppm)
    tiers, sizes = [TierAnswer(**tier) for tier in fields["tiers"]], [SizeAnswer(**size) for size in fields["sizes"]]
    return {**fields, "tiers": tiers, "sizes": sizes}


def _build_listed_price(view: PriceView) -> ListedPrice:
    return ListedPrice(**build_price_fields(view.price), source=view.source, in_force=view.in_force)


def _matches_model(pattern: str, model: str) -> bool:
    return pattern == model or fnmatchcase(model, pattern)
