"""Reads and writes JSON without changing numbers, and accepts common input that orjson refuses.

orjson turns integers of more than 64 bits into floats and ``-0`` into 0. It refuses half a surrogate pair, ``NaN``,
``Infinity`` and numbers beyond the range of a double. orjson, which is fast, is used first. The slower, exact reader
is used only if orjson refuses the text or may have changed one of its numbers.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Self

import orjson

_DIGIT_TABLE = bytes(ord("0") if chr(code).isdecimal() and code < 128 else ord(" ") for code in range(256))  # noqa: PLR2004
_LONG_DIGITS = b"0" * 19
"""The shortest run of digits that orjson may change. All digits are replaced by zeros before it is searched."""
_NEGATIVE_ZEROS = (b":-0", b": -0", b"[-0", b",-0", b", -0")
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
"""The range of integers that orjson keeps exact."""
_ESCAPE_PATTERN = re.compile(
    r"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class ExactNumber(float):
    """A number that orjson would change, with its original text; ``dumps`` writes it."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __reduce__(self) -> tuple[type["ExactNumber"], tuple[str]]:
        """Copy or pickle by the text, because the float may be inexact."""
        return ExactNumber, (self.text,)


def loads(data: bytes) -> Any:
    """Parse JSON exactly; half a surrogate pair becomes U+FFFD. Raises ``orjson.JSONDecodeError``."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return load_refused_json(data, error)
    return _load(data) if may_lose_digits(data) else value


def load_arguments(text: str) -> Any:
    """Parse the arguments of a tool call: like ``loads``, without ``NaN`` and ``Infinity``. Raises ``ValueError``."""
    data = text.encode(errors="replace")
    try:
        return load_exactly(data, orjson.loads(data))
    except orjson.JSONDecodeError as error:
        try:
            return _load(data, parse_constant=_raise_not_json)
        except RecursionError:
            raise error from None


def load_refused_json(data: bytes, error: orjson.JSONDecodeError) -> Any:
    """Parse JSON that orjson has refused with ``error``. Raises an equal error if the JSON is invalid."""
    try:
        return _load(data)
    except (ValueError, RecursionError):
        # ``error`` itself would reference this frame, which references it and all of ``data``.
        raise orjson.JSONDecodeError(error.msg, error.doc, error.pos) from None


def load_exactly(data: bytes, value: Any) -> Any:
    """Return ``value``, which orjson has parsed from ``data``. Parse again if a number may have changed."""
    return _load(data) if may_lose_digits(data) else value


def may_lose_digits(data: bytes) -> bool:
    """Return whether orjson may change a number in ``data``. Uses only fast byte searches."""
    if _LONG_DIGITS in data.translate(_DIGIT_TABLE):
        return True
    return b"-0" in data and any(start in data for start in _NEGATIVE_ZEROS)  # one search for most texts


def dumps(value: Any) -> bytes:
    """Serialize to JSON, an ``ExactNumber`` with its original digits. Raises ``orjson.JSONEncodeError``."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return orjson.dumps(value, default=write_number)


def trim(encoded: bytes) -> bytes:
    """Return a copy of what ``dumps`` or ``orjson.dumps`` has returned, for bytes that stay in memory for longer.

    orjson returns bytes in the buffer that it wrote them to: of at least 4 KB since its version 3.12, and often of
    several times their length. ``sys.getsizeof`` does not count the rest.
    """
    return b"".join((encoded, b""))  # ``join`` returns a single part as it is


def write_number(value: object) -> orjson.Fragment:
    """Serialize an ``ExactNumber``; the ``default`` of ``orjson.dumps``. Raises ``TypeError`` for other values."""
    if isinstance(value, ExactNumber):
        return orjson.Fragment(value.text)
    raise TypeError


def _load(data: bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    text = data.decode()
    if b"\\ud" in data or b"\\uD" in data:
        text = _ESCAPE_PATTERN.sub(_replace_half, text)
    return json.loads(text, parse_int=_read_integer, parse_float=_read_decimal, parse_constant=parse_constant)


def _raise_not_json(constant: str) -> None:
    raise ValueError(constant)


def _replace_half(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape["half"] else escape[0]


def _read_integer(text: str) -> int | ExactNumber:
    if text == "-0":
        return ExactNumber(text)
    if len(text) < len(_LONG_DIGITS):
        return int(text)
    number = int(text) if len(text) <= len(_LONG_DIGITS) + 2 else _MAX_INTEGER + 1
    return number if _MIN_INTEGER <= number <= _MAX_INTEGER else ExactNumber(text)


def _read_decimal(text: str) -> float:
    number = float(text)
    return number if number - number == 0 else ExactNumber(text)  # the range of a double is exceeded
