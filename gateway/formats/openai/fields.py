"""Typed fields of a request body. Each parser names the field that it rejects; JSON null counts as absent."""

from typing import Any

from gateway.errors import InvalidRequest

Body = dict[str, Any]

MAX_MODEL_LENGTH = 256
MAX_CHOICES = 128


GOVERNED = frozenset(
    {
        "best_of", "documents", "input", "instructions", "max_completion_tokens", "max_output_tokens", "max_tokens",
        "messages", "model", "n", "prompt", "query", "stream", "stream_options", "system", "tools", "top_n",
    },
)  # fmt: skip
"""Fields by which the gateway routes, bounds and charges a request. Servers written in Go accept them in any case, and
the last one counts: an unchecked spelling would take effect.
"""


def parse_model(body: Body) -> str:
    """Return the required ``model``: a string of 1 to 256 characters without control characters.

    Raises ``InvalidRequest`` for it, and for a field of ``GOVERNED`` in another spelling.
    """
    for name in body:
        if name not in GOVERNED and name.casefold() in GOVERNED:
            raise InvalidRequest(f"{name!r} is spelled {name.casefold()!r}", param=name)
    model = body.get("model")
    if isinstance(model, str) and 0 < len(model) <= MAX_MODEL_LENGTH and model.isprintable():
        return model
    if model is None or model == "":
        raise InvalidRequest("Missing required field 'model'", param="model")
    if not isinstance(model, str):
        raise InvalidRequest(f"'model' must be a string, not {kind_of(model)}", param="model")
    raise InvalidRequest(f"'model' must be at most {MAX_MODEL_LENGTH} printable characters", param="model")


def parse_prompt(body: Body, max_chars: int) -> str:
    """Return the required ``prompt``. Raises ``InvalidRequest`` if it is missing, blank or too long."""
    prompt = read_text(body, "prompt")
    if prompt is None:
        raise InvalidRequest("Missing required field 'prompt'", param="prompt")
    if not prompt.strip():
        raise InvalidRequest("'prompt' must not be empty", param="prompt")
    if len(prompt) > max_chars:
        raise InvalidRequest(f"'prompt' must be at most {max_chars} characters", param="prompt")
    return prompt


def read_text(body: Body, name: str) -> str | None:
    """Return an optional string."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"'{name}' must be a string, not {kind_of(value)}", param=name)
    return value


def parse_flag(body: Body, name: str, param: str | None = None) -> bool:
    """Return an optional boolean, False if it is absent."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{param or name}' must be a boolean, not {kind_of(value)}", param=param or name)
    return value


def parse_integer(body: Body, name: str, low: int, high: int) -> int | None:
    """Return an optional integer from ``low`` to ``high``; booleans and floats are not integers."""
    value = body.get(name)
    if type(value) is int and low <= value <= high:
        return value
    if value is None:
        return None
    if type(value) is not int:
        raise InvalidRequest(f"'{name}' must be an integer, not {kind_of(value)}", param=name)
    raise InvalidRequest(f"'{name}' must be between {low} and {high}", param=name)


def parse_number(body: Body, name: str, low: float, high: float) -> float | None:
    """Return an optional number from ``low`` to ``high``."""
    value = body.get(name)
    if (type(value) is float or type(value) is int) and low <= value <= high:
        return float(value)
    if value is None:
        return None
    if type(value) not in {int, float}:
        raise InvalidRequest(f"'{name}' must be a number, not {kind_of(value)}", param=name)
    raise InvalidRequest(f"'{name}' must be between {low:g} and {high:g}", param=name)


def parse_list(body: Body, name: str) -> list[Any] | None:
    """Return an optional array."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise InvalidRequest(f"'{name}' must be an array, not {kind_of(value)}", param=name)
    return value


def parse_object(body: Body, name: str) -> Body | None:
    """Return an optional object."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"'{name}' must be an object, not {kind_of(value)}", param=name)
    return value


def kind_of(value: object) -> str:
    """Return the name of a JSON value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an array" if isinstance(value, list) else "an object"
