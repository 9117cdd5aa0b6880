"""Merges settings stored by the console with the configuration file and the environment, which take precedence.

Stored settings that this version does not know, or that conflict with the rest, are ignored and logged: the gateway
starts without them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from gateway.billing.limit_spec import LimitSpec
from gateway.billing.price_spec import GroupSpec, PriceSpec
from gateway.config.schema import Config
from gateway.domain.setting import (
    Setting,
    Source,
    find_group,
    is_limit,
    is_price,
    is_route,
    name_limit,
    name_price,
    name_route,
    name_setting,
)
from gateway.frozen import frozen
from gateway.parsing import ValidationErrors, join_path, parse_table
from gateway.routing.route_spec import RouteSpec

EDITABLE = frozenset(
    {
        "routing", "billing", "media", "videos", "files", "batches", "responses", "egress", "requests", "bodies",
        "streams", "cache",
    }
)  # fmt: skip
"""Sections whose keys can be stored in the database, and changed there while the gateway runs."""
_NO_SOURCES: Mapping[str, Source] = {}
_UNKNOWN_SETTING = "expected one of the settings that can be changed while the gateway runs"

StoredValues = Mapping[str, Any]
"""Settings stored in the database, by path."""
_NOTHING_STORED: StoredValues = {}


@frozen
class FileConfig:
    """The configuration from file and environment.

    Attributes:
        sources: the source of each setting, by path; defaults are left out.
        warnings: what should be changed before the next version, which will no longer understand it.
    """

    config: Config
    sources: Mapping[str, Source] = _NO_SOURCES
    warnings: tuple[str, ...] = ()


@frozen
class EffectiveConfig:
    """The configuration in effect: file, environment and stored settings merged.

    Attributes:
        config: includes stored settings and groups; its prices, routes and limits are those of the file only.
        sources: the source of each setting, by path; defaults are left out.
        prices: the stored prices.
        routes: the stored routes.
        limits: the stored limits that the file does not declare.
        ignored: why a stored setting is ignored, by path.
    """

    config: Config
    sources: Mapping[str, Source]
    prices: tuple[PriceSpec, ...]
    routes: tuple[RouteSpec, ...]
    limits: tuple[LimitSpec, ...]
    ignored: Mapping[str, str]
    declared: FileConfig
    stored: StoredValues


def list_sections(config: Config) -> Iterable[tuple[str, Any]]:
    """Return name and content of every section in single brackets."""
    return ((name, part) for name, part in attrs.asdict(config, recurse=False).items() if attrs.has(type(part)))


def find_sources(config: Config) -> Mapping[str, Source]:
    """Return the sources for a configuration that was not read: "file" for each setting that is not the default."""
    return {
        name_setting(section, field.name): "file"
        for section, part in list_sections(config)
        for field in attrs.fields(type(part))
        if getattr(part, field.name) != getattr(type(part)(), field.name)
    }


def parse_stored_settings(settings: Iterable[Setting]) -> StoredValues:
    """Return the values of stored settings, by path."""
    return {setting.path: setting.value for setting in settings}


def merge_stored_settings(declared: FileConfig, stored: StoredValues = _NOTHING_STORED) -> EffectiveConfig:
    """Merge ``stored`` with ``declared``, which takes precedence."""
    config, ignored = declared.config, dict[str, str]()
    overrides = _group_by_section(declared, stored, ignored)
    parts = {
        section: _apply_overrides(section, getattr(config, section), values, ignored)
        for section, values in overrides.items()
    }
    groups = _parse_groups(config, stored, ignored)
    prices = tuple(price for path in stored if is_price(path) for price in _parse_price(path, stored[path], ignored))
    routes = tuple(route for path in stored if is_route(path) for route in _parse_route(path, stored[path], ignored))
    limits = tuple(limit for path in stored if is_limit(path) for limit in _parse_limit(path, config, stored, ignored))
    paths = (name_setting(section, key) for section, values in overrides.items() for key in values)
    return EffectiveConfig(
        attrs.evolve(config, **parts, group=(*config.group, *groups)),
        {**declared.sources, **{path: "console" for path in paths if path not in ignored}},
        prices,
        routes,
        limits,
        ignored,
        declared,
        stored,
    )


def _group_by_section(declared: FileConfig, stored: StoredValues, ignored: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the stored values by section and key, without groups, prices, routes and limits.

    Settings of the file and the environment are left out. Unknown ones are recorded in ``ignored``.
    """
    sections: dict[str, dict[str, Any]] = {}
    for path, value in stored.items():
        section, _, key = path.partition(".")
        if find_group(path) is not None or is_price(path) or is_route(path) or is_limit(path):
            continue
        if path in declared.sources:
            continue
        if section in EDITABLE and hasattr(declared.config, section):
            sections.setdefault(section, {})[key] = value
        else:
            ignored[path] = _UNKNOWN_SETTING
    return sections


def _parse_groups(config: Config, stored: StoredValues, ignored: dict[str, str]) -> list[GroupSpec]:
    """Return the stored groups that the file does not declare."""
    group_names = {group.name for group in config.group}
    groups: list[GroupSpec] = []
    for path, value in stored.items():
        name = find_group(path)
        if name is not None and name not in group_names:
            table = {**value, "name": name} if isinstance(value, Mapping) else value
            groups += _parse_item(path, table, GroupSpec, ignored)
    return groups


def _apply_overrides(section: str, part: Any, overrides: Mapping[str, Any], ignored: dict[str, str]) -> Any:
    """Return ``part`` with ``overrides`` applied; invalid overrides are dropped and recorded in ``ignored``."""
    while overrides:
        try:
            return parse_table({**_build_table(part), **overrides}, type(part))
        except ValidationErrors as error:
            problem_by_key = {
                key: problem for key in overrides for key_path, problem in error.problems if _is_about(key_path, key)
            }
            # A rule about two keys may name the key that is not stored: then any of the stored keys may be at fault.
            reason = "; ".join(f"{key_path}: {problem}" for key_path, problem in error.problems)
            rejected_overrides = problem_by_key or dict.fromkeys(overrides, reason)
            ignored.update({name_setting(section, key): problem for key, problem in rejected_overrides.items()})
            overrides = {key: value for key, value in overrides.items() if key not in rejected_overrides}
    return part


def _is_about(key_path: str, key: str) -> bool:
    """Return whether ``key_path``, the path of a problem, is ``key`` or an item of the list there."""
    return key_path == key or key_path.startswith(f"{key}[")


def _build_table(part: Any) -> dict[str, Any]:
    values = attrs.asdict(part, recurse=False)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _parse_price(path: str, value: Any, ignored: dict[str, str]) -> list[PriceSpec]:
    specs = _parse_item(path, value, PriceSpec, ignored)
    if specs and name_price(specs[0].model, specs[0].provider) != path:
        ignored[path] = "expected the price that its path names"
        return []
    return specs


def _parse_route(path: str, value: Any, ignored: dict[str, str]) -> list[RouteSpec]:
    specs = _parse_item(path, value, RouteSpec, ignored)
    if specs and name_route(specs[0].name) != path:
        ignored[path] = "expected the route that its path names"
        return []
    return specs


def _parse_limit(path: str, config: Config, stored: StoredValues, ignored: dict[str, str]) -> list[LimitSpec]:
    """Return the stored limit at ``path`` in a list.

    The list is empty if the file declares a limit of that name, or the stored one is wrong: then ``ignored`` says why.
    """
    specs = _parse_item(path, stored[path], LimitSpec, ignored)
    if specs and name_limit(specs[0].name) != path:
        ignored[path] = "expected the limit that its path names"
        return []
    declared_names = {limit.name for limit in config.limit}
    if specs and specs[0].raises is not None:
        raised_name = specs[0].raises
        if raised_name not in declared_names and name_limit(raised_name) not in stored:
            ignored[path] = f"raises: expected the name of a limit, not {raised_name!r}"
            return []
    return [spec for spec in specs if spec.name not in declared_names]


def _parse_item(path: str, value: Any, kind: type[Any], ignored: dict[str, str]) -> list[Any]:
    try:
        return [parse_table(value, kind)]
    except ValidationErrors as error:
        ignored[path] = "; ".join(f"{join_path('', key_path)}: {problem}" for key_path, problem in error.problems)
    except ValueError as error:
        ignored[path] = str(error)
    return []
