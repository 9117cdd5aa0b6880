"""JSON: a request's is parsed strictly, a provider's answer may have any shape.

A provider must not read another value in a request than the gateway checked. orjson rejects NaN, lone surrogates,
encodings other than UTF-8 and nesting over 1024 levels. It accepts duplicate keys, of which it keeps the last, and
cannot write more than 254 levels. ``parse_json_object`` rejects deep nesting, and duplicate keys in bodies of up to
2 MiB, by counting instead of a second parser.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

import orjson

from gateway.domain import exact_json
from gateway.errors import InvalidRequest

Body = dict[str, Any]

MAX_DEPTH = 128
MAX_CONTAINERS = 20_000
MAX_STRINGS = 50_000
MAX_VALUES = 300_000
"""Limits of one request body: objects and arrays, strings and keys, values. Half a million objects would block the
event loop for too long. The longest chats have a few thousand objects, a batch of token ids a few hundred thousand
values."""

MAX_DUPLICATE_CHECK_BYTES = 2 * 1024 * 1024
"""Maximum size of a body that is searched for duplicate keys. In a larger body, which holds images or very long texts,
the last of two equal keys counts: only its value is checked and forwarded.
"""

MAX_ESCAPES = 4_000_000
"""Maximum number of backslashes: writing a short escape costs twenty times as much as writing a letter."""

_PIECE_BYTES = 1024 * 1024
"""Bytes searched for escapes in one step."""
_NON_BACKSLASH_PATTERN = re.compile(rb"[^\\]")


def parse_json_object(raw: bytes, *, exact: bool = False) -> dict[str, Any]:
    """Parse a JSON object. Raises ``InvalidRequest``. ``exact`` preserves all digits of numbers."""
    if not raw:
        raise InvalidRequest("The request body is empty; a JSON object is expected")
    if len(raw) > MAX_ESCAPES and raw.count(b"\\") > MAX_ESCAPES:
        raise InvalidRequest(f"The request body holds more than {MAX_ESCAPES} escapes")
    # A short body, or one with little punctuation, cannot exceed a limit.
    if len(raw) > MAX_CONTAINERS and sum(map(raw.count, (b"{", b"[", b",", b'"'))) > MAX_CONTAINERS:
        _check_counts(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object")
    # ``bytes.count`` of CPython 3.11 compares byte for byte; ``bytes.replace`` searches with ``memchr``.
    shortened = raw.replace(b"{", b"", MAX_DEPTH + 1).replace(b"[", b"", MAX_DEPTH + 1)
    if len(raw) - len(shortened) > MAX_DEPTH:
        _check_depth(value)
    canonical = orjson.dumps(value) if len(raw) <= MAX_DUPLICATE_CHECK_BYTES else b""
    # A body that serializes to the same bytes, as most do, has lost no digit and has no duplicate key.
    if canonical == raw:
        return value
    if canonical:
        _check_duplicates(raw, canonical)
    return cast(dict[str, Any], exact_json.load_exactly(raw, value)) if exact else value


def _check_counts(raw: bytes) -> None:
    """Raise ``InvalidRequest`` for a body that would take too long to parse.

    Strings are the odd-numbered pieces between quotes. No step holds the GIL for longer than parsing does.
    """
    text = b"".join(map(_strip_escapes, _split_pieces(raw)))
    if text.count(b'"') > 2 * MAX_STRINGS:
        raise InvalidRequest(f"The request body holds more than {MAX_STRINGS} strings and keys")
    outside_strings = b"".join(text.split(b'"')[::2])
    if outside_strings.count(b"{") + outside_strings.count(b"[") > MAX_CONTAINERS:
        raise InvalidRequest(f"The request body holds more than {MAX_CONTAINERS} objects and arrays")
    if outside_strings.count(b",") > MAX_VALUES:
        raise InvalidRequest(f"The request body holds more than {MAX_VALUES} values")


def _split_pieces(raw: bytes) -> Iterator[bytes]:
    """Yield ``raw`` in pieces that never end within an escape."""
    start = 0
    while start < len(raw):
        match = _NON_BACKSLASH_PATTERN.search(raw, start + _PIECE_BYTES)
        end = match.end() if match else len(raw)
        yield raw[start:end]
        start = end


def _strip_escapes(piece: bytes) -> bytes:
    return piece.replace(b"\\\\", b"").replace(b'\\"', b"")


def _check_depth(value: dict[str, Any]) -> None:
    containers: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        members = chain.from_iterable(
            container.values() if type(container) is dict else container for container in containers
        )
        containers = [member for member in members if type(member) is dict or type(member) is list]
        if not containers:
            return
    raise InvalidRequest(f"The request body is nested more than {MAX_DEPTH} deep")


def _check_duplicates(raw: bytes, canonical: bytes) -> None:
    """Raise ``InvalidRequest`` for a duplicate key.

    ``canonical`` is the parsed body, written as JSON again: parsing drops a duplicate key with its colon.
    """
    colons = raw.count(b":")
    if b"\\u003" in raw:  # some colons may be escaped
        unescaped_raw = raw.replace(b"\\\\", b"")
        colons += unescaped_raw.count(b"\\u003a") + unescaped_raw.count(b"\\u003A")
    if colons != canonical.count(b":"):
        raise InvalidRequest("The request body has a duplicate key", param=_find_duplicate(raw))


def _find_duplicate(raw: bytes) -> str | None:
    """Return the first duplicate key of the outermost object; None if the duplicate is nested."""
    names: set[str] = set()
    depth = 0
    for match in re.finditer(rb'("(?:[^"\\]++|\\.)*+")(\s*+:)?|[{}\[\]]', raw, re.DOTALL):
        if match.group(1) is None:
            depth += 1 if match.group() in b"{[" else -1
        elif match.group(2) and depth == 1:
            name: str = orjson.loads(match.group(1))
            if name in names:
                return name
            names.add(name)
    return None


def loads_or_none(raw: bytes, *, exact: bool = False) -> Any:
    """Parse JSON; return None if it is invalid. ``exact`` preserves all digits of numbers."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        try:
            return exact_json.load_refused_json(raw, error)
        except orjson.JSONDecodeError:
            return None
    return exact_json.load_exactly(raw, value) if exact else value


def as_object(value: object) -> Body:
    """Return ``value`` if it is a JSON object, else an empty dict."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return ``value`` if it is a JSON array, else an empty list."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """Return ``value`` if it is a string, else ""."""
    return value if isinstance(value, str) else ""


def list_objects(value: object) -> list[Body]:
    """Return the objects in an array; an empty list if ``value`` is not an array."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
