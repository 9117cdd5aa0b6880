"""A request's JSON body, read strictly: what was checked is what is forwarded.

orjson refuses NaN, lone surrogates, other encodings than UTF-8 and depth over 1024, but keeps the last of duplicate
keys and cannot write what is nested 254 deep. Both are refused here, by counting rather than by a second parser.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson

from gateway.domain.fault import InvalidRequest

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

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"(\s*+:)?|\\?\Z)', re.DOTALL)

_BARE_STRING = re.compile(rb'"[^"]*+"?')
"""Once the escaped backslashes and then the escaped quotes are out, which is cheaper than stepping over millions of
them."""


def read_json_object(raw: bytes) -> dict[str, Any]:
    """``raw`` -> the JSON object it holds. Raises ``InvalidRequest`` saying what is wrong and where."""
    if not raw:
        raise InvalidRequest("The request body is empty; a JSON object is expected")
    # A body with few marks in it, in strings or out, is not looked at twice.
    if sum(map(raw.count, (b"{", b"[", b",", b'"'))) > MAX_CONTAINERS:
        _check_counts(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object")
    keys = _count_keys(value)
    # Every key has one colon outside strings. Where there are no other colons at all the cheap count settles it.
    if len(raw) <= MAX_LOOKED_THROUGH and raw.count(b":") != keys:
        _check_duplicates(raw, keys)
    return value


def _check_counts(raw: bytes) -> None:
    """Refuse what would take long to read."""
    # A string has two quotes that no backslash stands before, or one, where its last character is a backslash.
    if raw.count(b'"') - raw.count(b'\\"') > 2 * MAX_STRINGS:
        raise InvalidRequest(f"The request body holds more than {MAX_STRINGS} strings and keys")
    outside = _BARE_STRING.sub(b"", raw.replace(b"\\\\", b"").replace(b'\\"', b""))
    if outside.count(b"{") + outside.count(b"[") > MAX_CONTAINERS:
        raise InvalidRequest(f"The request body holds more than {MAX_CONTAINERS} objects and arrays")
    if outside.count(b",") > MAX_VALUES:
        raise InvalidRequest(f"The request body holds more than {MAX_VALUES} values")


def _count_keys(value: dict[str, Any]) -> int:
    keys = len(value)
    level: list[Iterable[Any]] = [value.values()]
    for _ in range(MAX_DEPTH):
        below: list[Iterable[Any]] = []
        for members in level:
            for member in members:
                if type(member) is dict:
                    keys += len(member)
                    below.append(member.values())
                elif type(member) is list:
                    below.append(member)
        if not below:
            return keys
        level = below
    raise InvalidRequest(f"The request body is nested more than {MAX_DEPTH} deep")


def _check_duplicates(raw: bytes, keys: int) -> None:
    names = [match for match in _STRING.finditer(raw) if match.group(1)]
    if len(names) == keys:
        return
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
