"""What a call may come to, told from its body alone: an upper bound of its prompt, and the output to set aside for.

No token of a byte-level vocabulary is shorter than a byte, so a text has at most as many tokens as bytes. What is not
text has no such bound: a picture or a recording is counted as a large one, and what it costs beyond that is an overrun.
"""

from typing import Any

import orjson

from gateway.dialects.openai_fields import Body

MAX_RESERVED_OUTPUT = 4_096
"""Tokens of one answer that money is set aside for, whatever more the caller allows."""
PART_TOKENS = 2_000
"""A picture, a recording or a file in a message."""
MESSAGE_TOKENS = 8
"""What a provider's template puts around one message, and around a prompt as a whole."""
_NO_PROMPT = frozenset({"messages", "stream_options", "metadata", "logit_bias", "stop", "modalities", "audio"})
"""Lists and objects of a body that do not become a part of the prompt, or are counted by themselves."""
_TEXT_PARTS = frozenset({"text", "refusal"})
_CONTAINERS = (list, dict)


def bound_prompt(body: Body) -> int:
    """Tokens that the prompt of a checked chat body hardly exceeds."""
    tokens = MESSAGE_TOKENS
    for message in body["messages"]:
        content = message.get("content")
        plain = isinstance(content, str) and content.isascii()
        tokens += MESSAGE_TOKENS + (len(content) if plain else _bound_content(content))
        for name, value in message.items():
            if name not in {"content", "role"} and value:
                tokens += bound_json(value)
    for name, value in body.items():
        if value and isinstance(value, _CONTAINERS) and name not in _NO_PROMPT:
            tokens += bound_json(value)
    return tokens


def bound_output(body: Body) -> int:
    """Tokens to set aside for one answer to a checked chat body."""
    asked = max(body.get("max_tokens") or 0, body.get("max_completion_tokens") or 0)
    return min(asked or MAX_RESERVED_OUTPUT, MAX_RESERVED_OUTPUT)


def bound_text(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def bound_json(value: Any) -> int:
    """Bytes of a value written as JSON."""
    return bound_text(value) if isinstance(value, str) else len(orjson.dumps(value))


def _bound_content(content: Any) -> int:
    if isinstance(content, str):
        return bound_text(content)
    tokens = 0
    for part in content or ():
        texts = [text for name in _TEXT_PARTS if isinstance(text := part.get(name), str)]
        tokens += sum(map(bound_text, texts))
        if not texts or part["type"] not in _TEXT_PARTS:
            tokens += PART_TOKENS
    return tokens
