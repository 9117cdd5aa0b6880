"""A request's JSON body, read strictly: what was checked is what is forwarded.

orjson refuses NaN, lone surrogates, other encodings than UTF-8 and depth over 1024, but keeps the last of duplicate
keys and cannot write what is nested 254 deep. Both are refused here, by counting rather than by a second parser.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import orjson

from gateway.errors import InvalidRequest

MAX_DEPTH = 128
MAX_CONTAINERS = 20_000
MAX_STRINGS = 50_000
MAX_VALUES = 300_000
"""Of one body: objects and arrays, strings and keys, values. Half a million objects would hold the event loop for
longer than a stream may wait; the longest conversation has a few thousand, a batch of token ids a few hundred
thousand values."""

MAX_LOOKED_THROUGH = 2 * 1024 * 1024
"""Bytes of a body that is looked through for duplicate keys. Of a larger one, which is pictures or a library's worth of
text, the last of two keys counts: it is what was checked, and what is forwarded."""

MAX_ESCAPES = 4_000_000
"""Backslashes: each short escape is written again on the way out, at twenty times the price of a letter."""

_PIECE_BYTES = 1024 * 1024
"""That are looked through for escapes in one step."""
_NO_BACKSLASH = re.compile(rb"[^\\]")


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """``raw`` -> the JSON object it holds. Raises ``InvalidRequest`` saying what is wrong and where."""
    if not raw:
        raise InvalidRequest("The request body is empty; a JSON object is expected")
    if len(raw) > MAX_ESCAPES and raw.count(b"\\") > MAX_ESCAPES:
        raise InvalidRequest(f"The request body holds more than {MAX_ESCAPES} escapes")
    containers = raw.count(b"{") + raw.count(b"[")
    # A short body, or one with few marks in it, in strings or out, is not looked at twice.
    if len(raw) > MAX_CONTAINERS and containers + raw.count(b",") + raw.count(b'"') > MAX_CONTAINERS:
        _check_counts(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object")
    if containers > MAX_DEPTH:
        _check_depth(value)
    # What is written again as it came, as most clients write, has no key twice.
    if len(raw) <= MAX_LOOKED_THROUGH and (written := orjson.dumps(value)) != raw:
        _check_duplicates(raw, written)
    return value


def _check_counts(raw: bytes) -> None:
    """Refuse what would take long to read.

    No step holds the interpreter for longer than parsing does: of the strings, which are the odd pieces between
    quotes, there are few by the time that they are cut out.
    """
    bare = b"".join(map(_strip_escapes, _cut(raw)))
    if bare.count(b'"') > 2 * MAX_STRINGS:
        raise InvalidRequest(f"The request body holds more than {MAX_STRINGS} strings and keys")
    outside = b"".join(bare.split(b'"')[::2])
    if outside.count(b"{") + outside.count(b"[") > MAX_CONTAINERS:
        raise InvalidRequest(f"The request body holds more than {MAX_CONTAINERS} objects and arrays")
    if outside.count(b",") > MAX_VALUES:
        raise InvalidRequest(f"The request body holds more than {MAX_VALUES} values")


def _cut(raw: bytes) -> Iterator[bytes]:
    """``raw`` in pieces, none of which ends within an escape."""
    start = 0
    while start < len(raw):
        found = _NO_BACKSLASH.search(raw, start + _PIECE_BYTES)
        end = found.end() if found else len(raw)
        yield raw[start:end]
        start = end


def _strip_escapes(piece: bytes) -> bytes:
    """``piece`` without escaped backslashes and quotes."""
    return piece.replace(b"\\\\", b"").replace(b'\\"', b"")


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        members = chain.from_iterable(each.values() if type(each) is dict else each for each in level)
        level = [member for member in members if type(member) is dict or type(member) is list]
        if not level:
            return
    raise InvalidRequest(f"The request body is nested more than {MAX_DEPTH} deep")


def _check_duplicates(raw: bytes, written: bytes) -> None:
    """Refuse what has more keys than were read of it: those of ``written``.

    Of two keys one is not kept, nor its colon; all other colons are, in strings and out.
    """
    colons = raw.count(b":")
    if b"\\u003" in raw:  # some may be escaped
        escapes = raw.replace(b"\\\\", b"")
        colons += escapes.count(b"\\u003a") + escapes.count(b"\\u003A")
    if colons != written.count(b":"):
        raise InvalidRequest("The request body has a duplicate key", param=_find_duplicate(raw))


def _find_duplicate(raw: bytes) -> str | None:
    """The first key that stands twice in the outermost object; None where the duplicate is further in."""
    seen: set[str] = set()
    depth = 0
    for match in re.finditer(rb'("(?:[^"\\]++|\\.)*+")(\s*+:)?|[{}\[\]]', raw, re.DOTALL):
        if match.group(1) is None:
            depth += 1 if match.group() in b"{[" else -1
        elif match.group(2) and depth == 1:
            name: str = orjson.loads(match.group(1))
            if name in seen:
                return name
            seen.add(name)
    return None
