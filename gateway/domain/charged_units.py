"""Charged units that have no column of their own, stored in a row as compact JSON."""

import json
from typing import Any

import attrs

from gateway.domain.request_log import RequestRecord
from gateway.domain.usage import NO_USAGE_DETAILS, Usage, UsageDetails

_USAGE_FIELDS = ("written_tokens", "written_long_tokens", "size")
_RARE_DEFAULTS = tuple((field.name, getattr(NO_USAGE_DETAILS, field.name)) for field in attrs.fields(UsageDetails))
_RARE_NAMES = frozenset(name for name, _ in _RARE_DEFAULTS)


def build_units(usage: Usage) -> str:
    """Serialize the units of ``usage`` that have no column: ``{"searches":2,"tier":"flex"}``; empty without any."""
    units: dict[str, Any] = {name: value for name in _USAGE_FIELDS if (value := getattr(usage, name))}
    if (details := usage.details) is not None:
        units |= {name: value for name, default in _RARE_DEFAULTS if (value := getattr(details, name)) != default}
    return json.dumps(units, separators=(",", ":")) if units else ""


def parse_charged_usage(row: RequestRecord) -> Usage:
    """Return the usage for which a row was charged."""
    stored_units: dict[str, Any] = json.loads(row.units) if row.units else {}
    details = {name: value for name, value in stored_units.items() if name in _RARE_NAMES}
    return Usage(
        row.prompt_tokens,
        row.completion_tokens,
        row.cached_tokens,
        images=row.images,
        duration_ms=row.duration_ms,
        characters=row.characters,
        details=UsageDetails(**details) if details else None,
        **{name: stored_units[name] for name in _USAGE_FIELDS if name in stored_units},
    )
