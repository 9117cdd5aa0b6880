"""Makes an example of a JSON schema, as mock servers made from OpenAPI documents do."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = Any

_STRINGS: Mapping[str, str] = {
    "date-time": "2030-01-01T00:00:00Z",
    "date": "2030-01-01",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "email": "user@example.com",
    "byte": "c3RyaW5n",
    "base64": "c3RyaW5n",
}
_PLAIN: Mapping[str, Json] = {"boolean": True, "null": None}
_ENDS = (".completed", ".done")
"""How the types of events end that a stream may end with."""
_DONE = "completed"
"""The status of what has ended well, which a client can do everything with."""
_ERROR = "error"
_IMAGE = "b64_json"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
"""An image of one pixel, for the property ``b64_json``, of which schemas say only that it is a string."""


class NoExample(Exception):
    """A schema that contains itself has no finite example at this place."""


class Examples:
    """Makes examples of the schemas of one document.

    An object has all its properties, except optional ones that would contain themselves. Of alternatives it takes the
    first that is not null; of events the last of a stream; of states "completed". An error that may be null is null.

    Args:
        document: an OpenAPI document, or a JSON schema with ``$defs``.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._open: list[str] = []

    def make(self, schema: Mapping[str, Any]) -> Json:
        """Return a value of ``schema``. Raises ``NoExample``."""
        if "$ref" in schema:
            return self._follow(schema["$ref"])
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            values = [value for value in schema["enum"] if value is not None]
            return _DONE if _DONE in values else values[0]
        for name in ("oneOf", "anyOf"):
            if name in schema:
                return self._merge(schema, self._choose(schema[name]))
        if "allOf" in schema:
            return self._merge(schema, self._join(schema["allOf"]))
        return self._make_plain(schema)

    def resolve(self, reference: str) -> Mapping[str, Any]:
        """Return what ``#/…`` points to."""
        found: Any = self._document
        for name in reference.removeprefix("#/").split("/"):
            found = found[name.replace("~1", "/").replace("~0", "~")]
        return found  # type: ignore[no-any-return]

    def _follow(self, reference: str) -> Json:
        if reference in self._open:
            raise NoExample(reference)
        self._open.append(reference)
        try:
            return self.make(self.resolve(reference))
        finally:
            self._open.pop()

    def _choose(self, variants: Sequence[Mapping[str, Any]]) -> Json:
        made = []
        for variant in variants:
            if variant.get("type") != "null":
                try:
                    made.append(self.make(variant))
                except NoExample:
                    continue
        if not made:
            raise NoExample(str(variants)[:100])
        kinds = [str(one.get("type", "")) if isinstance(one, dict) else "" for one in made]
        ends = (one for end in _ENDS for kind, one in zip(kinds, made, strict=True) if kind.endswith(end))
        return next(ends, made[0])

    def _merge(self, schema: Mapping[str, Any], chosen: Json) -> Json:
        """Add the properties that stand beside the alternatives of an object."""
        if not isinstance(chosen, dict) or "properties" not in schema:
            return chosen
        return self._make_object(schema) | chosen

    def _join(self, parts: Sequence[Mapping[str, Any]]) -> Json:
        joined: dict[str, Any] = {}
        for part in parts:
            value = self.make(part)
            if not isinstance(value, dict):
                return value
            joined |= value
        return joined

    def _make_plain(self, schema: Mapping[str, Any]) -> Json:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next(one for one in kind if one != "null")
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema else "any"
        if kind in ("integer", "number"):
            return _make_number(schema)
        makers = {"object": self._make_object, "array": self._make_array, "string": _make_string}
        return makers[kind](schema) if kind in makers else _PLAIN.get(kind, {})

    def _make_object(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        made = {}
        for name, value in schema.get("properties", {}).items():
            try:
                made[name] = self._make_property(name, value)
            except NoExample:
                if name in schema.get("required", ()):
                    raise
        return made

    def _make_property(self, name: str, schema: Mapping[str, Any]) -> Json:
        if name == _IMAGE:
            return PNG
        return None if name == _ERROR and self._is_nullable(schema) else self.make(schema)

    def _is_nullable(self, schema: Mapping[str, Any]) -> bool:
        if "$ref" in schema:
            return self._is_nullable(self.resolve(schema["$ref"]))
        return any(one.get("type") == "null" for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())))

    def _make_array(self, schema: Mapping[str, Any]) -> list[Any]:
        least = schema.get("minItems", 0)
        if "prefixItems" in schema:
            return [self.make(item) for item in schema["prefixItems"]]
        try:
            return [self.make(schema.get("items", {}))] * max(1, least)
        except NoExample:
            if least:
                raise
            return []


def _make_string(schema: Mapping[str, Any]) -> str:
    """Return a text; without a format it is also valid base64, which few schemas say that they hold."""
    example = schema.get("example", next(iter(schema.get("examples", ())), None))
    if "pattern" in schema and isinstance(example, str):
        return example
    text = _STRINGS.get(schema.get("format", ""), "text")
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", 1_000)]


def _make_number(schema: Mapping[str, Any]) -> float:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    return min(max(least, 1), schema.get("maximum", 2**31))  # type: ignore[no-any-return]
