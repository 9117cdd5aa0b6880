"""A body in Anthropic's language on its way to a provider of the same: it passes as it lies, but for marks of others.

A conversation may have been answered by several providers in turn, and its caller sends back all they said. Claude
refuses thoughts that another has signed, or nobody (anthropics/anthropic-sdk-python, issue 1598: a block that differs
from what was returned, or that a different model made), and ids of tool calls with other letters than its own have.
"""

from collections.abc import Iterable
from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.formats.anthropic.model_features import parse_generation
from gateway.formats.anthropic.request_writer import build_call_id, misses_thought
from gateway.formats.chat import GEMINI_MARK

Body = dict[str, Any]
_ID_FIELDS = (("tool_use", "id"), ("tool_result", "tool_use_id"))


def build_passed_body(call: InferenceRequest, model: str) -> Body:
    """The call's body under the provider's own name of the model; what is in it is the call's, and not changed.

    Where a thought had to go that a turn in progress would have to begin with, this turn does without thinking.
    """
    body = call.body | {"model": model}
    claude = parse_generation(model).claude
    messages = body["messages"]
    passed = [_build_message(message, claude=claude) for message in messages]
    if all(after is before for after, before in zip(passed, messages, strict=True)):
        return body
    body["messages"] = passed = [message for message in passed if message["content"]]
    if (body.get("thinking") or {}).get("type") == "enabled" and misses_thought(passed):
        del body["thinking"]
    return body


def _build_message(message: Body, *, claude: bool) -> Body:
    content = message["content"]
    if not isinstance(content, list):
        return message
    blocks = [_build_block(block) for block in _list_own(content, claude=claude)]
    same = len(blocks) == len(content) and all(after is before for after, before in zip(blocks, content, strict=True))
    return message if same else message | {"content": blocks}


def _list_own(content: list[Body], *, claude: bool) -> Iterable[Body]:
    """The blocks without others' thoughts. Servers of this language that are not Anthropic's may sign none."""
    return (block for block in content if block["type"] != "thinking" or _is_own(block.get("signature"), claude=claude))


def _is_own(signature: object, *, claude: bool) -> bool:
    if isinstance(signature, str) and signature:
        return not signature.startswith(GEMINI_MARK)
    return not claude


def _build_block(block: Body) -> Body:
    for kind, field in _ID_FIELDS:
        if block["type"] == kind:
            said = block.get(field)
            name = build_call_id(said) if isinstance(said, str) else said
            return block if name == said else block | {field: name}
    return block
