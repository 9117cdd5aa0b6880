"""What vendors require of the messages of a chat, beyond OpenAI's format, and of its stop sequences."""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from gateway.errors import InvalidRequest
from gateway.providers.base import Body, Quirk


def put_between(text: str, matches: Callable[[str], bool]) -> Quirk:
    """Put an assistant's message between a tool's result and the user's message, for models that ``matches`` names."""

    def quirk(body: Body, model: str) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list) or not matches(model.lower()):
            return
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        if not any(pair == ("tool", "user") for pair in pairwise(roles)):
            return
        body["messages"] = [
            one
            for number, message in enumerate(messages)
            for one in (
                ({"role": "assistant", "content": text}, message)
                if roles[number] == "user" and number and roles[number - 1] == "tool"
                else (message,)
            )
        ]

    return quirk


MISTRAL_MODELS = re.compile(r"(.*/)?(open-)?(mistral|mixtral|ministral|magistral|devstral|codestral|pixtral|voxtral).*")
answer_tools = put_between("Ok.", lambda model: MISTRAL_MODELS.fullmatch(model) is not None)
"""mistralai/mistral-common, ``protocol/instruct/validator.py``: a user's message may not follow a tool's. It holds for
Mistral's models at other vendors (NousResearch/hermes-agent, issue 20154: NVIDIA)."""


def think_before_calls(body: Body, _model: str) -> None:
    """Give every assistant's message with tool calls a reasoning text, a blank if it has none, unless thinking is off.

    Kimi (platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model) and DeepSeek (api-docs.deepseek.com/guides/
    thinking_mode, "Tool calls") answer 400 without; a turn of another model has none.
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


def limit_stops(most: int) -> Quirk:
    """Refuse more than ``most`` stop sequences: the answer would not stop at the others."""

    def quirk(body: Body, _model: str) -> None:
        stop = body.get("stop")
        if isinstance(stop, list) and len(stop) > most:
            raise InvalidRequest(f"This provider takes at most {most} stop sequences", param="stop")

    return quirk


four_stops = limit_stops(4)
"""OpenAI's OpenAPI document, ``StopConfiguration``; console.groq.com/docs/api-reference; docs.siliconflow.cn, chat
completions; docs.fireworks.ai/api-reference/post-chatcompletions; docs.x.ai, chat completions; OpenRouter's
OpenAPI document; volcengine.com/docs/82379/1494384; inference-docs.cerebras.ai, chat completions; cloud.baidu.com/doc/
qianfan-api."""
