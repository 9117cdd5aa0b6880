"""The filters of the console's templates, which format amounts, counts, sizes, durations, times and names.

None becomes a dash where a filter accepts it and does not say otherwise. A script shows times in local time.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from gateway.wording import write_value

_DASH = "\N{EN DASH}"
_KILO = 1000.0
_KIBI = 1024.0
_MIN_CENTS_USD, _MIN_SHOWN_USD = 0.1, 0.0001
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000


def format_usd(amount: float | None) -> str:
    """Format dollars: ``$12.40``; below ten cents with two to four decimals, ``$0.0031``; a dash for None.

    Less than a hundredth of a cent, but not 0, is ``<$0.0001``.
    """
    if amount is None:
        return _DASH
    if amount == 0:
        return "$0"
    size = abs(amount)
    sign = "-" if amount < 0 else ""
    if size < _MIN_SHOWN_USD:
        return f"{sign}<$0.0001"
    if round(size, 4) >= _MIN_CENTS_USD:
        return f"{sign}${size:,.2f}"
    integer, _, decimals = f"{size:.4f}".rstrip("0").partition(".")
    return f"{sign}${integer}.{decimals:0<2}"


def format_count(number: float | None) -> str:
    """Format a number in short: ``1,234``, ``12.4k``, ``3.1M``."""
    if number is None:
        return _DASH
    if abs(number) < 10 * _KILO:
        return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.2f}"
    for unit in ("k", "M", "G"):
        number /= _KILO
        if round(abs(number), 1) < _KILO:
            return f"{number:.1f}".removesuffix(".0") + unit
    return f"{number / _KILO:,.1f}T"


def format_exact(number: float | None) -> str:
    """Format a number with all digits: ``1,234,567``."""
    return _DASH if number is None else f"{number:,}"


def write_number(number: float | None) -> str:
    """Write a number for an input field: ``20``, ``0.05``; empty for None."""
    return "" if number is None else str(number).removesuffix(".0")


def format_bytes(size: float | None) -> str:
    """Format a size, such as ``1.5 MB``, with units of powers of 1,024."""
    if size is None:
        return _DASH
    for unit in ("B", "KB", "MB", "GB"):
        if abs(size) < _KIBI:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"  # noqa: PLR2004 - two digits
        size /= _KIBI
    return f"{size:,.1f} TB"


def format_duration(ms: float | None) -> str:
    """Format a duration: ``85 ms``, ``1.2 s``, ``3 min 5 s``, ``2 d 4 h``; a dash for None."""
    if ms is None:
        return _DASH
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < _MINUTE:
        return f"{ms / _SECOND:.1f} s"
    for unit, size, smaller_unit, smaller_ms in (("min", _MINUTE, "s", _SECOND), ("h", _HOUR, "min", _MINUTE)):
        if ms < size * (60 if unit == "min" else 24):
            count, remainder_ms = divmod(int(ms), size)
            return f"{count} {unit}" + (
                f" {remainder_ms // smaller_ms} {smaller_unit}" if remainder_ms // smaller_ms else ""
            )
    count, remainder_ms = divmod(int(ms), _DAY)
    return f"{count} d" + (f" {remainder_ms // _HOUR} h" if remainder_ms // _HOUR else "")


def format_rate(number: float | None) -> str:
    """Format tokens per second: ``85``; below ten with a tenth, ``8.5``."""
    if number is not None and round(number, 1) < 10:  # noqa: PLR2004 - two digits
        return f"{number:.1f}".removesuffix(".0")
    return format_count(number if number is None else round(number))


def format_percent(ratio: float | None) -> str:
    """Format a share as ``99.4 %``."""
    return _DASH if ratio is None else f"{100 * ratio:.1f}".removesuffix(".0") + " %"


def format_moment(moment: str | None) -> Markup:
    """Format a time of the API (``2027-01-31T12:00:00Z``), which a script shows in the reader's time zone."""
    if not moment:
        return escape(_DASH)
    text = escape(moment.replace("T", " ").replace("Z", " UTC"))
    return Markup('<time datetime="{}">{}</time>').format(moment, text)


def format_short_moment(moment: str) -> Markup:
    """Format a time of the API for a column: without its year. A script shortens it further."""
    return Markup('<time datetime="{}" data-short>{}</time>').format(moment, moment[5:19].replace("T", " "))


def format_segment(name: object) -> str:
    """Quote a name, including its slashes, as one segment of a URL's path or query."""
    return quote(str(name), safe="")


def format_sentence(text: str) -> str:
    """Return the description of a setting as a sentence: with a capital letter and a full stop."""
    stop = "" if text[-1:] in {".", "。", ""} else "." if text[-1:].isascii() else "。"
    return f"{text[:1].upper()}{text[1:]}{stop}"


FILTERS: Mapping[str, Callable[[Any], Any]] = {
    "usd": format_usd,
    "count": format_count,
    "exact": format_exact,
    "number": write_number,
    "bytes": format_bytes,
    "duration": format_duration,
    "percent": format_percent,
    "rate": format_rate,
    "moment": format_moment,
    "short_moment": format_short_moment,
    "urlencode": format_segment,
    "sentence": format_sentence,
    "value": write_value,
}
