"""Generates JSON that matches a schema. Pure, and bounded for any input."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from gateway.demo.requests import Json, RequestError

_DEPTH = 12
_OPTIONAL_DEPTH = 4
"""Below this depth optional values are left out: schemas may be recursive."""
_MOST_VALUES = 2_000
_MOST_OBJECTS = 20
_MOST_TEXT = 200_000
_WORD = re.compile(r"[^\W_]+")
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "demo@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def fill(schema: Json, prompt: str) -> Any:
    """Return a value that the schema allows, with strings from the prompt. ``pattern`` is ignored."""
    return _Filler(schema, prompt).fill(schema, 0)


class _Filler:
    def __init__(self, root: Json, prompt: str) -> None:
        self._root = root
        self._words = itertools.cycle(_order_words(prompt))
        self._left = _MOST_VALUES

    def fill(self, given: Any, depth: int) -> Any:
        """Return a value for a schema. Recursive or deeply nested schemas end in an empty object."""
        schema = self._resolve(given)
        self._left -= 1
        if self._left < 0:
            raise RequestError(f"A JSON schema asks for more than {_MOST_VALUES} values.")
        if depth > _DEPTH:
            return {}
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return schema["enum"][0]
        kind = _find_kind(schema)
        if kind == "object":
            return self._fill_object(schema, depth)
        return self._fill_array(schema, depth) if kind == "array" else _fill_leaf(kind, schema, self._words)

    def _fill_object(self, schema: Json, depth: int) -> Json:
        properties, required = schema.get("properties"), schema.get("required")
        known = properties if isinstance(properties, dict) else {}
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        optional = known if depth < _OPTIONAL_DEPTH else ()
        return {name: self.fill(known.get(name, {}), depth + 1) for name in names or optional}

    def _fill_array(self, schema: Json, depth: int) -> list[Any]:
        places, items = schema.get("prefixItems"), schema.get("items", {})
        first = places if isinstance(places, list) else []
        minimum = _find_size(schema, "minItems", depth < _OPTIONAL_DEPTH)
        maximum = _find_size(schema, "maxItems", _MOST_VALUES)
        wanted = min(max(minimum, len(first)), maximum)
        return [self.fill(first[index] if index < len(first) else items, depth + 1) for index in range(wanted)]

    def _resolve(self, schema: Any) -> Json:
        """Resolve local references and take the first alternative, until the schema has a type."""
        for _ in range(_DEPTH):
            if not isinstance(schema, dict):
                return {}
            every, some = schema.get("allOf"), schema.get("anyOf") or schema.get("oneOf")
            if isinstance(reference := schema.get("$ref"), str):
                schema = self._find(reference)
            elif isinstance(every, list) and every:
                schema = self._merge([{**schema, "allOf": None}, *every])
            elif isinstance(some, list) and some:
                schema = some[0]
            else:
                return schema
        return {}

    def _find(self, reference: str) -> Any:
        found: Any = self._root
        for step in reference.lstrip("#/").split("/") if reference != "#" else ():
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def _merge(self, schemas: list[Any]) -> Json:
        """Merge schemas into one that requires everything. Later schemas win, except that properties are combined."""
        merged: Json = {}
        for given in schemas[:_MOST_OBJECTS]:
            found = (
                self._find(given["$ref"]) if isinstance(given, dict) and isinstance(given.get("$ref"), str) else given
            )
            for name, value in found.items() if isinstance(found, dict) else ():
                before = merged.get(name)
                if isinstance(before, dict) and isinstance(value, dict):
                    merged[name] = before | value
                elif name == "required" and isinstance(before, list) and isinstance(value, list):
                    merged[name] = before + value
                elif value is not None:
                    merged[name] = value
        return merged


def _find_kind(schema: Json) -> object:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((one for one in kind if one != "null"), "null")
    return kind or ("object" if "properties" in schema else "array" if "items" in schema else "string")


def _fill_leaf(kind: object, schema: Json, words: Iterator[str]) -> Any:
    match kind:
        case "integer" | "number":
            return _fill_number(schema, whole=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _fill_text(schema, words)


def _find_size(schema: Json, name: str, otherwise: int) -> int:
    value = schema.get(name)
    size = int(value) if isinstance(value, int | float) else int(otherwise)
    return max(0, min(size, _MOST_VALUES + 1))


def _fill_number(schema: Json, *, whole: bool) -> float:
    """Return 1, or the nearest number that the schema allows."""
    step, minimum, maximum = (_find_number(schema, name) for name in ("multipleOf", "minimum", "maximum"))
    above, below = _find_number(schema, "exclusiveMinimum"), _find_number(schema, "exclusiveMaximum")
    step = step if step and step > 0 else 1 if whole else 0
    low = max((edge for edge in (minimum, above) if edge is not None), default=None)
    high = min((edge for edge in (maximum, below) if edge is not None), default=None)
    value: float = 1
    if low is not None and (value < low or value == above):
        value = low if low != above else low + (step or (1 if high is None else (high - low) / 2))
    if high is not None and (value > high or value == below):
        value = high if high != below else high - (step or (1 if low is None else (high - low) / 2))
    if step and value % step:
        up, down = math.ceil(value / step) * step, math.floor(value / step) * step
        value = down if high is not None and (up > high or up == below) else up
    return int(value) if whole else value


def _find_number(schema: Json, name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _fill_text(schema: Json, words: Iterator[str]) -> str:
    """Return a word, or text in the schema's format, with a length that the schema allows."""
    wanted = schema.get("format")
    if isinstance(wanted, str) and wanted in _FORMATS:
        return _FORMATS[wanted]
    text, minimum = next(words), _find_size(schema, "minLength", 0)
    while len(text) < minimum:
        text = f"{text} {next(words)}"
    return text[: max(minimum, _find_size(schema, "maxLength", len(text)))]


def _order_words(prompt: str) -> tuple[str, ...]:
    """Return the prompt's words, names first, then by length."""
    words = _WORD.findall(prompt[:_MOST_TEXT])
    names = [word for word in words[1:] if word[0].isupper() and len(word) > 1]
    return tuple(dict.fromkeys([*names, *sorted(words, key=len, reverse=True)])) or ("demo",)
