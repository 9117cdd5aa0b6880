"""Build the bodies of Gemini's ``generateContent`` and ``countTokens`` from the common chat model; parse token counts.

Files by address: ai.google.dev/gemini-api/docs/file-input-methods. Dropped: the user, cache control, ``strict`` of a
tool, ``detail`` of an image, and the text of earlier reasoning. Gemini requires only the signatures of its own
reasoning, and cannot use other providers' reasoning. If the client disables parallel tool calls, the answer's parser
keeps only the first call.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs

from gateway.domain.usage import parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.gemini.generation_config import (
    build_config,
    requires_signatures,
    takes_prefill,
    takes_schema_with_tools,
)
from gateway.formats.chat.gemini.json_schema import build_schema
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.chat.valid_chat import OPENING_TEXT, ChatRules, parse_arguments
from gateway.formats.errors.openai import Secrets

DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""A substitute for the signature of a call that is not Gemini's, or whose signature is lost. Source: Google's page on
thought signatures.
"""
_MEDIA_TYPES_BY_SUFFIX: Mapping[str, str] = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp", "heic": "image/heic",
    "heif": "image/heif", "gif": "image/gif", "pdf": "application/pdf", "txt": "text/plain", "mp3": "audio/mp3",
    "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "aac": "audio/aac", "aiff": "audio/aiff",
}  # fmt: skip
_RESULT_MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""Media types that a function's response may contain in addition to JSON, from Gemini 3 on."""

Json = dict[str, Any]

_RULES = ChatRules(re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}"), 128)
_OLDER_RULES = attrs.evolve(_RULES, schemas="without_tools")


def find_rules(model: str) -> ChatRules:
    """Return the rules for ``model``. Source of the name rules: ai.google.dev/api/caching, ``FunctionDeclaration``."""
    rules = _RULES if takes_schema_with_tools(model) else _OLDER_RULES
    return rules if takes_prefill(model) else attrs.evolve(rules, takes_prefill=False)


def build_body(request: chat.ChatRequest, model: str) -> Json:
    """Build the body of ``:generateContent`` and ``:streamGenerateContent``. Raises ``InvalidRequest``."""
    body = _build_prompt(request, model)
    if config := build_config(request, model):
        body["generationConfig"] = config
    return body


def build_count_body(request: chat.ChatRequest, model: str) -> Json:
    """Build the body of ``:countTokens``, as a nested request: ``contents`` alone would omit instructions and tools.

    Raises ``InvalidRequest``.
    """
    name = f"models/{model.removeprefix('models/')}"
    return {"generateContentRequest": {"model": name, **_build_prompt(request, model)}}


def parse_count_answer(raw: bytes, secrets: Secrets = ()) -> int:
    """Return the number of tokens in an answer of ``:countTokens``. Raises ``ProviderError``."""
    tokens = parse_count(parse_answer_object(raw, secrets).get("totalTokens"))
    if tokens is None:
        raise ProviderBadResponse("The provider's answer has no token count")
    return tokens


def _build_prompt(request: chat.ChatRequest, model: str) -> Json:
    messages = _end_with_user(request.messages)
    instructions = _build_instructions(messages)
    contents = _build_contents(messages, model)
    if not contents and not instructions:
        raise InvalidRequest("There is nothing in the messages to send to Gemini", param="messages")
    if contents and contents[0]["role"] == "model":  # "multiturn requests alternate", and begin with the user
        contents.insert(0, {"role": "user", "parts": [{"text": OPENING_TEXT}]})
    body: Json = {"contents": contents}
    if not contents:  # at least one content is required, so instructions without messages become one
        body["contents"] = [{"role": "user", "parts": instructions}]
    elif instructions:
        body["systemInstruction"] = {"parts": instructions}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_build_tool(tool) for tool in request.tools]}]
    if choice := _build_choice(request):
        body["toolConfig"] = {"functionCallingConfig": choice}
    return body


def _end_with_user(messages: Sequence[chat.Message]) -> Sequence[chat.Message]:
    """Turn a final system message after the assistant's into a user message.

    Gemini rejects requests that end with the model's message.
    """
    roles = [message.role for message in messages if message.role != "system"]
    if roles and roles[-1] == "assistant" and messages[-1].role == "system":
        return [*messages[:-1], chat.Message("user", messages[-1].parts)]
    return messages


def _build_instructions(messages: Iterable[chat.Message]) -> list[Json]:
    parts = []
    for part in (part for message in messages if message.role == "system" for part in message.parts):
        if not isinstance(part, chat.TextPart):
            raise InvalidRequest("Gemini takes only text as instructions", param="messages")
        if part.text:
            parts.append({"text": part.text})
    return parts


def _build_contents(messages: Iterable[chat.Message], model: str) -> list[Json]:
    """Build the contents, without system messages. Consecutive turns of one role are joined.

    Their tool results form a content of their own, before the other parts. Raises ``InvalidRequest`` for media in a
    form that Gemini does not accept.
    """
    needs_signatures = requires_signatures(model)
    tool_names: dict[str, str] = {}
    contents: list[Json] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "model" if message.role == "assistant" else "user"
        parts = _build_parts(message.parts, tool_names, is_gemini_3=needs_signatures)
        if parts and contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    if needs_signatures:
        for content in contents:
            _sign_first_call(content["parts"])
    return [new_content for content in contents for new_content in _split_tool_results(content)]


def _split_tool_results(content: Json) -> Iterable[Json]:
    """Split tool results into a separate content before the user's other parts.

    A content with both fails the whole request (Prism-Shadow/agenthub, pull request 189, tested on both of Google's
    endpoints; envoyproxy/ai-gateway, pull request 2686).
    """
    result_parts = [part for part in content["parts"] if "functionResponse" in part]
    other_parts = [part for part in content["parts"] if "functionResponse" not in part]
    return [content | {"parts": parts} for parts in (result_parts, other_parts) if parts]


def _sign_first_call(parts: list[Json]) -> None:
    """Give the first call of a message a dummy signature if it has none. Gemini itself signs only the first call."""
    call = next((part for part in parts if "functionCall" in part), None)
    if call is not None:
        call.setdefault("thoughtSignature", DUMMY_SIGNATURE)


def _build_parts(parts: Iterable[chat.Part], tool_names: dict[str, str], *, is_gemini_3: bool) -> list[Json]:
    """Build parts. ``tool_names`` maps the ids of all calls so far to tool names; new calls are added to it.

    Raises ``InvalidRequest`` for media in a form that Gemini does not accept.
    """
    json_parts: list[Json] = []
    signature: str | None = None  # the signature of the reasoning before the next call
    for part in parts:
        match part:
            case chat.TextPart():
                json_parts += [{"text": part.text}] if part.text else []
            case chat.MediaPart():
                json_parts.append(_build_media(part))
            case chat.ReasoningPart():
                signature = _find_signature(part) or signature
            case chat.ToolCallPart():
                tool_names[part.id] = part.name
                json_parts.append(_build_call(part, part.signature or signature))
                signature = None
            case chat.ToolResultPart():
                json_parts += _build_result(part, tool_names, is_gemini_3=is_gemini_3)
    return json_parts


def _find_signature(reasoning: chat.ReasoningPart) -> str | None:
    """Return Gemini's signature of reasoning, without ``GEMINI_PREFIX``; None for others, which Gemini rejects."""
    signature = reasoning.signature or ""
    return signature.removeprefix(chat.GEMINI_PREFIX) if signature.startswith(chat.GEMINI_PREFIX) else None


def _build_call(call: chat.ToolCallPart, signature: str | None) -> Json:
    part: Json = {"functionCall": {"id": call.id, "name": call.name, "args": parse_arguments(call.arguments)}}
    if signature:
        part["thoughtSignature"] = signature
    return part


def _build_result(result: chat.ToolResultPart, tool_names: Mapping[str, str], *, is_gemini_3: bool) -> list[Json]:
    """Build a tool result, followed by parts that it cannot contain. "output" and "error" are the API's field names.

    Raises ``InvalidRequest`` for media in a form that Gemini does not accept.
    """
    text = "\n".join([part.text for part in result.parts if isinstance(part, chat.TextPart)])
    response: Json = {
        "id": result.id,
        "name": tool_names[result.id],
        "response": {"error" if result.failed else "output": text},
    }
    nested_parts: list[Json] = []
    later_parts: list[Json] = []
    for media in (_build_media(part) for part in result.parts if isinstance(part, chat.MediaPart)):
        can_nest = is_gemini_3 and media.get("inlineData", {}).get("mimeType") in _RESULT_MEDIA_TYPES
        (nested_parts if can_nest else later_parts).append(media)
    if nested_parts:
        response["parts"] = nested_parts
    return [{"functionResponse": response}, *later_parts]


def _build_media(media: chat.MediaPart) -> Json:
    if media.data is not None:
        if not media.media_type:
            raise InvalidRequest(f"Gemini must be told the media type of this {media.kind}", param=media.param)
        return {"inlineData": {"mimeType": media.media_type, "data": media.data}}
    if media.url is None:
        raise InvalidRequest(f"Gemini takes this {media.kind} only as data or by its address", param=media.param)
    scheme, path = _split_url(media.url)
    if scheme not in {"http", "https"}:
        raise InvalidRequest(f"Gemini fetches this {media.kind} only from an http or https address", param=media.param)
    media_type = media.media_type or _MEDIA_TYPES_BY_SUFFIX.get(path.rpartition(".")[2].lower())
    return {"fileData": {"fileUri": media.url} | ({"mimeType": media_type} if media_type else {})}


def _split_url(url: str) -> tuple[str, str]:
    try:
        split_url = urlsplit(url)
    except ValueError:
        return "", ""
    return split_url.scheme, split_url.path


def _build_tool(tool: chat.Tool) -> Json:
    """Build a function declaration. A function without parameters gets no schema: Gemini rejects an empty object.

    Raises ``InvalidRequest`` for a schema that is nested too deeply.
    """
    declaration: Json = {"name": tool.name}
    if tool.description:
        declaration["description"] = tool.description
    schema = build_schema(tool.schema, param="tools") if tool.schema else {}
    if schema.keys() & {"properties", "$ref", "anyOf", "oneOf"} and schema.get("properties") != {}:
        declaration["parametersJsonSchema"] = schema
    return declaration


def _build_choice(request: chat.ChatRequest) -> Json | None:
    choice = request.tool_choice
    if choice is None or (choice in {"auto", "none"} and not request.tools):
        return None
    if isinstance(choice, chat.ForcedTool):
        if choice.name not in {tool.name for tool in request.tools}:
            raise InvalidRequest(f"There is no tool {choice.name!r} to choose", param="tool_choice")
        return {"mode": "ANY", "allowedFunctionNames": [choice.name]}
    if not request.tools:
        raise InvalidRequest("A tool call can be required only if there are tools", param="tool_choice")
    return {"mode": {"auto": "AUTO", "none": "NONE", "required": "ANY"}[choice]}
