"""Generates JSON that matches a schema. Pure, and bounded for any input."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from gateway.demo.requests import Json, RequestError

_MAX_DEPTH = 12
_OPTIONAL_DEPTH = 4
"""From this depth on, optional values are left out, because schemas may be recursive."""
_MAX_VALUES = 2_000
_MAX_OBJECTS = 20
_MAX_TEXT_CHARS = 200_000
_WORD_PATTERN = re.compile(r"[^\W_]+")
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
    """Return a value for the schema, with strings from the prompt.

    ``pattern`` is ignored, and values nested deeper than ``_MAX_DEPTH`` are empty objects. Raises ``RequestError`` for
    too many values.
    """
    return _Filler(schema, prompt).fill(schema, 0)


class _Filler:
    def __init__(self, root: Json, prompt: str) -> None:
        self._root = root
        self._words = itertools.cycle(_order_words(prompt))
        self._values_left = _MAX_VALUES

    def fill(self, json_schema: Any, depth: int) -> Any:
        """Return a value for a schema at this depth; an empty object beyond ``_MAX_DEPTH``.

        Raises ``RequestError`` for too many values.
        """
        schema = self._resolve(json_schema)
        self._values_left -= 1
        if self._values_left < 0:
            raise RequestError(f"A JSON schema asks for more than {_MAX_VALUES} values.")
        if depth > _MAX_DEPTH:
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
        properties, required_names = schema.get("properties"), schema.get("required")
        known_fields = properties if isinstance(properties, dict) else {}
        names = [name for name in required_names if isinstance(name, str)] if isinstance(required_names, list) else []
        optional_names = known_fields if depth < _OPTIONAL_DEPTH else ()
        return {name: self.fill(known_fields.get(name, {}), depth + 1) for name in names or optional_names}

    def _fill_array(self, schema: Json, depth: int) -> list[Any]:
        prefix_items, items = schema.get("prefixItems"), schema.get("items", {})
        first = prefix_items if isinstance(prefix_items, list) else []
        minimum = _find_size(schema, "minItems", depth < _OPTIONAL_DEPTH)
        maximum = _find_size(schema, "maxItems", _MAX_VALUES)
        count = min(max(minimum, len(first)), maximum)
        return [self.fill(first[index] if index < len(first) else items, depth + 1) for index in range(count)]

    def _resolve(self, schema: Any) -> Json:
        """Return a schema without references, ``allOf`` and alternatives, of which the first is taken.

        The schema is empty if a reference leads nowhere, or to itself.
        """
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict):
                return {}
            all_of, any_of = schema.get("allOf"), schema.get("anyOf") or schema.get("oneOf")
            if isinstance(reference := schema.get("$ref"), str):
                schema = self._find(reference)
            elif isinstance(all_of, list) and all_of:
                schema = self._merge([{**schema, "allOf": None}, *all_of])
            elif isinstance(any_of, list) and any_of:
                schema = any_of[0]
            else:
                return schema
        return {}

    def _find(self, reference: str) -> Any:
        node: Any = self._root
        for step in reference.lstrip("#/").split("/") if reference != "#" else ():
            node = node.get(step) if isinstance(node, dict) else None
        return node

    def _merge(self, schemas: list[Any]) -> Json:
        """Merge schemas into one. Later values win, except that ``required`` and objects such as properties are joined.

        A ``$ref`` among the schemas is resolved.
        """
        joint_schema: Json = {}
        for schema in schemas[:_MAX_OBJECTS]:
            members = (
                self._find(schema["$ref"])
                if isinstance(schema, dict) and isinstance(schema.get("$ref"), str)
                else schema
            )
            for name, value in members.items() if isinstance(members, dict) else ():
                earlier = joint_schema.get(name)
                if isinstance(earlier, dict) and isinstance(value, dict):
                    joint_schema[name] = earlier | value
                elif name == "required" and isinstance(earlier, list) and isinstance(value, list):
                    joint_schema[name] = earlier + value
                elif value is not None:
                    joint_schema[name] = value
        return joint_schema


def _find_kind(schema: Json) -> object:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((name for name in kind if name != "null"), "null")
    return kind or ("object" if "properties" in schema else "array" if "items" in schema else "string")


def _fill_leaf(kind: object, schema: Json, words: Iterator[str]) -> Any:
    match kind:
        case "integer" | "number":
            return _fill_number(schema, is_integer=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _fill_text(schema, words)


def _find_size(schema: Json, name: str, default: int) -> int:
    value = schema.get(name)
    size = int(value) if isinstance(value, int | float) else int(default)
    return max(0, min(size, _MAX_VALUES + 1))


def _fill_number(schema: Json, *, is_integer: bool) -> float:
    """Return 1 if the schema allows it, else a number near it that the schema allows."""
    step, minimum, maximum = (_find_number(schema, name) for name in ("multipleOf", "minimum", "maximum"))
    exclusive_minimum, exclusive_maximum = (
        _find_number(schema, "exclusiveMinimum"),
        _find_number(schema, "exclusiveMaximum"),
    )
    step = step if step and step > 0 else 1 if is_integer else 0
    low = max((edge for edge in (minimum, exclusive_minimum) if edge is not None), default=None)
    high = min((edge for edge in (maximum, exclusive_maximum) if edge is not None), default=None)
    value: float = 1
    if low is not None and (value < low or value == exclusive_minimum):
        value = low if low != exclusive_minimum else low + (step or (1 if high is None else (high - low) / 2))
    if high is not None and (value > high or value == exclusive_maximum):
        value = high if high != exclusive_maximum else high - (step or (1 if low is None else (high - low) / 2))
    if step and value % step:
        rounded_up, rounded_down = math.ceil(value / step) * step, math.floor(value / step) * step
        value = (
            rounded_down if high is not None and (rounded_up > high or rounded_up == exclusive_maximum) else rounded_up
        )
    return int(value) if is_integer else value


def _find_number(schema: Json, name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _fill_text(schema: Json, words: Iterator[str]) -> str:
    """Return a fixed text in the schema's format, else words with a length that the schema allows."""
    format_name = schema.get("format")
    if isinstance(format_name, str) and format_name in _FORMATS:
        return _FORMATS[format_name]
    text, minimum = next(words), _find_size(schema, "minLength", 0)
    while len(text) < minimum:
        text = f"{text} {next(words)}"
    return text[: max(minimum, _find_size(schema, "maxLength", len(text)))]


def _order_words(prompt: str) -> tuple[str, ...]:
    """Return the prompt's words, each once: capitalized words first, then the longest; ``demo`` if it has none."""
    words = _WORD_PATTERN.findall(prompt[:_MAX_TEXT_CHARS])
    names = [word for word in words[1:] if word[0].isupper() and len(word) > 1]
    return tuple(dict.fromkeys([*names, *sorted(words, key=len, reverse=True)])) or ("demo",)
