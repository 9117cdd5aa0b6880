"""Parses the fields of a limit as people write them, and builds these fields from a limit."""

import re
from datetime import UTC, datetime
from typing import Any

from gateway.billing.limit_spec import LimitSpec
from gateway.domain.limit import Limit
from gateway.domain.limit_window import parse_window
from gateway.domain.price import NANOS_PER_USD, nanos

_MAX_MODEL = 256
_SUBJECT = re.compile(r"key|account|user|session|tag:[A-Za-z0-9_.-]{1,64}", re.ASCII)
_MODEL_PREFIX = "model:"


def is_subject(value: str) -> bool:
    """Return whether ``value`` names the subjects of a limit."""
    glob = value.removeprefix(_MODEL_PREFIX)
    is_model = glob != value and 0 < len(glob) <= _MAX_MODEL and glob.isprintable()
    return is_model or _SUBJECT.fullmatch(value) is not None


def is_window(value: str) -> bool:
    """Return whether ``value`` names a window of a limit, such as "5h" or "rolling:24h"."""
    try:
        parse_window(value)
    except ValueError:
        return False
    return True


def parse_limit(spec: LimitSpec) -> Limit:
    """Return the limit that ``spec`` describes."""
    kind, _, detail = (spec.of or "key").partition(":")
    return Limit(
        spec.name,
        kind,  # type: ignore[arg-type]  # one of them, as ``is_subject`` has found
        detail,
        keys=spec.keys,
        cap_nanos=None if spec.usd is None else nanos(spec.usd),
        window=parse_window(spec.window),
        rpm=spec.rpm,
        tpm=spec.tpm,
        status=spec.status,
        until_s=None if spec.until is None else int(spec.until.timestamp()),
        raises=spec.raises,
        max_subjects=spec.max_subjects,
        timezone=spec.timezone or "",
        soft_share=spec.soft,
    )


def build_limit(limit: "Limit") -> dict[str, Any]:
    """Return a limit as people write it, without defaults."""
    fields: dict[str, Any] = {
        "name": limit.name,
        "of": None if limit.raises else limit.of,
        "keys": list(limit.keys) or None,
        "usd": None if limit.cap_nanos is None else limit.cap_nanos / NANOS_PER_USD,
        "window": None if limit.raises else limit.window.text,
        "timezone": limit.timezone or None,
        "rpm": limit.rpm,
        "tpm": limit.tpm,
        "status": limit.status,
        "until": None if limit.until_s is None else datetime.fromtimestamp(limit.until_s, UTC).isoformat(),
        "raises": limit.raises,
        "soft": limit.soft_share,
        "max_subjects": limit.max_subjects if limit.max_subjects != LimitSpec("x").max_subjects else None,
    }
    return {name: value for name, value in fields.items() if value is not None}
