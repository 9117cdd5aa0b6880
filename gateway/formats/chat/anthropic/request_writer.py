"""Build a request in Anthropic's format (``MessageCreateParams``) from the common chat model.

Fields that Anthropic's own OpenAI compatibility layer ignores ("OpenAI SDK compatibility": ``seed``, penalties,
``logit_bias``) are ignored here too. Other fields that the format cannot express are rejected, unless ``valid_chat.py``
has dropped them before. After a rejection the gateway may try another channel.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import attrs

from gateway.errors import InvalidRequest
from gateway.formats.chat import model as chat
from gateway.formats.chat.anthropic.json_schema import narrow_schema
from gateway.formats.chat.anthropic.media_blocks import build_media_block, takes_media
from gateway.formats.chat.anthropic.model_features import (
    ClaudeFeatures,
    build_sampling,
    build_thinking,
    parse_claude_features,
)
from gateway.formats.chat.valid_chat import OPENING_TEXT, ChatRules, describe_format, parse_arguments

Body = dict[str, Any]
Block = dict[str, Any]

_CALL_ID_PATTERN = re.compile(r"[a-zA-Z0-9_-]+")
_INVALID_ID_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
_RULES = ChatRules(
    re.compile(r"[a-zA-Z0-9_-]{1,128}"), 128, gives_logprobs=False, allows_blank_stops=False, takes_media=takes_media
)
_ID_PREFIX_CHARS = 40
_CHOICE_TYPES = {"auto": "auto", "required": "any", "none": "none"}


def find_rules(model: str) -> ChatRules:
    """Return the rules of this format for ``model``, a provider's model name."""
    features = parse_claude_features(model)
    return attrs.evolve(
        _RULES,
        schemas="native" if features.takes_schema else "tool",
        thinks_when_forced=features.thinks_when_forced or not features.is_claude,
    )


def build_body(request: chat.ChatRequest, model: str, *, stream: bool) -> Body:
    """Build the body for ``POST /v1/messages`` with the provider's model name.

    "Any JSON object" has no field in this format and becomes a sentence in ``system``. Raises ``InvalidRequest`` for an
    unsupported field, named as in the OpenAI API format.
    """
    if request.n > 1:
        raise InvalidRequest("'n' must be 1: this provider gives one answer", param="n")
    features = parse_claude_features(model)
    system, sent_messages = _split_system(request)
    _check_last_message(sent_messages, model, features)
    is_forced = _is_forced(request)
    if is_forced and not features.allows_forced_tool:
        raise InvalidRequest(f"'{model}' cannot be made to use a tool", param="tool_choice")
    may_budget = not is_forced and not misses_thought(sent_messages)
    thinking = build_thinking(request, features, may_budget=may_budget)
    if is_forced and features.thinks_adaptively and not features.thinks_when_forced:
        thinking.pop("thinking", None)
    thinks = thinking.get("thinking", {}).get("type") in {"enabled", "adaptive"}
    body: Body = {"model": model, **thinking, "messages": sent_messages}
    if system:
        body["system"] = system[0]["text"] if len(system) == 1 and "cache_control" not in system[0] else system
    if request.tools:
        body["tools"] = [_build_tool(tool, features) for tool in request.tools]
    body |= _build_tool_choice(request)
    body |= _build_format(request.format, thinking)
    body |= build_sampling(request, features, thinks=thinks)
    if request.stop:
        body["stop_sequences"] = list(request.stop)
    if request.user:
        body["metadata"] = {"user_id": request.user}
    if stream:
        body["stream"] = True
    return body


def _split_system(request: chat.ChatRequest) -> tuple[list[Block], list[Body]]:
    """Build ``system`` and ``messages``. A final system message becomes the user's unless it follows a user message.

    Raises ``InvalidRequest`` if no message is left.
    """
    messages = [message for message in request.messages if _has_content(message)]
    turns = [message for message in messages if message.role != "system"]
    if messages and messages[-1].role == "system" and (not turns or turns[-1].role != "user"):
        messages[-1] = chat.Message("user", messages[-1].parts)
        turns.append(messages[-1])
    if not turns:
        raise InvalidRequest("'messages' has nothing in it to answer", param="messages")
    system = _build_system(message for message in messages if message.role == "system")
    if request.format is not None and request.format.schema is None:
        system.append(_write_text(chat.TextPart(describe_format(request.format))))
    return system, _build_messages(turns)


def _has_content(message: chat.Message) -> bool:
    """Return whether a message has any part except blank texts and reasoning that Claude has not signed."""
    return any(_is_supported(part) for part in message.parts)


def _is_supported(part: chat.Part) -> bool:
    match part:
        case chat.TextPart():
            return bool(part.text.strip())  # the API rejects an empty or blank text
        case chat.ReasoningPart():
            is_claude_signature = part.signature and not part.signature.startswith(chat.GEMINI_PREFIX)
            return bool(is_claude_signature or part.redacted_data)
        case _:
            return True


def _build_system(messages: Iterable[chat.Message]) -> list[Block]:
    blocks = []
    for message in messages:
        for part in filter(_is_supported, message.parts):
            if not isinstance(part, chat.TextPart):
                raise InvalidRequest("A system message can only be text for this provider", param="messages")
            blocks.append(_write_text(part))
    return blocks


def _build_messages(messages: Sequence[chat.Message]) -> list[Body]:
    sent_messages: list[Body] = []
    if messages[0].role == "assistant":
        sent_messages.append({"role": "user", "content": [_write_text(chat.TextPart(OPENING_TEXT))]})
    for message in messages:
        blocks = [_build_part(part, message.role) for part in message.parts if _is_supported(part)]
        if sent_messages and sent_messages[-1]["role"] == message.role:
            sent_messages[-1]["content"] += blocks
        else:
            sent_messages.append({"role": message.role, "content": blocks})
    for chat_message in sent_messages:
        content = chat_message["content"]
        content.sort(key=lambda block: block["type"] != "tool_result")  # the API requires results first
        chat_message["content"] = _write_single_text(content)
    return sent_messages


def _write_single_text(blocks: list[Block]) -> list[Block] | str:
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        text: str = blocks[0]["text"]
        return text
    return blocks


def _build_reasoning(reasoning: chat.ReasoningPart) -> Block:
    if reasoning.redacted_data is not None:
        return {"type": "redacted_thinking", "data": reasoning.redacted_data}
    return {"type": "thinking", "thinking": reasoning.text, "signature": reasoning.signature}


def _build_part(part: chat.Part, role: str) -> Block:
    match part:
        case chat.TextPart():
            return _write_text(part)
        case chat.MediaPart() if role == "assistant":  # Claude rejects media in assistant messages
            return _write_text(chat.TextPart(f"[{part.kind}]"))
        case chat.MediaPart():
            return _add_cache_control(build_media_block(part), part.cache_control)
        case chat.ReasoningPart():
            return _build_reasoning(part)
        case chat.ToolCallPart():
            block = {"type": "tool_use", "id": build_call_id(part.id), "name": part.name}
            return _add_cache_control(block | {"input": parse_arguments(part.arguments)}, part.cache_control)
        case chat.ToolResultPart():
            return _build_result(part)


def _write_text(part: chat.TextPart) -> Block:
    return _add_cache_control({"type": "text", "text": part.text}, part.cache_control)


def _add_cache_control(block: Block, cache_control: chat.Json | None) -> Block:
    return block if cache_control is None else block | {"cache_control": cache_control}


def _build_result(result: chat.ToolResultPart) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": build_call_id(result.id)}
    content = [_build_part(part, "user") for part in result.parts if _is_supported(part)]
    if content:
        block["content"] = _write_single_text(content)
    if result.failed:
        block["is_error"] = True
    return _add_cache_control(block, result.cache_control)


def build_call_id(call_id: str) -> str:
    """Return a tool call id with only characters that the API accepts. Different ids stay different."""
    if _CALL_ID_PATTERN.fullmatch(call_id):
        return call_id
    return f"{_INVALID_ID_CHARS.sub('_', call_id)[:_ID_PREFIX_CHARS]}_{_compute_digest(call_id)}"


def _compute_digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _check_last_message(sent_messages: list[Body], model: str, features: ClaudeFeatures) -> None:
    """Check a final assistant message, and strip its trailing white space.

    Raises ``InvalidRequest`` if the model does not continue such a message, which only older ones do.
    """
    last_message = sent_messages[-1]
    if last_message["role"] != "assistant":
        return
    if not features.takes_prefill:
        raise InvalidRequest(
            f"'{model}' does not continue a message of the assistant: the last one must be the user's", param="messages"
        )
    content = last_message["content"]
    if isinstance(content, str):
        last_message["content"] = content.rstrip()
    elif content[-1]["type"] == "text":
        content[-1]["text"] = content[-1]["text"].rstrip()


def misses_thought(sent_messages: list[Body]) -> bool:
    """Return whether the current turn calls a tool without reasoning; with a token budget the API rejects this."""
    for message in reversed(sent_messages):
        content = message["content"]
        kinds = [block["type"] for block in content] if isinstance(content, list) else ["text"]
        if message["role"] == "assistant":
            return "tool_use" in kinds and kinds[0] not in {"thinking", "redacted_thinking"}
        if message["role"] == "user" and "tool_result" not in kinds:
            return False
    return False


def _build_tool(tool: chat.Tool, features: ClaudeFeatures) -> Body:
    strict = bool(tool.strict) and features.takes_schema
    schema = tool.schema or {"type": "object", "properties": {}}
    declaration: Body = {"name": tool.name, "input_schema": narrow_schema(schema) if strict else schema}
    if tool.description:
        declaration["description"] = tool.description
    if strict:
        declaration["strict"] = True
    return _add_cache_control(declaration, tool.cache_control)


def _is_forced(request: chat.ChatRequest) -> bool:
    choice = request.tool_choice
    return choice == "required" or isinstance(choice, chat.ForcedTool)


def _build_tool_choice(request: chat.ChatRequest) -> Body:
    choice = request.tool_choice
    if not request.tools:  # the API rejects a tool choice without tools
        if _is_forced(request):
            raise InvalidRequest("'tool_choice' asks for a tool, and 'tools' has none", param="tool_choice")
        return {}
    choice_body: Body = {"type": "auto"}
    if isinstance(choice, chat.ForcedTool):
        choice_body = {"type": "tool", "name": choice.name}
    elif choice is not None:
        choice_body = {"type": _CHOICE_TYPES[choice]}
    if request.parallel_tools is False and choice_body["type"] != "none":
        choice_body["disable_parallel_tool_use"] = True
    return {"tool_choice": choice_body} if choice is not None or len(choice_body) > 1 else {}


def _build_format(response_format: chat.ResponseFormat | None, thinking: Body) -> Body:
    if response_format is None or response_format.schema is None:
        return {}
    format_body = {"type": "json_schema", "schema": narrow_schema(response_format.schema)}
    return {"output_config": {**thinking.get("output_config", {}), "format": format_body}}
