"""Charged units that have no column of their own, stored in a row as compact JSON."""

import json
from typing import Any

import attrs

from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import NO_USAGE_DETAILS, Usage, UsageDetails

_OF_USAGE = ("written_tokens", "written_long_tokens", "size")
_OF_RARE = tuple((field.name, getattr(NO_USAGE_DETAILS, field.name)) for field in attrs.fields(UsageDetails))
_NAMES = frozenset(name for name, _ in _OF_RARE)


def build_units(usage: Usage) -> str:
    """Serialize the units of ``usage`` without a column, as ``{"searches":2,"tier":"flex"}``; empty without any."""
    found: dict[str, Any] = {name: value for name in _OF_USAGE if (value := getattr(usage, name))}
    if (rare := usage.details) is not None:
        found |= {name: value for name, usual in _OF_RARE if (value := getattr(rare, name)) != usual}
    return json.dumps(found, separators=(",", ":")) if found else ""


def parse_charged(row: RequestRecord) -> Usage:
    """Return the usage for which a row was charged."""
    kept: dict[str, Any] = json.loads(row.units) if row.units else {}
    rare = {name: value for name, value in kept.items() if name in _NAMES}
    return Usage(
        row.prompt_tokens,
        row.completion_tokens,
        row.cached_tokens,
        images=row.images,
        duration_ms=row.duration_ms,
        characters=row.characters,
        details=UsageDetails(**rare) if rare else None,
        **{name: kept[name] for name in _OF_USAGE if name in kept},
    )
