"""Parse a checked body in Gemini's format into the common chat model.

Features that only Gemini has (cached contents, files stored there, answers other than text) are rejected by name in the
current turn, and become text in earlier turns (``chat/adaptations.py``). Tools executed by Google are left out if they
are only offered. Options that only tune the answer (``safetySettings``, ``mediaResolution``, ``labels``) are
dropped.
"""

from mimetypes import guess_type
from typing import Any, cast

import attrs

from gateway.domain import exact_json
from gateway.domain.operation import GENERATION_CONFIG as CONFIG
from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.adaptations import LEFT_OUT, Adaptations, check_choice
from gateway.formats.chat.gemini.openapi_schema import build_json_schema
from gateway.formats.chat.gemini.signatures import is_foreign, parse_foreign
from gateway.formats.wire.fields import Body, read_text

_MODES: dict[str, chat.ToolChoice | None] = {
    "MODE_UNSPECIFIED": None, "AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none",
}  # fmt: skip
_LEVELS: dict[str, chat.Effort | None] = {
    "THINKING_LEVEL_UNSPECIFIED": None, "MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high",
}  # fmt: skip
_OWN_CONFIG = ("speechConfig", "imageConfig", "audioTranscriptionConfig", "responseFormat", "translationConfig")
_OWN = ("cachedContent", "continuationToken")
_STANDARD_TIERS = frozenset({"", "unspecified", "standard"})
_MAX_TOP = 20
_JSON = "application/json"
_PLAIN = frozenset({None, "", "text/plain"})
_PARTS = frozenset({"text", "inlineData", "fileData", "functionCall", "functionResponse"})
_OF_USER = _PARTS - {"functionCall"}
_OF_RESULT = _OF_USER - {"functionResponse"}
_OF_MODEL = _PARTS - {"functionResponse"}
_DESCRIBING = frozenset(
    {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "mediaProcessing"}
)
_RESULTS = frozenset({"output", "result"})
"""Names of a function's result: Google documents ``output`` and uses ``result`` in its SDK."""


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a checked body. Raises ``InvalidRequest`` naming a field that no other format can express."""
    config: Body = body.get(CONFIG) or {}
    _check_only_google(body, config)
    adaptations = Adaptations()
    choice, tools = _parse_choice(body, tuple(_parse_tools(body.get("tools") or [], adaptations)))
    choice = check_choice(choice, tools, adaptations)
    messages = _parse_messages(body, adaptations)
    tokens, effort = _parse_thinking(config.get("thinkingConfig") or {})
    return chat.ChatRequest(
        messages=messages,
        max_tokens=config.get("maxOutputTokens"),
        temperature=config.get("temperature"),
        top_p=config.get("topP"),
        top_k=config.get("topK"),
        stop=tuple(config.get("stopSequences") or ()),
        n=config.get("candidateCount") or 1,
        seed=config.get("seed"),
        presence_penalty=config.get("presencePenalty"),
        frequency_penalty=config.get("frequencyPenalty"),
        tools=tools,
        tool_choice=choice,
        format=_parse_format(config),
        thinking_tokens=tokens,
        effort=effort,
        top_logprobs=_parse_top_logprobs(config),
        adapted=tuple(adaptations.names),
    )


def _check_only_google(body: Body, config: Body) -> None:
    for name in _OWN:
        if body.get(name):
            raise _only_there(name, f"'{name}'")
    if (read_text(body, "serviceTier") or "").lower() not in _STANDARD_TIERS:
        raise _only_there("serviceTier", "A 'serviceTier' of another price")
    for name in _OWN_CONFIG:
        if config.get(name):
            raise _only_there(f"{CONFIG}.{name}", f"'{CONFIG}.{name}'")
    for index, modality in enumerate(config.get("responseModalities") or ()):
        if modality.upper() != "TEXT":
            where = f"{CONFIG}.responseModalities[{index}]"
            raise _only_there(where, f"'{where}' other than TEXT")


def _parse_top_logprobs(config: Body) -> int | None:
    wanted, top = config.get("responseLogprobs"), config.get("logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        raise InvalidRequest(f"'{CONFIG}.responseLogprobs' must be true or false", param=f"{CONFIG}.responseLogprobs")
    if top is not None and not (type(top) is int and 0 <= top <= _MAX_TOP):
        raise InvalidRequest(f"'{CONFIG}.logprobs' must be from 0 to {_MAX_TOP}", param=f"{CONFIG}.logprobs")
    if wanted:
        return top or 0
    if top:
        raise InvalidRequest(f"'{CONFIG}.logprobs' requires '{CONFIG}.responseLogprobs'", param=f"{CONFIG}.logprobs")
    return None


def _only_there(param: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"{what} only works with a channel that speaks Gemini's own format", param=param)


# Messages.


def _parse_messages(body: Body, adaptations: Adaptations) -> tuple[chat.Message, ...]:
    messages: list[chat.Message] = []
    contents = body["contents"]
    past = max((index for index, content in enumerate(contents) if content.get("role") == "model"), default=-1)
    if body.get("systemInstruction") is not None:
        messages.append(chat.Message("system", _parse_system(body["systemInstruction"]["parts"])))
    calls = _Calls()
    for index, content in enumerate(contents):
        where = f"contents[{index}].parts"
        adaptations.is_past = index <= past
        if content.get("role") != "model":
            messages.append(chat.Message("user", tuple(_parse_user(content["parts"], where, calls, adaptations))))
            continue
        parts = _parse_model(content["parts"], where, calls, adaptations)
        if messages and messages[-1].role == "assistant":  # the client sends a streamed answer back in pieces
            messages[-1] = chat.Message("assistant", _join([*messages[-1].parts, *parts]))
        else:
            messages.append(chat.Message("assistant", _join(parts)))
    return tuple(messages)


def _parse_system(parts: list[Body]) -> tuple[chat.Part, ...]:
    written: list[chat.Part] = []
    for index, part in enumerate(parts):
        if not isinstance(part.get("text"), str):
            where = f"systemInstruction.parts[{index}].text"
            raise InvalidRequest(f"'{where}' must be a string: instructions are text", param=where)
        written.append(chat.TextPart(part["text"]))
    return tuple(written)


@attrs.define
class _Calls:
    """The id and name of each function call that has no result yet, and the number of all calls so far."""

    waiting: list[tuple[str, str]] = attrs.Factory(list)
    count: int = 0

    def add(self, call: Body) -> str:
        """Record a call and return its id. Ids are optional in Gemini's format, so a missing one is generated."""
        made = call.get("id")
        name = made if isinstance(made, str) and made else f"call_{self.count}"
        self.count += 1
        self.waiting.append((name, call["name"]))
        return name

    def find(self, response: Body) -> str:
        """Return the id of the call that ``response`` answers: the call with its id, else the first with its name.

        A response without a matching call gets a new id; ``valid_chat.py`` converts such a response into text.
        """
        given = response.get("id")
        for index, (call_id, name) in enumerate(self.waiting):
            if call_id == given or (not given and name == response["name"]):
                del self.waiting[index]
                return call_id
        if isinstance(given, str) and given:
            return given
        self.count += 1
        return f"call_{self.count - 1}"


def _parse_user(parts: list[Body], where: str, calls: _Calls, adaptations: Adaptations) -> list[chat.Part]:
    written: list[chat.Part] = []
    for index, part in enumerate(parts):
        here = f"{where}[{index}]"
        if adaptations.is_past and (other := _find_other(part, _OF_USER)) is not None:
            written += _write_other(part, other, adaptations)
            continue
        kind = _find_kind(part, here)
        if kind == "functionCall":
            raise InvalidRequest(f"'{here}': a function call belongs to the role 'model'", param=here)
        if kind == "functionResponse":
            written.append(_parse_result(part[kind], f"{here}.{kind}", calls, adaptations))
        elif part.get("thought") is True:
            adaptations.add("thought")
        else:
            written.append(_parse_content(part, kind, here, adaptations))
    return written


def _parse_model(parts: list[Body], where: str, calls: _Calls, adaptations: Adaptations) -> list[chat.Part]:
    written: list[chat.Part] = []
    for index, part in enumerate(parts):
        here = f"{where}[{index}]"
        signature = part.get("thoughtSignature")
        foreign = isinstance(signature, str) and is_foreign(signature)
        if isinstance(signature, str) and foreign:
            signed, redacted = parse_foreign(signature)
            written.append(chat.ReasoningPart("", signed, redacted))
        own = signature if isinstance(signature, str) and signature and not foreign else None
        if part.get("thought") is True and not part.get("functionCall"):
            thought = part.get("text") or ""
            if foreign:
                written[-1] = attrs.evolve(cast("chat.ReasoningPart", written[-1]), text=thought)
            elif thought or own:
                written.append(chat.ReasoningPart(thought, own and chat.GEMINI_PREFIX + own))
            continue
        if (other := _find_other(part, _OF_MODEL)) is not None:  # such as code that Google executed
            written += _write_other(part, other, adaptations)
            continue
        kind = _find_kind(part, here)
        if kind == "functionCall":
            call = part[kind]
            arguments = exact_json.dumps(call.get("args") or {}).decode()
            written.append(chat.ToolCallPart(calls.add(call), call["name"], arguments, own))
        else:
            written.append(_parse_content(part, kind, here, adaptations))
    return written


def _join(parts: list[chat.Part]) -> tuple[chat.Part, ...]:
    """Join consecutive texts, and consecutive reasoning up to a signature, because streams deliver both in pieces."""
    joined: list[chat.Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, chat.TextPart) and isinstance(last, chat.TextPart):
            joined[-1] = chat.TextPart(last.text + part.text)
        elif (
            isinstance(part, chat.ReasoningPart)
            and isinstance(last, chat.ReasoningPart)
            and part.redacted is None
            and last.redacted is None
            and last.signature is None
        ):
            joined[-1] = chat.ReasoningPart(last.text + part.text, part.signature)
        elif part != chat.TextPart(""):
            joined.append(part)
    return tuple(joined) or (chat.TextPart(""),)


def _find_other(part: Body, kinds: frozenset[str] = _PARTS) -> str | None:
    return next((name for name, value in part.items() if value and name not in kinds | _DESCRIBING), None)


def _write_other(part: Body, kind: str, adaptations: Adaptations) -> list[chat.TextPart]:
    inner = part[kind]
    return adaptations.write(kind, inner if isinstance(inner, dict) else {kind: inner})


def _find_kind(part: Body, where: str) -> str:
    stray = _find_other(part)
    if stray is not None:
        raise _only_there(f"{where}.{stray}", f"'{where}.{stray}'")
    return next((name for name in part if name in _PARTS and part[name] is not None), "text")


def _parse_content(part: Body, kind: str, where: str, adaptations: Adaptations) -> chat.TextPart | chat.MediaPart:
    if kind == "text":
        return chat.TextPart(part.get("text") or "")
    inner = part[kind]
    if kind == "inlineData":
        return _parse_inline(inner)
    address, media_type = inner["fileUri"], inner.get("mimeType")
    known = media_type if isinstance(media_type, str) and media_type else guess_type(address.partition("?")[0])[0]
    film = known is None or known.startswith("video/")  # Google accepts the URL of a YouTube video without a type
    stored = not address.startswith(("http://", "https://")) or "/v1beta/files/" in address
    if (film or stored) and adaptations.is_past:
        return adaptations.replace_file(kind)
    if stored:
        raise _only_there(f"{where}.{kind}.fileUri", f"'{where}.{kind}.fileUri' of a file that is stored at Google")
    if known is None or film:
        what = f"'{where}.{kind}' of a video" if known else f"'{where}.{kind}' without a 'mimeType'"
        raise _only_there(f"{where}.{kind}", what)
    return chat.MediaPart(_find_media(known), media_type=known, url=address)


def _parse_inline(inner: Body) -> chat.MediaPart:
    name = inner.get("displayName")
    return chat.MediaPart(
        _find_media(inner["mimeType"]),
        media_type=inner["mimeType"],
        data=inner["data"],
        name=name if isinstance(name, str) and name else None,
    )


def _find_media(media_type: str) -> Any:
    kind = media_type.partition("/")[0]
    return kind if kind in {"image", "audio"} else "file"


def _parse_result(response: Body, where: str, calls: _Calls, adaptations: Adaptations) -> chat.ToolResultPart:
    value: Body = response.get("response") or {}
    failed = value.keys() == {"error"}
    inside = next(iter(value.values())) if len(value) == 1 and (failed or value.keys() <= _RESULTS) else value
    text = inside if isinstance(inside, str) else exact_json.dumps(inside).decode()
    parts: list[chat.TextPart | chat.MediaPart] = [chat.TextPart(text)]
    for index, part in enumerate(response.get("parts") or ()):
        here = f"{where}.parts[{index}]"
        other = _find_other(part, _OF_RESULT)
        if adaptations.is_past and other is not None:
            parts += _write_other(part, other, adaptations)
        elif other is not None:
            raise _only_there(f"{here}.{other}", f"'{here}.{other}'")
        else:
            parts.append(_parse_content(part, _find_kind(part, here), here, adaptations))
    return chat.ToolResultPart(calls.find(response), tuple(parts), failed)


# Tools and settings.


def _parse_tools(tools: list[Body], adaptations: Adaptations) -> list[chat.Tool]:
    written = []
    for tool in tools:
        for name, value in tool.items():
            if name != "functionDeclarations" and value is not None:
                adaptations.add(f"{LEFT_OUT}{name}")
        written += [_parse_tool(declaration) for declaration in tool.get("functionDeclarations") or ()]
    return written


def _parse_tool(declaration: Body) -> chat.Tool:
    schema = declaration.get("parametersJsonSchema")
    if schema is None and declaration.get("parameters") is not None:
        schema = build_json_schema(declaration["parameters"])
    description = declaration.get("description")
    return chat.Tool(declaration["name"], description if isinstance(description, str) and description else None, schema)


def _parse_choice(body: Body, tools: tuple[chat.Tool, ...]) -> tuple[chat.ToolChoice | None, tuple[chat.Tool, ...]]:
    where = "toolConfig.functionCallingConfig"
    calling: Body = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    mode = calling.get("mode") or "MODE_UNSPECIFIED"
    if not isinstance(mode, str) or mode.upper() not in _MODES:
        raise InvalidRequest(f"'{where}.mode' must be AUTO, ANY, NONE or VALIDATED", param=f"{where}.mode")
    choice = _MODES[mode.upper()]
    allowed = calling.get("allowedFunctionNames")
    if not allowed or choice in {None, "none"}:
        return choice, tools
    names = {tool.name for tool in tools}
    if not isinstance(allowed, list) or not all(isinstance(name, str) and name in names for name in allowed):
        here = f"{where}.allowedFunctionNames"
        raise InvalidRequest(f"'{here}' must be names of declared functions", param=here)
    if len(allowed) == 1 and choice == "required":
        return chat.ForcedTool(allowed[0]), tools
    return choice, tuple(tool for tool in tools if tool.name in allowed)


def _parse_thinking(thinking: Body) -> tuple[int | None, chat.Effort | None]:
    budget = thinking.get("thinkingBudget")
    level = thinking.get("thinkingLevel")
    if level and level.upper() not in _LEVELS:
        where = f"{CONFIG}.thinkingConfig.thinkingLevel"
        raise InvalidRequest(f"'{where}' must be MINIMAL, LOW, MEDIUM or HIGH", param=where)
    tokens = None if budget is None or budget < 0 else budget  # -1: the model decides
    return tokens, _LEVELS[level.upper()] if level else None


def _parse_format(config: Body) -> chat.ResponseFormat | None:
    media_type = config.get("responseMimeType")
    schema = config.get("responseJsonSchema")
    if schema is None and config.get("responseSchema") is not None:
        schema = build_json_schema(config["responseSchema"])
    if media_type not in _PLAIN and media_type != _JSON:
        where = f"{CONFIG}.responseMimeType"
        raise _only_there(where, f"'{where}' other than {_JSON} or text/plain")
    if schema is not None:
        return chat.ResponseFormat("schema", schema)
    return chat.ResponseFormat("json") if media_type == _JSON else None
