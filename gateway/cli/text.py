"""Formats values of the admin API's JSON as text for operators."""

from datetime import UTC, datetime, tzinfo
from typing import Any

from gateway.wording import write_number

Json = dict[str, Any]

ABSENT = "-"
"""Shown instead of a value that is not set."""
_BYTE_UNITS = ("KB", "MB", "GB", "TB")
_BYTE_STEP = 1024
_TIME_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_LIMITS = (("rpm", "rpm"), ("burst", "burst"), ("tpm", "tpm"), ("max_concurrency", "concurrent"))


def clean(text: str) -> str:
    """Replace control characters: some displayed names, such as a model's, are chosen by clients."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def clean_lines(text: str) -> str:
    """Replace control characters, as ``clean`` does, except the ends of lines and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def format_value(value: Any) -> str:
    """Format any JSON value as text: ``-`` for None, an empty text, list or object."""
    if value is None or value in ([], {}, ""):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}={format_value(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    return write_number(value) if isinstance(value, float) else str(value)


def format_change(name: str, old_value: Any, new_value: Any) -> str:
    """Format a field's change: ``rpm 60 → none``. Amounts are in dollars, without the suffix ``_usd`` in the name."""
    label = name.removesuffix("_usd")
    format_field = format_usd if label != name else format_value
    old_text, new_text = (
        "none" if value in (None, [], {}, "") else format_field(value) for value in (old_value, new_value)
    )
    return f"{label.replace('_', ' ')} {old_text} → {new_text}"


def format_some(names: list[str], max_shown: int = 5) -> str:
    """Format the first few names, and the number of further names."""
    hidden_count = len(names) - max_shown
    return format_value(names[:max_shown]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def format_usd(amount: float | None) -> str:
    """Format dollars with two to nine decimals as needed, or at most four from one dollar on; ``-`` for None."""
    if amount is None:
        return ABSENT
    size = abs(amount)
    integer, _, decimals = f"{size:,.{4 if size >= 1 else 9}f}".partition(".")
    return f"{'-' if amount < 0 else ''}${integer}.{decimals.rstrip('0'):0<2}"


def format_quota(fields: Json) -> str:
    """Format the quota of an account or key: ``$5.00 daily``, or ``-`` without one."""
    if fields["quota_usd"] is None:
        return ABSENT
    return f"{format_usd(fields['quota_usd'])} {fields['quota_period']}"


def format_limits(fields: Json) -> str:
    """Format the rate limits of an account, a key or a channel: ``60 rpm, 8 concurrent``, or ``-`` without any."""
    return ", ".join(f"{fields[name]} {unit}" for name, unit in _LIMITS if fields.get(name) is not None) or ABSENT


def format_moment(moment: str | int | None, now: datetime | None = None, zone: tzinfo | None = None) -> str:
    """Format a time as the time of day; on other days than today, as the date and the minute.

    ``moment`` is ISO 8601 or Unix milliseconds; None becomes ``-``. ``now`` determines today; None for the current
    time. ``zone`` is the time zone; None for this machine's.
    """
    if moment is None:
        return ABSENT
    parsed_time = (
        datetime.fromisoformat(moment) if isinstance(moment, str) else datetime.fromtimestamp(moment / 1000, UTC)
    )
    local_time = parsed_time.astimezone(zone)
    is_today = local_time.date() == (now or datetime.now(UTC)).astimezone(zone).date()
    return local_time.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M")


def format_bytes(size: int) -> str:
    """Format a size: ``900 B``, ``1.4 KB``, ``102 MB``. Units are powers of 1,024."""
    if size < _BYTE_STEP:
        return f"{size} B"
    power = next((power for power in range(1, len(_BYTE_UNITS)) if size < _BYTE_STEP ** (power + 1)), len(_BYTE_UNITS))
    amount = size / _BYTE_STEP**power
    return f"{amount:.{0 if amount >= 100 else 1}f} {_BYTE_UNITS[power - 1]}"  # noqa: PLR2004 - three digits are enough


def format_duration(seconds: float) -> str:
    """Format a duration by its two largest units: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 d 4 h``."""
    whole_seconds = int(seconds)
    if whole_seconds < 10:  # noqa: PLR2004 - tenths matter below
        return f"{seconds:.1f} s"
    words: list[str] = []
    for size, unit in _TIME_UNITS:
        count, whole_seconds = divmod(whole_seconds, size)
        if count or words:
            words.append(f"{count} {unit}")
    return " ".join(words[:2])


def format_outcome(row: Json) -> str:
    """Format the outcome of a request or a video: ``completed``, ``failed upstream_timeout``, ``client closed``."""
    outcome, code = row["outcome"].replace("_", " "), row["error_code"]
    return outcome if code is None or outcome in {"blocked", "cancelled"} else f"{outcome} {code}"
