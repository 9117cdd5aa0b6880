"""Judges an answer by words that it must have, and by a JSON Schema that it must satisfy.

The keywords in ``_CHECKS`` are supported. A schema with any other keyword is refused, because wrong answers could pass
if the keyword were ignored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from gateway.errors import InvalidRequest

MAX_DEPTH = 32
MAX_STEPS = 10_000_000
"""The most checks of one answer: the values that it may have, times the objects and the listed values of the schema."""
MAX_PROBLEMS = 20
"""The most violations of a schema that are listed."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip
_NOTES = frozenset({"$schema", "$id", "title", "description", "default", "examples", "format"})
"""Keywords that have no effect on the result."""


def list_problems(text: str, words: Sequence[str], schema: Any) -> list[str]:
    """Return why an answer fails; empty if it has all ``words``, in any case, and satisfies ``schema`` if not None."""
    lower_text = text.lower()
    problems = [f"the words {word!r} are missing" for word in words if word.lower() not in lower_text]
    if schema is None:
        return problems
    if len(text) * _count_schemas(schema) > MAX_STEPS:
        return [*problems, "the text is too long to be checked"]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return [*problems, "the text is no JSON"]
    return [*problems, *islice(_find_violations(value, schema, "$"), MAX_PROBLEMS)]


def _count_schemas(schema: Any) -> int:
    if not isinstance(schema, dict):
        return 1
    listed_count = sum(len(schema.get(name, ())) for name in ("enum", "required"))
    inner_count = sum(_count_schemas(inner) for name, value in schema.items() for inner in _list_inner(name, value))
    return 1 + listed_count + inner_count


def check_schema(schema: Any, depth: int = 0) -> None:
    """Raise ``InvalidRequest`` for a schema that is malformed, too deep, or has an unknown keyword."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        raise InvalidRequest("'schema' must be a JSON Schema of objects, at most 32 deep", param="schema")
    for name, value in schema.items():
        if name not in _CHECKS and name not in _NOTES:
            raise InvalidRequest(f"'schema' has the keyword {name[:40]!r}, which is not supported", param="schema")
        if name in _NUMBER_KEYWORDS and type(value) not in {int, float}:
            raise InvalidRequest(f"'schema': {name!r} must be a number", param="schema")
        if name in {"type", "required", "enum"}:
            _check_names(name, value)
        for inner in _list_inner(name, value):
            check_schema(inner, depth + 1)


def _check_names(name: str, value: Any) -> None:
    items = value if isinstance(value, list) else [value] if name == "type" else None
    is_known = items is not None and (
        name == "enum" or all(isinstance(item, str) and (name != "type" or item in _TYPES) for item in items)
    )
    if not is_known:
        raise InvalidRequest(f"'schema': {name!r} is malformed", param="schema")


def _list_inner(name: str, value: Any) -> Sequence[Any]:
    """Return the schemas in a keyword's value. Raises ``InvalidRequest`` for another value."""
    if name == "properties":
        if not isinstance(value, dict):
            raise InvalidRequest("'schema': 'properties' must be an object", param="schema")
        return list(value.values())
    if name in {"anyOf", "allOf", "oneOf"}:
        if not isinstance(value, list):
            raise InvalidRequest(f"'schema': {name!r} must be an array", param="schema")
        return value
    return [value] if name in {"items", "additionalProperties", "not"} else []


def _find_violations(value: Any, schema: Any, path: str) -> Iterator[str]:
    if schema is False:
        yield f"{path}: nothing is allowed here"
    elif schema is not True:
        for name, expected in schema.items():
            if name in _CHECKS:
                yield from _CHECKS[name](value, expected, path, schema)


def _fits(value: Any, schema: Any, path: str) -> bool:
    return next(_find_violations(value, schema, path), None) is None


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _check_type(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
    names = expected if isinstance(expected, list) else [expected]
    if not any(_is_type(value, name) for name in names):
        yield f"{path}: expected {' or '.join(names)}"


def _check_enum(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
    if not any(_is_equal(value, item) for item in expected):
        yield f"{path}: not one of the allowed values"


def _check_const(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
    if not _is_equal(value, expected):
        yield f"{path}: not the expected value"


def _is_equal(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _check_required(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
    for name in expected if isinstance(value, dict) else ():
        if name not in value:
            yield f"{path}.{name}: missing"


def _check_properties(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
    for name, schema in expected.items() if isinstance(value, dict) else ():
        if name in value:
            yield from _find_violations(value[name], schema, f"{path}.{name}")


def _check_additional(value: Any, expected: Any, path: str, schema: Any) -> Iterator[str]:
    for name in value if isinstance(value, dict) else ():
        if name not in schema.get("properties", {}):
            yield from _find_violations(value[name], expected, f"{path}.{name}")


def _check_items(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
    for number, item in enumerate(value if isinstance(value, list) else ()):
        yield from _find_violations(item, expected, f"{path}[{number}]")


def _make_combination_check(count_fits: Callable[[int, int], bool]) -> "_Check":
    def check(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
        fitting_count = sum(_fits(value, schema, path) for schema in expected)
        if not count_fits(fitting_count, len(expected)):
            yield f"{path}: {fitting_count} of {len(expected)} schemas fit"

    return check


def _check_not(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
    if _fits(value, expected, path):
        yield f"{path}: what is excluded"


def _make_bound_check(
    measure: Callable[[Any], float | None], fits: Callable[[float, float], bool], word: str
) -> "_Check":
    def check(value: Any, expected: Any, path: str, _: Any) -> Iterator[str]:
        size = measure(value)
        if size is not None and not fits(size, expected):
            yield f"{path}: {size:g}, expected {word} {expected:g}"

    return check


def _measure_number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _measure_text(value: Any) -> float | None:
    return len(value) if isinstance(value, str) else None


def _measure_list(value: Any) -> float | None:
    return len(value) if isinstance(value, list) else None


def _is_at_least(size: float, bound: float) -> bool:
    return size >= bound


def _is_at_most(size: float, bound: float) -> bool:
    return size <= bound


_Check = Callable[[Any, Any, str, Any], Iterator[str]]
_BOUNDS: Mapping[str, _Check] = {
    "minimum": _make_bound_check(_measure_number, _is_at_least, "at least"),
    "maximum": _make_bound_check(_measure_number, _is_at_most, "at most"),
    "minLength": _make_bound_check(_measure_text, _is_at_least, "at least"),
    "maxLength": _make_bound_check(_measure_text, _is_at_most, "at most"),
    "minItems": _make_bound_check(_measure_list, _is_at_least, "at least"),
    "maxItems": _make_bound_check(_measure_list, _is_at_most, "at most"),
}
_NUMBER_KEYWORDS = frozenset(_BOUNDS)
_CHECKS: Mapping[str, _Check] = {
    "type": _check_type,
    "enum": _check_enum,
    "const": _check_const,
    "required": _check_required,
    "properties": _check_properties,
    "additionalProperties": _check_additional,
    "items": _check_items,
    "anyOf": _make_combination_check(lambda fitting, _: fitting > 0),
    "allOf": _make_combination_check(lambda fitting, total: fitting == total),
    "oneOf": _make_combination_check(lambda fitting, _: fitting == 1),
    "not": _check_not,
    **_BOUNDS,
}
