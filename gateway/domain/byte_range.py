"""Conditional and range requests for a file: RFC 9110, sections 13 and 14."""

import re
from collections.abc import Iterable

from gateway.errors import GatewayError
from gateway.frozen import frozen

_RANGE_PATTERN = re.compile(
    r"bytes=[ \t,]*(?:(?P<first>[0-9]+)-(?P<last>[0-9]*)|-(?P<suffix>[0-9]+))[ \t,]*\Z", re.ASCII | re.IGNORECASE
)
"""One range. The list may have empty elements (RFC 9110, 5.6.1.2)."""
_MAX_DIGITS = 18
_UNREACHABLE_OFFSET = 10**_MAX_DIGITS


class RangeNotSatisfiable(GatewayError):
    """The file has no byte in the requested range."""

    code = "range_not_satisfiable"

    def __init__(self, size: int | None) -> None:
        size_text = "" if size is None else f"; it has {size} bytes"
        super().__init__(f"The file has no such range{size_text}", param="Range", should_retry=False)
        self.size = size


class PreconditionFailed(GatewayError):
    """The file is not the one that ``If-Match`` or ``If-Unmodified-Since`` names."""

    code = "precondition_failed"

    def __init__(self) -> None:
        super().__init__("The file is another one by now than the request's condition says", should_retry=False)


@frozen
class ByteRange:
    """One range of bytes. A negative ``first`` means that many bytes at the end; ``last`` None means to the end."""

    first: int
    last: int | None = None

    def find(self, size: int) -> tuple[int, int]:
        """Return the start and end (exclusive) in a file of ``size`` bytes. Raises ``RangeNotSatisfiable``."""
        start = self.first if self.first >= 0 else max(size + self.first, 0)
        stop = size if self.last is None else min(self.last + 1, size)
        if start >= stop:
            raise RangeNotSatisfiable(size)
        return start, stop

    def write(self) -> str:
        if self.first < 0:
            return f"bytes={self.first}"
        return f"bytes={self.first}-{'' if self.last is None else self.last}"


def read_range(lines: Iterable[str]) -> ByteRange | None:
    """Parse a ``Range`` header. None means the whole file, also for invalid or several ranges (RFC 9110, 14.2)."""
    match = _RANGE_PATTERN.match(", ".join(lines))
    if match is None:
        return None
    if match["suffix"] is not None:
        count = _parse_number(match["suffix"])
        return ByteRange(-count) if count else ByteRange(_UNREACHABLE_OFFSET)
    first = _parse_number(match["first"])
    if not match["last"]:
        return ByteRange(first)
    if _compare_digits(match["last"]) < _compare_digits(match["first"]):
        return None
    return ByteRange(first, _parse_number(match["last"]))


def _parse_number(digits: str) -> int:
    """Parse a number of bytes; numbers beyond every file are equivalent."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= _MAX_DIGITS else _UNREACHABLE_OFFSET


def _compare_digits(digits: str) -> tuple[int, str]:
    digits = digits.lstrip("0")
    return len(digits), digits
