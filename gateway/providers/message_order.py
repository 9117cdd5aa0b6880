"""Vendors' requirements for chat messages and stop sequences beyond those of OpenAI's format."""

import re
from typing import Any

from gateway.errors import InvalidRequest
from gateway.providers.base import Body, Quirk

MISTRAL_MODELS = re.compile(r"(.*/)?(open-)?(mistral|mixtral|ministral|magistral|devstral|codestral|pixtral|voxtral).*")
_USER_FILLER, _ASSISTANT_FILLER = {"role": "user", "content": "."}, {"role": "assistant", "content": "Ok."}
_SYSTEM_ROLES = ("system", "developer")


def fit_turns(body: Body, model: str) -> None:
    """Insert filler messages and change system messages to user messages, as Mistral's models require at any vendor.

    The rules (mistralai/mistral-common, ``protocol/instruct/validator.py``):
    A user message must not follow a tool message (NousResearch/hermes-agent, issue 20154: also at NVIDIA), so a short
    assistant message is inserted between them.
    A system message must not follow an assistant or tool message, nor be the last one, so it becomes a user message.
    The first message must not be the assistant's, so a short user message is inserted before it.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not MISTRAL_MODELS.fullmatch(model.lower()):
        return
    fitted_messages: list[Any] = []
    last_role, last_index = None, len(messages) - 1
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        becomes_user = role in _SYSTEM_ROLES and (number == last_index or last_role in ("assistant", "tool"))
        role = "user" if becomes_user else role
        if role == "user" and last_role == "tool":
            fitted_messages.append(_ASSISTANT_FILLER)
        elif role == "assistant" and number == 0:
            fitted_messages.append(_USER_FILLER)
        fitted_messages.append(message | {"role": "user"} if becomes_user else message)
        last_role = role
    if any(
        new_message is not original_message
        for new_message, original_message in zip(fitted_messages, messages, strict=False)
    ):
        body["messages"] = fitted_messages


def mark_prefix(body: Body, _model: str) -> None:
    """Mark a final assistant message as the prefix that the answer continues (docs.mistral.ai/guides/prefix).

    Mistral rejects an unmarked one: "Expected last role User or Tool (or Assistant with prefix True)".
    """
    messages = body.get("messages")
    last_message = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(messages, list) and isinstance(last_message, dict) and last_message.get("role") == "assistant":
        body["messages"] = [*messages[:-1], {"prefix": True, **last_message}]


def think_before_calls(body: Body, _model: str) -> None:
    """Add a blank reasoning text to assistant messages with tool calls but no reasoning, unless thinking is disabled.

    Kimi (platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model) and DeepSeek (api-docs.deepseek.com/guides/
    thinking_mode, "Tool calls") reject such messages with status 400. Turns of other models often have no reasoning.
    """
    messages, thinking = body.get("messages"), body.get("thinking")
    if not isinstance(messages, list) or (isinstance(thinking, dict) and thinking.get("type") == "disabled"):
        return
    if any(map(_lacks_thought, messages)):
        body["messages"] = [
            message | {"reasoning_content": " "} if _lacks_thought(message) else message for message in messages
        ]


def _lacks_thought(message: Any) -> bool:
    return isinstance(message, dict) and bool(message.get("tool_calls")) and not message.get("reasoning_content")


def limit_stops(maximum: int) -> Quirk:
    """Return a quirk that raises ``InvalidRequest`` for more than ``maximum`` stop sequences.

    The answer would not stop at the excess ones.
    """

    def quirk(body: Body, _model: str) -> None:
        stop = body.get("stop")
        if isinstance(stop, list) and len(stop) > maximum:
            raise InvalidRequest(f"This provider takes at most {maximum} stop sequences", param="stop")

    return quirk


four_stops = limit_stops(4)
"""OpenAI's OpenAPI document, ``StopConfiguration``; console.groq.com/docs/api-reference; docs.siliconflow.cn, chat
completions; docs.fireworks.ai/api-reference/post-chatcompletions; docs.x.ai, chat completions; OpenRouter's
OpenAPI document; volcengine.com/docs/82379/1494384; inference-docs.cerebras.ai, chat completions; cloud.baidu.com/doc/
qianfan-api."""
