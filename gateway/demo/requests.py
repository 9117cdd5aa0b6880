"""Parses chat and embeddings requests for the demo, and has the errors and checks that its other requests share."""

from typing import Any

from gateway.demo.models import CHAT_MODEL, EMBEDDING_MODEL
from gateway.demo.text import list_words, split_pieces
from gateway.frozen import frozen

Json = dict[str, Any]


_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
MAX_CHOICES = 128
MAX_TOKENS = 2**31
_MAX_INPUTS = 2048
MAX_INPUT_TOKENS = 65_536
_MAX_DIMENSIONS = 2048
_DEFAULT_DIMENSIONS = 256


class RequestError(Exception):
    """A request that the demo rejects, with the OpenAI API's error object."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.body = build_error(message, param=param, code=code)


@frozen
class DemoTool:
    """A function that the client offers."""

    name: str
    parameters: Json


@frozen(kw_only=True)
class DemoChatRequest:
    """A valid chat request.

    ``limit`` is the maximum number of output tokens; None if there is none. ``parallel``: whether one answer may call
    several tools.
    """

    messages: tuple[Json, ...]
    tools: tuple[DemoTool, ...]
    must_call: bool
    parallel: bool
    choice_count: int
    limit: int | None
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    response_format: Json


@frozen
class DemoEmbeddingRequest:
    """A valid embeddings request. Each input is given as the words or token numbers that determine its vector."""

    inputs: tuple[tuple[str, ...], ...]
    dimensions: int
    base64: bool
    tokens: int


def build_error(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> Json:
    """Return the OpenAI API's error object with all four keys."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def make_model_error(model: str) -> RequestError:
    """Return the error for a model that the demo does not offer at this path."""
    message = f"The model '{model}' does not exist or you do not have access to it."
    return RequestError(message, param="model", code="model_not_found", status=404)


def parse_chat(body: object) -> DemoChatRequest:
    """Parse a chat request. Raises ``RequestError`` for the first wrong field."""
    fields = parse_fields(body, CHAT_MODEL)
    tools, must_call = _parse_tools(fields)
    limit = get_integer(fields, "max_completion_tokens", MAX_TOKENS)
    return DemoChatRequest(
        messages=_parse_messages(fields.get("messages")),
        tools=tools,
        must_call=must_call,
        parallel=get_typed(fields, "parallel_tool_calls", bool, default=True),
        choice_count=get_integer(fields, "n", MAX_CHOICES) or 1,
        limit=limit if limit is not None else get_integer(fields, "max_tokens", MAX_TOKENS),
        stops=parse_stops(fields.get("stop")),
        stream=get_typed(fields, "stream", bool, default=False),
        include_usage=get_typed(
            get_typed(fields, "stream_options", dict, default={}), "include_usage", bool, default=False
        ),
        response_format=get_typed(fields, "response_format", dict, default={}),
    )


def parse_embedding(body: object) -> DemoEmbeddingRequest:
    """Parse an embeddings request. Raises ``RequestError`` for the first wrong field."""
    fields = parse_fields(body, EMBEDDING_MODEL)
    encoding = get_choice(fields, "encoding_format", ("float", "base64"))
    inputs = parse_inputs(fields.get("input"))
    tokens = sum(len(split_pieces(item)) if isinstance(item, str) else len(item) for item in inputs)
    if tokens > MAX_INPUT_TOKENS:
        message = f"'input' has {tokens} tokens; the demo reads at most {MAX_INPUT_TOKENS} a request."
        raise RequestError(message, param="input", code="context_length_exceeded")
    return DemoEmbeddingRequest(
        inputs=tuple(list_words(item) if isinstance(item, str) else tuple(map(str, item)) for item in inputs),
        dimensions=get_integer(fields, "dimensions", _MAX_DIMENSIONS) or _DEFAULT_DIMENSIONS,
        base64=encoding == "base64",
        tokens=tokens,
    )


def parse_fields(body: object, model: str) -> Json:
    """Return the fields of a request for ``model``. Raises ``RequestError`` for another model or no object."""
    if not isinstance(body, dict):
        raise RequestError("The request body must be a JSON object.")
    name = get_typed(body, "model", str, default="")
    if not name:
        raise RequestError("You must provide a model parameter.", param="model")
    if name != model:
        raise make_model_error(name)
    return body


def get_typed(fields: Json, name: str, kind: type, *, default: Any) -> Any:
    """Return a field, or the default if it is missing or null. Raises ``RequestError`` if its type is not ``kind``."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise RequestError(f"'{name}' has the wrong type.", param=name)
    return value


def get_integer(fields: Json, name: str, high: int, *, low: int = 1) -> int | None:
    """Return an integer field; None if the field is missing or null.

    Raises ``RequestError`` for another type, and for an integer below ``low`` or above ``high``.
    """
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"'{name}' must be a whole number from {low} to {high}.", param=name)
    return value


def get_choice(fields: Json, name: str, allowed_words: tuple[str, ...]) -> str:
    """Return one of the allowed words, or the first of them if the field is missing or null.

    Raises ``RequestError`` for another word.
    """
    value = get_typed(fields, name, str, default=allowed_words[0])
    if value not in allowed_words:
        raise RequestError(f"'{name}' must be one of {', '.join(allowed_words)}.", param=name)
    return str(value)


def _parse_messages(value: object) -> tuple[Json, ...]:
    if not isinstance(value, list) or not value:
        raise RequestError("'messages' must be a list with at least one message.", param="messages")
    check_messages(value)
    return tuple(value)


def check_messages(messages: list[Any]) -> None:
    """Raise ``RequestError`` for the first message without a known role, or without valid content."""
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise RequestError(f"'{param}' must be an object with a known 'role'.", param=param)
        content = message.get("content")
        may_be_empty = content is None and message["role"] in {"assistant", "function"}
        if not may_be_empty and not isinstance(content, str) and not _are_parts(content):
            message_text = f"'{param}.content' must be a string or a list of content parts."
            raise RequestError(message_text, param=f"{param}.content")


def _are_parts(content: object) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and (part["type"] != "text" or isinstance(part.get("text"), str))
        for part in content
    )


def parse_stops(value: object) -> tuple[str, ...]:
    """Return the stop sequences of a request, without empty ones. Raises ``RequestError`` for another type."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise RequestError("'stop' must be a string or a list of strings.", param="stop")
    return tuple(stop for stop in stops if stop)


def _parse_tools(fields: Json) -> tuple[tuple[DemoTool, ...], bool]:
    """Return the tools that may be called, and whether a call is required. Raises ``RequestError``."""
    tools = _parse_functions(get_typed(fields, "tools", list, default=[]))
    choice = fields.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        allowed_tools = get_typed(choice, "allowed_tools", dict, default={"mode": "required", "tools": [choice]})
        names = {tool.name for tool in _parse_functions(get_typed(allowed_tools, "tools", list, default=[]))}
        tools = tuple(tool for tool in tools if tool.name in names)
        must_call = allowed_tools.get("mode") == "required"
    elif choice in ("none", "auto", "required"):
        tools = () if choice == "none" else tools
        must_call = choice == "required"
    else:
        raise RequestError("'tool_choice' must be 'none', 'auto', 'required' or name a tool.", param="tool_choice")
    if must_call and not tools:
        raise RequestError("'tool_choice' asks for a function that 'tools' does not offer.", param="tool_choice")
    return tools, must_call


def _parse_functions(tools: list[Any]) -> tuple[DemoTool, ...]:
    """Parse the function tools. Other tools are never called. Raises ``RequestError``."""
    functions = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        function = tool.get("function") if kind == "function" else None
        if not isinstance(kind, str) or (kind == "function" and not isinstance(function, dict)):
            raise RequestError(
                "Each tool must be an object with a 'type', and its 'function' if it is one.", param="tools"
            )
        if isinstance(function, dict):
            name = get_typed(function, "name", str, default="")
            if not name:
                raise RequestError("A function tool must have a name.", param="tools")
            functions.append(DemoTool(name, get_typed(function, "parameters", dict, default={})))
    return tuple(functions)


def parse_inputs(value: object, name: str = "input") -> list[str | list[int]]:
    """Parse the four forms of input: text, texts, tokens, lists of tokens.

    Raises ``RequestError`` for any other value; the error names the field ``name``.
    """
    items = [value] if isinstance(value, str) or _are_tokens(value) else value
    if not isinstance(items, list) or not 1 <= len(items) <= _MAX_INPUTS:
        raise RequestError(f"'{name}' must be text, tokens, or a list of 1 to {_MAX_INPUTS} of either.", param=name)
    if not all((isinstance(item, str) and item) or _are_tokens(item) for item in items):
        raise RequestError(f"Each '{name}' must be a text or a list of token numbers, and not empty.", param=name)
    return items


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
