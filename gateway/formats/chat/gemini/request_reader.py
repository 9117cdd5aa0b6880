"""Parse a checked body in Gemini's format into the common chat model.

Features that only Gemini has (cached contents, files stored there, answers other than text) are rejected by name. In
earlier turns, such parts become text instead (``chat/adaptations.py``). Tools executed by Google are left out if they
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
from gateway.formats.chat.adaptations import LEFT_OUT_PREFIX, Adaptations, check_choice
from gateway.formats.chat.gemini.openapi_schema import build_json_schema
from gateway.formats.chat.gemini.signatures import is_foreign, parse_foreign
from gateway.formats.wire.fields import Body, read_text

_CALLING_MODES: dict[str, chat.ToolChoice | None] = {
    "MODE_UNSPECIFIED": None, "AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none",
}  # fmt: skip
_THINKING_LEVELS: dict[str, chat.Effort | None] = {
    "THINKING_LEVEL_UNSPECIFIED": None, "MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high",
}  # fmt: skip
_GOOGLE_CONFIG = ("speechConfig", "imageConfig", "audioTranscriptionConfig", "responseFormat", "translationConfig")
_GOOGLE_FIELDS = ("cachedContent", "continuationToken")
_STANDARD_TIERS = frozenset({"", "unspecified", "standard"})
_MAX_TOP_LOGPROBS = 20
_JSON_TYPE = "application/json"
_PLAIN_TYPES = frozenset({None, "", "text/plain"})
_PART_KINDS = frozenset({"text", "inlineData", "fileData", "functionCall", "functionResponse"})
_USER_PART_KINDS = _PART_KINDS - {"functionCall"}
_RESULT_PART_KINDS = _USER_PART_KINDS - {"functionResponse"}
_MODEL_PART_KINDS = _PART_KINDS - {"functionResponse"}
_DESCRIBING_FIELDS = frozenset(
    {"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata", "mediaProcessing"}
)
_RESULT_FIELDS = frozenset({"output", "result"})
"""Names of a function's result: Google documents ``output`` and uses ``result`` in its SDK."""


def parse_chat_request(body: Body) -> chat.ChatRequest:
    """Parse a checked body. Raises ``InvalidRequest`` naming a field that is invalid or that other formats lack."""
    config: Body = body.get(CONFIG) or {}
    _reject_google_only_fields(body, config)
    adaptations = Adaptations()
    choice, tools = _parse_choice(body, tuple(_parse_tools(body.get("tools") or [], adaptations)))
    choice = check_choice(choice, tools, adaptations)
    messages = _parse_messages(body, adaptations)
    thinking_tokens, effort = _parse_thinking(config.get("thinkingConfig") or {})
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
        thinking_tokens=thinking_tokens,
        effort=effort,
        top_logprobs=_parse_top_logprobs(config),
        adapted=tuple(adaptations.names),
    )


def _reject_google_only_fields(body: Body, config: Body) -> None:
    for name in _GOOGLE_FIELDS:
        if body.get(name):
            raise _make_google_only_error(name, f"'{name}'")
    if (read_text(body, "serviceTier") or "").lower() not in _STANDARD_TIERS:
        raise _make_google_only_error("serviceTier", "A 'serviceTier' of another price")
    for name in _GOOGLE_CONFIG:
        if config.get(name):
            raise _make_google_only_error(f"{CONFIG}.{name}", f"'{CONFIG}.{name}'")
    for index, modality in enumerate(config.get("responseModalities") or ()):
        if modality.upper() != "TEXT":
            param = f"{CONFIG}.responseModalities[{index}]"
            raise _make_google_only_error(param, f"'{param}' other than TEXT")


def _parse_top_logprobs(config: Body) -> int | None:
    is_requested, top_logprobs = config.get("responseLogprobs"), config.get("logprobs")
    if is_requested is not None and not isinstance(is_requested, bool):
        raise InvalidRequest(f"'{CONFIG}.responseLogprobs' must be true or false", param=f"{CONFIG}.responseLogprobs")
    if top_logprobs is not None and not (type(top_logprobs) is int and 0 <= top_logprobs <= _MAX_TOP_LOGPROBS):
        raise InvalidRequest(f"'{CONFIG}.logprobs' must be from 0 to {_MAX_TOP_LOGPROBS}", param=f"{CONFIG}.logprobs")
    if is_requested:
        return top_logprobs or 0
    if top_logprobs:
        raise InvalidRequest(f"'{CONFIG}.logprobs' requires '{CONFIG}.responseLogprobs'", param=f"{CONFIG}.logprobs")
    return None


def _make_google_only_error(param: str, subject: str) -> InvalidRequest:
    return InvalidRequest(f"{subject} only works with a channel that speaks Gemini's own format", param=param)


# Messages.


def _parse_messages(body: Body, adaptations: Adaptations) -> tuple[chat.Message, ...]:
    messages: list[chat.Message] = []
    contents = body["contents"]
    last_answer_index = max(
        (index for index, content in enumerate(contents) if content.get("role") == "model"), default=-1
    )
    if body.get("systemInstruction") is not None:
        messages.append(chat.Message("system", _parse_system(body["systemInstruction"]["parts"])))
    calls = _CallHistory()
    for index, content in enumerate(contents):
        param = f"contents[{index}].parts"
        adaptations.is_past = index <= last_answer_index
        if content.get("role") != "model":
            messages.append(chat.Message("user", tuple(_parse_user(content["parts"], param, calls, adaptations))))
            continue
        parts = _parse_model(content["parts"], param, calls, adaptations)
        if messages and messages[-1].role == "assistant":  # the client sends a streamed answer back in pieces
            messages[-1] = chat.Message("assistant", _join_parts([*messages[-1].parts, *parts]))
        else:
            messages.append(chat.Message("assistant", _join_parts(parts)))
    return tuple(messages)


def _parse_system(parts: list[Body]) -> tuple[chat.Part, ...]:
    text_parts: list[chat.Part] = []
    for index, part in enumerate(parts):
        if not isinstance(part.get("text"), str):
            param = f"systemInstruction.parts[{index}].text"
            raise InvalidRequest(f"'{param}' must be a string: instructions are text", param=param)
        text_parts.append(chat.TextPart(part["text"]))
    return tuple(text_parts)


@attrs.define
class _CallHistory:
    """The function calls of a history.

    Attributes:
        open_calls: id and name of each call that has no result yet.
        count: number of all calls so far.
    """

    open_calls: list[tuple[str, str]] = attrs.Factory(list)
    count: int = 0

    def add(self, call: Body) -> str:
        """Record a call and return its id. Ids are optional in Gemini's format, so a missing one is generated."""
        call_id = call.get("id")
        new_id = call_id if isinstance(call_id, str) and call_id else f"call_{self.count}"
        self.count += 1
        self.open_calls.append((new_id, call["name"]))
        return new_id

    def close_call(self, response: Body) -> str:
        """Close the call that ``response`` answers, and return the call's id.

        It is the call with the id of ``response``; if the response has no id, the first open call of its function.
        If no call matches, the response's own id is returned, or a new one. ``valid_chat.py`` converts such a response
        into text.
        """
        given_id = response.get("id")
        for index, (call_id, name) in enumerate(self.open_calls):
            if call_id == given_id or (not given_id and name == response["name"]):
                del self.open_calls[index]
                return call_id
        if isinstance(given_id, str) and given_id:
            return given_id
        self.count += 1
        return f"call_{self.count - 1}"


def _parse_user(parts: list[Body], param: str, calls: _CallHistory, adaptations: Adaptations) -> list[chat.Part]:
    parsed_parts: list[chat.Part] = []
    for index, part in enumerate(parts):
        part_param = f"{param}[{index}]"
        if adaptations.is_past and (foreign_kind := _find_foreign_kind(part, _USER_PART_KINDS)) is not None:
            parsed_parts += _write_foreign_part(part, foreign_kind, adaptations)
            continue
        kind = _find_kind(part, part_param)
        if kind == "functionCall":
            raise InvalidRequest(f"'{part_param}': a function call belongs to the role 'model'", param=part_param)
        if kind == "functionResponse":
            parsed_parts.append(_parse_result(part[kind], f"{part_param}.{kind}", calls, adaptations))
        elif part.get("thought") is True:
            adaptations.add("thought")
        else:
            parsed_parts.append(_parse_content(part, kind, part_param, adaptations))
    return parsed_parts


def _parse_model(parts: list[Body], param: str, calls: _CallHistory, adaptations: Adaptations) -> list[chat.Part]:
    parsed_parts: list[chat.Part] = []
    for index, part in enumerate(parts):
        part_param = f"{param}[{index}]"
        signature = part.get("thoughtSignature")
        is_other_vendor = isinstance(signature, str) and is_foreign(signature)
        if isinstance(signature, str) and is_other_vendor:
            foreign_signature, redacted_data = parse_foreign(signature)
            parsed_parts.append(chat.ReasoningPart("", foreign_signature, redacted_data))
        google_signature = signature if isinstance(signature, str) and signature and not is_other_vendor else None
        if part.get("thought") is True and not part.get("functionCall"):
            text = part.get("text") or ""
            if is_other_vendor:
                parsed_parts[-1] = attrs.evolve(cast("chat.ReasoningPart", parsed_parts[-1]), text=text)
            elif text or google_signature:
                parsed_parts.append(
                    chat.ReasoningPart(text, google_signature and chat.GEMINI_PREFIX + google_signature)
                )
            continue
        if (
            foreign_kind := _find_foreign_kind(part, _MODEL_PART_KINDS)
        ) is not None:  # such as code that Google executed
            parsed_parts += _write_foreign_part(part, foreign_kind, adaptations)
            continue
        kind = _find_kind(part, part_param)
        if kind == "functionCall":
            call = part[kind]
            arguments = exact_json.dumps(call.get("args") or {}).decode()
            parsed_parts.append(chat.ToolCallPart(calls.add(call), call["name"], arguments, google_signature))
        else:
            parsed_parts.append(_parse_content(part, kind, part_param, adaptations))
    return parsed_parts


def _join_parts(parts: list[chat.Part]) -> tuple[chat.Part, ...]:
    """Join consecutive texts, and consecutive reasoning up to a signature, because streams deliver both in pieces."""
    joint_parts: list[chat.Part] = []
    for part in parts:
        last_part = joint_parts[-1] if joint_parts else None
        if isinstance(part, chat.TextPart) and isinstance(last_part, chat.TextPart):
            joint_parts[-1] = chat.TextPart(last_part.text + part.text)
        elif (
            isinstance(part, chat.ReasoningPart)
            and isinstance(last_part, chat.ReasoningPart)
            and part.redacted_data is None
            and last_part.redacted_data is None
            and last_part.signature is None
        ):
            joint_parts[-1] = chat.ReasoningPart(last_part.text + part.text, part.signature)
        elif part != chat.TextPart(""):
            joint_parts.append(part)
    return tuple(joint_parts) or (chat.TextPart(""),)


def _find_foreign_kind(part: Body, kinds: frozenset[str] = _PART_KINDS) -> str | None:
    return next((name for name, value in part.items() if value and name not in kinds | _DESCRIBING_FIELDS), None)


def _write_foreign_part(part: Body, kind: str, adaptations: Adaptations) -> list[chat.TextPart]:
    content = part[kind]
    return adaptations.write(kind, content if isinstance(content, dict) else {kind: content})


def _find_kind(part: Body, param: str) -> str:
    foreign_kind = _find_foreign_kind(part)
    if foreign_kind is not None:
        raise _make_google_only_error(f"{param}.{foreign_kind}", f"'{param}.{foreign_kind}'")
    return next((name for name in part if name in _PART_KINDS and part[name] is not None), "text")


def _parse_content(part: Body, kind: str, param: str, adaptations: Adaptations) -> chat.TextPart | chat.MediaPart:
    if kind == "text":
        return chat.TextPart(part.get("text") or "")
    content = part[kind]
    if kind == "inlineData":
        return _parse_inline(content)
    address, media_type = content["fileUri"], content.get("mimeType")
    known_type = media_type if isinstance(media_type, str) and media_type else guess_type(address.partition("?")[0])[0]
    is_video = known_type is None or known_type.startswith(
        "video/"
    )  # Google accepts the URL of a YouTube video without a type
    is_stored = not address.startswith(("http://", "https://")) or "/v1beta/files/" in address
    if (is_video or is_stored) and adaptations.is_past:
        return adaptations.replace_file(kind)
    if is_stored:
        raise _make_google_only_error(
            f"{param}.{kind}.fileUri", f"'{param}.{kind}.fileUri' of a file that is stored at Google"
        )
    if known_type is None or is_video:
        subject = f"'{param}.{kind}' of a video" if known_type else f"'{param}.{kind}' without a 'mimeType'"
        raise _make_google_only_error(f"{param}.{kind}", subject)
    return chat.MediaPart(_find_media(known_type), media_type=known_type, url=address)


def _parse_inline(blob: Body) -> chat.MediaPart:
    name = blob.get("displayName")
    return chat.MediaPart(
        _find_media(blob["mimeType"]),
        media_type=blob["mimeType"],
        data=blob["data"],
        name=name if isinstance(name, str) and name else None,
    )


def _find_media(media_type: str) -> Any:
    kind = media_type.partition("/")[0]
    return kind if kind in {"image", "audio"} else "file"


def _parse_result(response: Body, param: str, calls: _CallHistory, adaptations: Adaptations) -> chat.ToolResultPart:
    value: Body = response.get("response") or {}
    failed = value.keys() == {"error"}
    output = next(iter(value.values())) if len(value) == 1 and (failed or value.keys() <= _RESULT_FIELDS) else value
    text = output if isinstance(output, str) else exact_json.dumps(output).decode()
    parts: list[chat.TextPart | chat.MediaPart] = [chat.TextPart(text)]
    for index, part in enumerate(response.get("parts") or ()):
        part_param = f"{param}.parts[{index}]"
        foreign_kind = _find_foreign_kind(part, _RESULT_PART_KINDS)
        if adaptations.is_past and foreign_kind is not None:
            parts += _write_foreign_part(part, foreign_kind, adaptations)
        elif foreign_kind is not None:
            raise _make_google_only_error(f"{part_param}.{foreign_kind}", f"'{part_param}.{foreign_kind}'")
        else:
            parts.append(_parse_content(part, _find_kind(part, part_param), part_param, adaptations))
    return chat.ToolResultPart(calls.close_call(response), tuple(parts), failed)


# Tools and settings.


def _parse_tools(tools: list[Body], adaptations: Adaptations) -> list[chat.Tool]:
    chat_tools = []
    for tool in tools:
        for name, value in tool.items():
            if name != "functionDeclarations" and value is not None:
                adaptations.add(f"{LEFT_OUT_PREFIX}{name}")
        chat_tools += [_parse_tool(declaration) for declaration in tool.get("functionDeclarations") or ()]
    return chat_tools


def _parse_tool(declaration: Body) -> chat.Tool:
    schema = declaration.get("parametersJsonSchema")
    if schema is None and declaration.get("parameters") is not None:
        schema = build_json_schema(declaration["parameters"])
    description = declaration.get("description")
    return chat.Tool(declaration["name"], description if isinstance(description, str) and description else None, schema)


def _parse_choice(body: Body, tools: tuple[chat.Tool, ...]) -> tuple[chat.ToolChoice | None, tuple[chat.Tool, ...]]:
    param = "toolConfig.functionCallingConfig"
    calling_config: Body = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    mode = calling_config.get("mode") or "MODE_UNSPECIFIED"
    if not isinstance(mode, str) or mode.upper() not in _CALLING_MODES:
        raise InvalidRequest(f"'{param}.mode' must be AUTO, ANY, NONE or VALIDATED", param=f"{param}.mode")
    choice = _CALLING_MODES[mode.upper()]
    allowed_names = calling_config.get("allowedFunctionNames")
    if not allowed_names or choice in {None, "none"}:
        return choice, tools
    declared_names = {tool.name for tool in tools}
    if not isinstance(allowed_names, list) or not all(
        isinstance(name, str) and name in declared_names for name in allowed_names
    ):
        names_param = f"{param}.allowedFunctionNames"
        raise InvalidRequest(f"'{names_param}' must be names of declared functions", param=names_param)
    if len(allowed_names) == 1 and choice == "required":
        return chat.ForcedTool(allowed_names[0]), tools
    return choice, tuple(tool for tool in tools if tool.name in allowed_names)


def _parse_thinking(thinking: Body) -> tuple[int | None, chat.Effort | None]:
    budget = thinking.get("thinkingBudget")
    level = thinking.get("thinkingLevel")
    if level and level.upper() not in _THINKING_LEVELS:
        param = f"{CONFIG}.thinkingConfig.thinkingLevel"
        raise InvalidRequest(f"'{param}' must be MINIMAL, LOW, MEDIUM or HIGH", param=param)
    tokens = None if budget is None or budget < 0 else budget  # -1: the model decides
    return tokens, _THINKING_LEVELS[level.upper()] if level else None


def _parse_format(config: Body) -> chat.ResponseFormat | None:
    media_type = config.get("responseMimeType")
    schema = config.get("responseJsonSchema")
    if schema is None and config.get("responseSchema") is not None:
        schema = build_json_schema(config["responseSchema"])
    if media_type not in _PLAIN_TYPES and media_type != _JSON_TYPE:
        param = f"{CONFIG}.responseMimeType"
        raise _make_google_only_error(param, f"'{param}' other than {_JSON_TYPE} or text/plain")
    if schema is not None:
        return chat.ResponseFormat("schema", schema)
    return chat.ResponseFormat("json") if media_type == _JSON_TYPE else None
