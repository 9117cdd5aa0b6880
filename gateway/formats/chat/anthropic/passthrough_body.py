"""Build the body for a Messages request to a provider of the same format: unchanged, except for unsupported parts.

Several providers may have answered one chat, and the client sends back all their answers. Claude rejects reasoning that
is unsigned or signed by another provider (anthropics/anthropic-sdk-python, issue 1598: a block that was changed, or
that a different model made), and tool call ids with other characters than its own. Servers other than Anthropic's do
not get Claude Code's billing line or blocks that only Anthropic supports.

Claude Code sends system messages between the others. Servers of this format and older Claude models reject these
(ollama/ollama issue 16372, QwenLM/Qwen issue 2244) and get user texts instead.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.chat.anthropic.billing_line import drop_billing_line
from gateway.formats.chat.anthropic.model_features import parse_claude_features
from gateway.formats.chat.anthropic.request_tools import TOOL_REFERENCE, describe_tool
from gateway.formats.chat.anthropic.request_writer import build_call_id, misses_thought
from gateway.formats.chat.call_ids import find_unused_id
from gateway.formats.chat.model import GEMINI_PREFIX
from gateway.formats.wire.json_values import as_text, list_objects

Body = dict[str, Any]
_SYSTEM_ROLE = "system"
_get_role = itemgetter("role")
_ID_FIELDS = (("tool_use", "id"), ("tool_result", "tool_use_id"))


def build_passed_body(inference: InferenceRequest, model: str) -> Body:
    """Build the body with the provider's model name, without changing ``inference``.

    With a reasoning budget, an assistant turn with tool calls must begin with its reasoning. Without that reasoning,
    ``thinking`` is dropped.
    """
    body = inference.body | {"model": model}
    features = parse_claude_features(model)
    is_claude, messages = features.is_claude, body["messages"]
    if not features.takes_system_messages and _SYSTEM_ROLE in map(_get_role, messages):
        body["messages"] = messages = _write_system_as_user(messages)
    if inference.body.get("tools"):
        messages = make_ids_unique(messages)
    new_messages = [_build_message(message, is_claude=is_claude) for message in messages]
    if any(
        new_message is not old_message for new_message, old_message in zip(new_messages, body["messages"], strict=True)
    ):
        body["messages"] = new_messages = [message for message in new_messages if message["content"]]
    if not is_claude:
        drop_billing_line(body)
    if (body.get("thinking") or {}).get("type") == "enabled" and misses_thought(new_messages):
        del body["thinking"]
    return body


def make_ids_unique(messages: list[Body]) -> list[Body]:
    """Return the messages with every repeated tool call id replaced, in the call and in its result."""
    ids = [block.get("id") for message in messages for block in list_objects(message["content"]) if _is_call(block)]
    used_ids: set[str] = set()
    if len({call_id for call_id in ids if isinstance(call_id, str)}) == len(ids):
        return messages
    open_calls: dict[str, list[str]] = {}
    new_messages: list[Body] = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            for block in filter(_is_call, content):
                open_calls.pop(as_text(block.get("id")), None)
            content = [_make_id_unique(block, used_ids, open_calls) for block in content]
        new_messages.append(message | {"content": content})
    return new_messages


def _is_call(block: Body) -> bool:
    return bool(block["type"] == "tool_use")


def _make_id_unique(block: Body, used_ids: set[str], open_calls: dict[str, list[str]]) -> Body:
    """Return a call with an unused id, or a result with the new id of its call.

    ``open_calls`` maps the old id of a call to the new ids of calls that have no result yet. It is updated, and so is
    ``used_ids``.
    """
    for kind, field in _ID_FIELDS:
        call_id = as_text(block.get(field))
        if block["type"] != kind or not call_id:
            continue
        if kind == "tool_use":
            unused_id = find_unused_id(call_id, used_ids)
            used_ids.add(unused_id)
            open_calls.setdefault(call_id, []).append(unused_id)
        else:
            unused_id = open_calls[call_id].pop(0) if open_calls.get(call_id) else call_id
        return block if unused_id == call_id else block | {field: unused_id}
    return block


def _build_message(message: Body, *, is_claude: bool) -> Body:
    content = message["content"]
    if not isinstance(content, list):
        return message
    blocks = [
        _build_block(block, is_claude=is_claude) for block in _drop_foreign_reasoning(content, is_claude=is_claude)
    ]
    is_unchanged = len(blocks) == len(content) and all(
        new_block is old_block for new_block, old_block in zip(blocks, content, strict=True)
    )
    return message if is_unchanged else message | {"content": blocks}


def _drop_foreign_reasoning(content: list[Body], *, is_claude: bool) -> Iterable[Body]:
    """Return the blocks without reasoning that Gemini signed, and for Claude also without unsigned reasoning.

    Servers other than Anthropic's do not always sign their reasoning, so for them unsigned reasoning stays.
    """
    return (
        block
        for block in content
        if block["type"] != "thinking" or _is_accepted_signature(block.get("signature"), is_claude=is_claude)
    )


def _is_accepted_signature(signature: object, *, is_claude: bool) -> bool:
    if isinstance(signature, str) and signature:
        return not signature.startswith(GEMINI_PREFIX)
    return not is_claude


def _write_system_as_user(messages: list[Body]) -> list[Body]:
    new_messages: list[Body] = []
    system_blocks: list[Body] = []
    for message in messages:
        role = message["role"]
        if role == _SYSTEM_ROLE and new_messages and new_messages[-1]["role"] == "user":
            new_messages[-1] = new_messages[-1] | {"content": _list_blocks(new_messages[-1]) + _list_blocks(message)}
        elif role == _SYSTEM_ROLE:
            system_blocks += _list_blocks(message)
        else:
            if system_blocks and role != "user":
                new_messages.append({"role": "user", "content": system_blocks})
                system_blocks = []
            new_messages.append(
                message | {"content": _list_blocks(message) + system_blocks} if system_blocks else message
            )
            system_blocks = []
    return [*new_messages, {"role": "user", "content": system_blocks}] if system_blocks else new_messages


def _list_blocks(message: Body) -> list[Body]:
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return list(content)


def _build_block(block: Body, *, is_claude: bool) -> Body:
    for kind, field in _ID_FIELDS:
        if block["type"] == kind:
            old_id = block.get(field)
            call_id = build_call_id(old_id) if isinstance(old_id, str) else old_id
            renamed_block = block if call_id == old_id else block | {field: call_id}
            return renamed_block if is_claude else _write_references(renamed_block)
    return block


def _write_references(block: Body) -> Body:
    content = block.get("content")
    if not isinstance(content, list) or not any(map(_is_reference, content)):
        return block
    return block | {"content": [_write_reference(part) if _is_reference(part) else part for part in content]}


def _is_reference(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == TOOL_REFERENCE


def _write_reference(part: Body) -> Body:
    return {"type": "text", "text": describe_tool(str(part.get("tool_name")))}
