"""Typed fields of a request body, and checks of field names.

Each parser names the field that it rejects. JSON null counts as absent.
"""

from typing import Any

from gateway.domain.inference_request import OUTPUT_LIMITS
from gateway.errors import InvalidRequest
from gateway.wording import find_nearest, fold_name

Body = dict[str, Any]

MAX_MODEL_CHARS = 256
MAX_TEMPERATURE = 100.0
"""Local servers (vLLM, llama.cpp, Ollama) accept more than 2. Vendors with limit 2 reject higher values themselves."""
MAX_CHOICES = 128


GOVERNED_NAMES = frozenset(
    {
        "background", "best_of", "documents", "input", "instructions", "max_completion_tokens", "max_output_tokens",
        "max_tokens", "messages", "model", "n", "prompt", "query", "stream", "stream_options", "system", "tools",
        "top_n",
    },
)  # fmt: skip
"""Fields by which the gateway routes, bounds and charges a request. Servers written in Go accept any letter case and
use the last duplicate, so an unchecked spelling would take effect.
"""
PLAIN_NAMES = frozenset(
    {"additionalProperties", "arguments", "budget_tokens", "cache_control", "call_id", "candidateCount",
     "completion_window", "content", "contents", "data", "description", "detail", "dimensions", "documents",
     "effort", "encoding_format", "encrypted_content", "frequency_penalty", "function", "functionCall",
     "functionDeclarations", "functionResponse", "generationConfig", "id", "include", "include_usage",
     "includeThoughts", "inlineData", "input", "input_audio", "input_schema", "instructions", "logit_bias",
     "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "messages",
     "metadata", "mimeType", "modalities", "model", "n", "name", "output", "parallel_tool_calls", "parameters",
     "parts", "presence_penalty", "prompt_cache_key", "quality", "query", "reasoning", "reasoning_content",
     "reasoning_effort", "refusal", "required", "response_format", "response_mime_type", "role", "safety_identifier",
     "seed", "service_tier", "signature", "size", "status", "stop", "stop_sequences", "stopSequences", "store",
     "stream", "stream_options", "strict", "summary", "system", "systemInstruction", "temperature", "text",
     "thinking", "thinkingBudget", "thinkingConfig", "tool_call_id", "tool_calls", "tool_choice", "tool_use_id",
     "tools", "top_k", "top_logprobs", "top_n", "top_p", "topK", "topP", "truncation", "type", "user", "verbosity"},
)  # fmt: skip
"""Common field names that never refer to stored objects. All other names are looked up."""
DATA_NAMES = frozenset(
    {"annotations", "args", "arguments", "client_metadata", "input_schema", "json_schema", "metadata", "outputs",
     "parameters", "parametersJsonSchema", "response", "responseJsonSchema", "responseSchema", "results", "schema"},
)  # fmt: skip
"""Fields with data of the client, a model or an earlier answer, in which an id is only text."""
_CONTAINER_TYPES = (dict, list)
_FOLDED_NAMES = {fold_name(name): name for name in GOVERNED_NAMES}
_FREE_NAMES = PLAIN_NAMES - OUTPUT_LIMITS
_MIN_SIMILARITY = 0.9
"""The least similarity of a misspelt token limit. ``max_new_tokens`` and ``max_input_tokens`` are less similar."""


def parse_model(body: Body) -> str:
    """Return the required ``model``: a string of 1 to 256 characters without control characters.

    Raises ``InvalidRequest`` for an invalid ``model``, and for a misspelt field of ``GOVERNED_NAMES``. A misspelt token
    limit is rejected, too, because the answer would be unlimited.
    """
    for name in body:
        if name not in GOVERNED_NAMES and name not in _FREE_NAMES:
            _check_spelling(name)
    model = body.get("model")
    if isinstance(model, str) and 0 < len(model) <= MAX_MODEL_CHARS and model.isprintable():
        return model
    if model is None or model == "":
        raise make_missing_error(body, "model")
    if not isinstance(model, str):
        raise InvalidRequest(f"'model' must be a string, not {name_json_type(model)}", param="model")
    raise InvalidRequest(f"'model' must be at most {MAX_MODEL_CHARS} printable characters", param="model")


def find_governed_field(name: str) -> str | None:
    """Return the field of ``GOVERNED_NAMES`` that a tolerant server would read ``name`` as; None if there is none."""
    return _FOLDED_NAMES.get(fold_name(name))


def _check_spelling(name: str) -> None:
    known_name = find_governed_field(name)
    if known_name is not None:
        pass
    elif name[:3].casefold() == "max":
        known_name = find_nearest(name.casefold(), OUTPUT_LIMITS, min_similarity=_MIN_SIMILARITY)
    else:
        return
    if known_name is not None:
        raise InvalidRequest(f"Unknown field {name!r}; did you mean '{known_name}'?", param=name)


def has_unusual_names(body: Body) -> bool:
    """Return whether ``body`` has, at any depth, a field outside ``PLAIN_NAMES``, which may refer to a stored object.

    The fields in ``DATA_NAMES`` are not searched.
    """
    pending: list[Any] = [body]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            for member in value:
                if isinstance(member, _CONTAINER_TYPES):
                    pending.append(member)  # noqa: PERF401 - a comprehension is slower: it is a call of its own
        elif value.keys() <= PLAIN_NAMES:
            for name, member in value.items():
                if isinstance(member, _CONTAINER_TYPES) and name not in DATA_NAMES:
                    pending.append(member)
        else:
            return True
    return False


def make_missing_error(body: Body, name: str, subject: str = "") -> InvalidRequest:
    """Return the error for a missing required field.

    The message names a similar field of ``body``, if there is one, and describes the field as ``subject``.
    """
    similar_name = find_nearest(name, (field for field in body if field not in GOVERNED_NAMES))
    hint = "" if similar_name is None else f". Unknown field {similar_name!r}; did you mean '{name}'?"
    return InvalidRequest(f"Missing required field '{name}'{subject and f': {subject}'}{hint}", param=name)


def parse_prompt(body: Body, max_chars: int) -> str:
    """Return the required ``prompt``. Raises ``InvalidRequest`` if it is missing, blank or too long."""
    prompt = read_text(body, "prompt")
    if prompt is None:
        raise make_missing_error(body, "prompt")
    if not prompt.strip():
        raise InvalidRequest("'prompt' must not be empty", param="prompt")
    if len(prompt) > max_chars:
        raise InvalidRequest(f"'prompt' must be at most {max_chars} characters", param="prompt")
    return prompt


def read_text(body: Body, name: str) -> str | None:
    """Return a string, or None if the field is absent. Raises ``InvalidRequest`` for another type."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"'{name}' must be a string, not {name_json_type(value)}", param=name)
    return value


def parse_flag(body: Body, name: str, param: str | None = None) -> bool:
    """Return a boolean, or False if the field is absent. Raises ``InvalidRequest`` for another type."""
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"'{param or name}' must be a boolean, not {name_json_type(value)}", param=param or name)
    return value


def parse_integer(body: Body, name: str, low: int, high: int) -> int | None:
    """Return an integer from ``low`` to ``high``, or None if the field is absent.

    Raises ``InvalidRequest`` for another value. Booleans and floats are not integers.
    """
    value = body.get(name)
    if type(value) is int and low <= value <= high:
        return value
    if value is None:
        return None
    if type(value) is not int:
        raise InvalidRequest(f"'{name}' must be an integer, not {name_json_type(value)}", param=name)
    raise InvalidRequest(f"'{name}' must be between {low} and {high}", param=name)


def parse_number(body: Body, name: str, low: float, high: float) -> float | None:
    """Return a number from ``low`` to ``high``, or None if the field is absent.

    Raises ``InvalidRequest`` for another value.
    """
    value = body.get(name)
    if (type(value) is float or type(value) is int) and low <= value <= high:
        return float(value)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest(f"'{name}' must be a number, not {name_json_type(value)}", param=name)
    raise InvalidRequest(f"'{name}' must be between {low:g} and {high:g}", param=name)


def parse_list(body: Body, name: str) -> list[Any] | None:
    """Return an array, or None if the field is absent. Raises ``InvalidRequest`` for another type."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise InvalidRequest(f"'{name}' must be an array, not {name_json_type(value)}", param=name)
    return value


def parse_object(body: Body, name: str) -> Body | None:
    """Return an object, or None if the field is absent. Raises ``InvalidRequest`` for another type."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"'{name}' must be an object, not {name_json_type(value)}", param=name)
    return value


def name_json_type(value: object) -> str:
    """Return the name of a JSON value's type with its article, for an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an array" if isinstance(value, list) else "an object"
