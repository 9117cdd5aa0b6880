"""One layer of the configuration over the other: what was set in the console, under the file and the environment.

What of it a file says too is asked no more; what this version does not know, or what does not go with the rest, is
left out: a gateway starts without it, and says so.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from gateway.billing.price_spec import GroupSpec, PriceSpec
from gateway.config.schema import Config
from gateway.domain.setting import Setting, Source, find_group, is_price, name_price, name_setting
from gateway.parsing import ValidationErrors, join_path, parse_table

EDITABLE = frozenset({"routing", "billing", "media", "videos", "egress", "requests"})
"""Sections whose keys can be set while the gateway runs. The others are read at its start, or name files."""
_NO_SOURCES: Mapping[str, Source] = MappingProxyType({})
_UNKNOWN = "expected one of the settings that can be changed while the gateway runs"

Stored = Mapping[str, Any]
"""What is in the store, by its path."""


@attrs.frozen
class FileConfig:
    """What the file and the environment say.

    Attributes:
        config: what comes of it.
        sources: by path (``routing.retry_ratio``), who says it; what nobody says is not there.
    """

    config: Config
    sources: Mapping[str, Source] = _NO_SOURCES


@attrs.frozen
class EffectiveConfig:
    """The configuration that all layers make together.

    Attributes:
        config: with the console's settings and groups; its prices are the file's own.
        sources: by path, who says it; what nobody says is not there.
        prices: those of the console.
        ignored: by path, why what the store has is left out.
        declared: without what the store has.
        stored: what the store has.
    """

    config: Config
    sources: Mapping[str, Source]
    prices: tuple[PriceSpec, ...]
    ignored: Mapping[str, str]
    declared: FileConfig
    stored: Stored


def list_sections(config: Config) -> Iterable[tuple[str, Any]]:
    """Name and content of every section in single brackets."""
    return ((name, part) for name, part in attrs.asdict(config, recurse=False).items() if attrs.has(type(part)))


def find_sources(config: Config) -> Mapping[str, Source]:
    """For a configuration that no file was read for: whatever is not as by default is said."""
    return {
        name_setting(section, field.name): "file"
        for section, part in list_sections(config)
        for field in attrs.fields(type(part))
        if getattr(part, field.name) != getattr(type(part)(), field.name)
    }


def parse_stored(settings: Iterable[Setting]) -> Stored:
    """The store's rows, by their path."""
    return {setting.path: setting.value for setting in settings}


def settle(declared: FileConfig, stored: Stored = MappingProxyType({})) -> EffectiveConfig:
    """Lay what is stored under what is declared."""
    config, ignored = declared.config, dict[str, str]()
    told = _list_told(declared, stored, ignored)
    parts = {section: _settle(section, getattr(config, section), values, ignored) for section, values in told.items()}
    groups = _parse_groups(config, stored, ignored)
    prices = tuple(price for path in stored if is_price(path) for price in _parse_price(path, stored[path], ignored))
    paths = (name_setting(section, key) for section, values in told.items() for key in values)
    return EffectiveConfig(
        attrs.evolve(config, **parts, group=(*config.group, *groups)),
        {**declared.sources, **{path: "console" for path in paths if path not in ignored}},
        prices,
        ignored,
        declared,
        stored,
    )


def _list_told(declared: FileConfig, stored: Stored, ignored: dict[str, str]) -> dict[str, dict[str, Any]]:
    """By section and key what is stored that nobody says who goes before it."""
    told: dict[str, dict[str, Any]] = {}
    for path, value in stored.items():
        section, _, key = path.partition(".")
        if find_group(path) is not None or is_price(path) or path in declared.sources:
            continue
        if section in EDITABLE and hasattr(declared.config, section):
            told.setdefault(section, {})[key] = value
        else:
            ignored[path] = _UNKNOWN
    return told


def _parse_groups(config: Config, stored: Stored, ignored: dict[str, str]) -> list[GroupSpec]:
    """The groups that the file has none of the name of."""
    named = {group.name for group in config.group}
    groups: list[GroupSpec] = []
    for path, value in stored.items():
        name = find_group(path)
        if name is not None and name not in named:
            table = {**value, "name": name} if isinstance(value, Mapping) else value
            groups += _parse_part(path, table, GroupSpec, ignored)
    return groups


def _settle(section: str, part: Any, told: Mapping[str, Any], ignored: dict[str, str]) -> Any:
    """A section with what is ``told`` over it; of that, what is not accepted goes to ``ignored``."""
    while told:
        try:
            return parse_table({**_build_table(part), **told}, type(part))
        except ValidationErrors as error:
            wrong = {key: what for key in told for where, what in error.problems if _is_of(where, key)}
            # A problem may be told of a key that does not come from the store, but never be there without the store's.
            why = "; ".join(f"{where}: {what}" for where, what in error.problems)
            ignored.update({name_setting(section, key): wrong.get(key, why) for key in wrong or told})
            told = {key: value for key, value in told.items() if key not in (wrong or told)}
    return part


def _is_of(where: str, key: str) -> bool:
    """Whether the path of a problem is of that key, or of an item of its list."""
    return where == key or where.startswith(f"{key}[")


def _build_table(part: Any) -> dict[str, Any]:
    """A section as a file has it."""
    values = attrs.asdict(part, recurse=False)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _parse_price(path: str, value: Any, ignored: dict[str, str]) -> list[PriceSpec]:
    specs = _parse_part(path, value, PriceSpec, ignored)
    if specs and name_price(specs[0].model, specs[0].provider) != path:
        ignored[path] = "expected the price that its path names"
        return []
    return specs


def _parse_part(path: str, value: Any, kind: type[Any], ignored: dict[str, str]) -> list[Any]:
    try:
        return [parse_table(value, kind)]
    except ValidationErrors as error:
        ignored[path] = "; ".join(f"{join_path('', where)}: {what}" for where, what in error.problems)
    except ValueError as error:
        ignored[path] = str(error)
    return []
