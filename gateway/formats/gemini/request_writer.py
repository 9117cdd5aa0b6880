"""A conversation as Gemini's ``generateContent`` and ``countTokens`` take it.

Shapes: ai.google.dev/api/generate-content, ai.google.dev/api/caching (``Content``, ``Part``, ``Tool``) and
ai.google.dev/api/tokens; google/ai/generativelanguage/v1beta/{content,generative_service}.proto; the types of Google's
SDK. Files by address: ai.google.dev/gemini-api/docs/file-input-methods.

Lost here: whom a call is for, cache marks, a tool's strictness, a picture's detail, the wish for one tool call at a
time. Earlier thoughts are not sent either: Gemini wants its signatures, not its words, and other providers' are
nothing to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from gateway.domain.usage import parse_count
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat import (
    GEMINI_MARK,
    ChatRequest,
    ForcedTool,
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    Tool,
    ToolCallPart,
    ToolResultPart,
)
from gateway.formats.gemini.generation_config import build_config, wants_signatures
from gateway.formats.gemini.json_schema import build_schema
from gateway.formats.openai.chat import parse_answer_object
from gateway.formats.openai.errors import Secrets
from gateway.formats.strict_json import parse_json_object

NO_SIGNATURE = "skip_thought_signature_validator"
"""What Google's page on thought signatures gives for a call that Gemini did not make, or whose signature is lost."""
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp", "heic": "image/heic",
        "heif": "image/heif", "gif": "image/gif", "pdf": "application/pdf", "txt": "text/plain", "mp3": "audio/mp3",
        "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "aac": "audio/aac", "aiff": "audio/aiff",
    },
)  # fmt: skip
_IN_RESULTS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""What a function's response may hold beside its JSON, from Gemini 3 on."""

Json = dict[str, Any]


def build_body(conversation: ChatRequest, model: str) -> Json:
    """The body of ``:generateContent`` and ``:streamGenerateContent``. Raises ``InvalidRequest``."""
    body = _build_prompt(conversation, model)
    if config := build_config(conversation, model):
        body["generationConfig"] = config
    return body


def build_count_body(conversation: ChatRequest, model: str) -> Json:
    """The body of ``:countTokens``. Raises ``InvalidRequest``.

    ``contents`` alone would leave out the instructions and the tools; the request in a request has them.
    """
    name = f"models/{model.removeprefix('models/')}"
    return {"generateContentRequest": {"model": name, **_build_prompt(conversation, model)}}


def parse_count_answer(raw: bytes, secrets: Secrets = ()) -> int:
    """The answer of ``:countTokens`` -> tokens. Raises ``ProviderBadResponse``."""
    tokens = parse_count(parse_answer_object(raw, secrets).get("totalTokens"))
    if tokens is None:
        raise ProviderBadResponse("The provider's answer has no token count")
    return tokens


def _build_prompt(conversation: ChatRequest, model: str) -> Json:
    turns = _end_with_user(conversation.turns)
    instructions = _build_instructions(turns)
    contents = _build_contents(turns, model)
    if not contents and not instructions:
        raise InvalidRequest("There is nothing in the messages to send to Gemini", param="messages")
    body: Json = {"contents": contents}
    if not contents:  # it asks for at least one turn, and instructions alone are one
        body["contents"] = [{"role": "user", "parts": instructions}]
    elif instructions:
        body["systemInstruction"] = {"parts": instructions}
    if conversation.tools:
        body["tools"] = [{"functionDeclarations": [_build_tool(tool) for tool in conversation.tools]}]
    if choice := _build_choice(conversation):
        body["toolConfig"] = {"functionCallingConfig": choice}
    return body


def _end_with_user(turns: Sequence[Message]) -> Sequence[Message]:
    """The turns; where the system alone speaks after the model, its last words are the user's.

    A request that ends with the model's turn is refused ("Requests ending with a model turn are not supported").
    """
    spoken = [turn.role for turn in turns if turn.role != "system"]
    if spoken and spoken[-1] == "assistant" and turns[-1].role == "system":
        return [*turns[:-1], Message("user", turns[-1].parts)]
    return turns


def _build_instructions(turns: Iterable[Message]) -> list[Json]:
    written = []
    for part in (part for turn in turns if turn.role == "system" for part in turn.parts):
        if not isinstance(part, TextPart):
            raise InvalidRequest("Gemini takes only text as instructions", param="messages")
        if part.text:
            written.append({"text": part.text})
    return written


def _build_contents(turns: Iterable[Message], model: str) -> list[Json]:
    """The turns but the system's, those of one side in a row as one, but for tools' answers: see ``_set_apart``."""
    signs = wants_signatures(model)
    names: dict[str, str] = {}
    contents: list[Json] = []
    for turn in turns:
        if turn.role == "system":
            continue
        role = "model" if turn.role == "assistant" else "user"
        parts = _build_parts(turn.parts, names, modern=signs)
        if parts and contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        elif parts:
            contents.append({"role": role, "parts": parts})
    if signs:
        for content in contents:
            _sign_first_call(content["parts"])
    return [apart for content in contents for apart in _set_apart(content)]


def _set_apart(content: Json) -> Iterable[Json]:
    """Tools' answers in a content of their own, before what else the user says.

    Beside anything else in one content they cost the whole request (Prism-Shadow/agenthub, pull request 189, tried on
    both of Google's endpoints; envoyproxy/ai-gateway, pull request 2686).
    """
    answers = [part for part in content["parts"] if "functionResponse" in part]
    others = [part for part in content["parts"] if "functionResponse" not in part]
    return [content | {"parts": parts} for parts in (answers, others) if parts]


def _sign_first_call(parts: list[Json]) -> None:
    """Of the calls in one turn only the first has to be signed; Gemini signs no other itself."""
    call = next((part for part in parts if "functionCall" in part), None)
    if call is not None:
        call.setdefault("thoughtSignature", NO_SIGNATURE)


def _build_parts(parts: Iterable[Part], names: dict[str, str], *, modern: bool) -> list[Json]:
    """``names``: the tool of every call so far, by the call's id; those made here are added."""
    written: list[Json] = []
    thought: str | None = None  # the signature of the thought that led to the next call
    for part in parts:
        match part:
            case TextPart():
                written += [{"text": part.text}] if part.text else []
            case MediaPart():
                written.append(_build_blob(part))
            case ReasoningPart():
                thought = _find_signature(part) or thought
            case ToolCallPart():
                names[part.id] = part.name
                written.append(_build_call(part, part.signature or thought))
                thought = None
            case ToolResultPart():
                written += _build_result(part, names, modern=modern)
    return written


def _find_signature(thought: ReasoningPart) -> str | None:
    """Gemini's own signature of a thought; another provider's would be refused."""
    signature = thought.signature or ""
    return signature.removeprefix(GEMINI_MARK) if signature.startswith(GEMINI_MARK) else None


def _build_call(call: ToolCallPart, signature: str | None) -> Json:
    part: Json = {"functionCall": {"id": call.id, "name": call.name, "args": _parse_arguments(call)}}
    if signature:
        part["thoughtSignature"] = signature
    return part


def _parse_arguments(call: ToolCallPart) -> Json:
    if not call.arguments.strip():
        return {}
    try:
        return parse_json_object(call.arguments.encode())
    except (InvalidRequest, UnicodeEncodeError):
        message = f"The arguments of the call {call.id!r} of {call.name!r} are not a JSON object"
        raise InvalidRequest(message, param="messages") from None


def _build_result(result: ToolResultPart, names: Mapping[str, str], *, modern: bool) -> list[Json]:
    """A tool's answer, and behind it what cannot be inside it. "output" and "error" are names the API knows."""
    name = names.get(result.id)
    if name is None:
        raise InvalidRequest(f"No tool call before it has the id {result.id!r}", param="messages")
    text = "\n".join([part.text for part in result.parts if isinstance(part, TextPart)])
    response: Json = {"id": result.id, "name": name, "response": {"error" if result.failed else "output": text}}
    inside: list[Json] = []
    behind: list[Json] = []
    for blob in (_build_blob(part) for part in result.parts if isinstance(part, MediaPart)):
        fits = modern and blob.get("inlineData", {}).get("mimeType") in _IN_RESULTS
        (inside if fits else behind).append(blob)
    if inside:
        response["parts"] = inside
    return [{"functionResponse": response}, *behind]


def _build_blob(blob: MediaPart) -> Json:
    if blob.data is not None:
        if not blob.media_type:
            raise InvalidRequest(f"Gemini must be told the media type of this {blob.kind}", param="messages")
        return {"inlineData": {"mimeType": blob.media_type, "data": blob.data}}
    if blob.url is None:
        raise InvalidRequest(f"Gemini takes this {blob.kind} only as data or by its address", param="messages")
    scheme, path = _split_url(blob.url)
    if scheme not in {"http", "https"}:
        raise InvalidRequest(f"Gemini fetches this {blob.kind} only from an http or https address", param="messages")
    media_type = blob.media_type or _TYPES.get(path.rpartition(".")[2].lower())
    return {"fileData": {"fileUri": blob.url} | ({"mimeType": media_type} if media_type else {})}


def _split_url(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.path


def _build_tool(tool: Tool) -> Json:
    """A function's declaration; one without parameters is said without a schema, an empty object being refused."""
    written: Json = {"name": tool.name}
    if tool.description:
        written["description"] = tool.description
    schema = build_schema(tool.schema, param="tools") if tool.schema else {}
    if schema.keys() & {"properties", "$ref", "anyOf", "oneOf"} and schema.get("properties") != {}:
        written["parametersJsonSchema"] = schema
    return written


def _build_choice(conversation: ChatRequest) -> Json | None:
    choice = conversation.tool_choice
    if choice is None or (choice in {"auto", "none"} and not conversation.tools):
        return None
    if isinstance(choice, ForcedTool):
        if choice.name not in {tool.name for tool in conversation.tools}:
            raise InvalidRequest(f"There is no tool {choice.name!r} to choose", param="tool_choice")
        return {"mode": "ANY", "allowedFunctionNames": [choice.name]}
    if not conversation.tools:
        raise InvalidRequest("A tool call can be required only where there are tools", param="tool_choice")
    return {"mode": {"auto": "AUTO", "none": "NONE", "required": "ANY"}[choice]}
