"""Normalize the field names of a client's body in Gemini's format.

Google's API accepts every field in camelCase and in snake_case (protobuf's JSON mapping), and a single object instead
of an array. The gateway checks, bounds and charges a request by its fields, so it needs one spelling. Names in the
client's own data stay unchanged: arguments, results, JSON Schemas and property names.
"""

from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.wire.fields import PLAIN_NAMES, Body
from gateway.wording import fold_name

_CLIENT_DATA_FIELDS = frozenset(
    {"args", "response", "parametersJsonSchema", "responseJsonSchema", "default", "example", "enum", "labels",
     "headers", "partMetadata"},
)  # fmt: skip
"""Fields whose values are the client's own data, left unchanged."""
_CLIENT_NAMED_FIELDS = frozenset({"properties", "defs", "$defs"})
"""Fields whose keys are the client's own names: the properties and definitions of a schema."""
_ARRAY_FIELDS = frozenset({"contents", "parts", "tools", "functionDeclarations", "safetySettings", "requests"})
_GOVERNED_NAMES = frozenset(
    {"cachedContent", "candidateCount", "contents", "content", "generationConfig", "generateContentRequest",
     "maxOutputTokens", "model", "requests", "responseModalities", "serviceTier", "systemInstruction", "tools"},
)  # fmt: skip
"""Fields by which the gateway routes, bounds and charges a request."""
_FOLDED_NAMES = {fold_name(name): name for name in _GOVERNED_NAMES}


def unify_names(body: Body) -> Body:
    """Return a copy of ``body`` in camelCase, with single objects wrapped into arrays where required.

    Raises ``InvalidRequest`` for a field in two spellings, and for a field of ``_GOVERNED_NAMES`` in another letter
    case, which a channel's server might accept.
    """
    return _unify_object(body, "")


def _unify_object(value: Body, param: str) -> Body:
    unified_body: Body = {}
    for spelling, item in value.items():
        name = _convert_to_camel_case(spelling) if "_" in spelling else spelling
        if name in unified_body:
            raise InvalidRequest(f"'{param}{name}' is given in two spellings", param=f"{param}{name}")
        if name not in _GOVERNED_NAMES and name not in PLAIN_NAMES:
            _check_spelling(spelling, param)
        unified_body[name] = _unify_value(name, item, f"{param}{name}")
    return unified_body


def _unify_value(name: str, value: Any, param: str) -> Any:
    if name in _CLIENT_DATA_FIELDS:
        return value
    if isinstance(value, dict):
        if name in _CLIENT_NAMED_FIELDS:
            return {key: _unify_value("", item, f"{param}.{key}") for key, item in value.items()}
        unified = _unify_object(value, f"{param}.")
        return [unified] if name in _ARRAY_FIELDS else unified
    if isinstance(value, list):
        return [_unify_value("", item, f"{param}[{index}]") for index, item in enumerate(value)]
    return value


def _convert_to_camel_case(name: str) -> str:
    first_word, *other_words = name.split("_")
    return first_word + "".join(word[:1].upper() + word[1:] for word in other_words) if first_word else name


def _check_spelling(name: str, param: str) -> None:
    known_name = _FOLDED_NAMES.get(fold_name(name))
    if known_name is not None:
        raise InvalidRequest(f"Unknown field '{param}{name}'; did you mean '{known_name}'?", param=f"{param}{name}")
