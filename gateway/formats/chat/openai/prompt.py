"""The prompt of a chat body: checks of its messages, an estimate in characters, and an upper bound of its tokens."""

from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.usage.token_bounds import MESSAGE_TOKENS, PART_TOKENS, bound_json, bound_text
from gateway.formats.wire.fields import Body, kind_of, parse_list, refuse_missing

_ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
_PLAIN_FIELDS = 2
"""The number of fields in a plain message: role and content."""
_NO_PROMPT = frozenset({"messages", "stream_options", "metadata", "logit_bias", "stop", "modalities", "audio"})
"""Lists and objects of a body that are not part of the prompt, or are counted separately."""
_SCALARS = frozenset(
    {
        "frequency_penalty", "max_completion_tokens", "max_tokens", "model", "n", "presence_penalty", "stream",
        "temperature", "top_p", "user",
    },
)  # fmt: skip
"""Scalar fields, which need no measuring: other checks reject lists and objects in them."""
_BESIDE_PROMPT = _NO_PROMPT | _SCALARS
_TEXT_PARTS = frozenset({"text", "refusal"})
_CONTAINERS = (list, dict)

Size = tuple[int, int]
"""Characters of text, and an upper bound of their tokens."""


def measure_prompt(body: Body) -> tuple[int, int, bool]:
    """Check the messages. Return the prompt's characters, its token bound, and whether the body is plain.

    A plain body has only texts and settings: it cannot name files, stored objects or priced features. Raises
    ``InvalidRequest`` naming the message.
    """
    messages = body.get("messages")
    if not messages or not isinstance(messages, list):
        parse_list(body, "messages")
        raise refuse_missing(body, "messages", "at least one message")
    text, texts = None, []
    try:  # fast path: most messages have only a role and a text, and a function call for each would dominate
        for message in messages:
            if len(message) != _PLAIN_FIELDS or message["role"] not in _ROLES:
                break
            texts.append(message["content"])
        else:
            text = "".join(texts)
    except (KeyError, TypeError):
        pass  # ``_measure_messages`` raises the error that names the message
    chars, tokens = _measure_messages(messages) if text is None else (len(text), bound_text(text))
    tokens += MESSAGE_TOKENS * (1 + len(messages))
    known = _BESIDE_PROMPT.issuperset(body)
    if not known:
        for name, value in body.items():
            if value and isinstance(value, _CONTAINERS) and name not in _NO_PROMPT:
                tokens += bound_json(value)
    return chars, tokens, known and text is not None and "audio" not in body


def _measure_messages(messages: list[Any]) -> Size:
    chars = tokens = 0
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            where = f"messages[{index}]"
            raise InvalidRequest(f"'{where}' must be an object, not {kind_of(message)}", param=where)
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            where = f"messages[{index}].role"
            raise InvalidRequest(f"'{where}' must be one of {', '.join(sorted(_ROLES))}", param=where)
        more_chars, more_tokens = _measure_content(message.get("content"), f"messages[{index}].content")
        chars += more_chars
        tokens += more_tokens
        for name, value in message.items():
            if value and name not in {"role", "content"}:
                tokens += bound_json(value)
    return chars, tokens


def _measure_content(content: object, where: str) -> Size:
    if isinstance(content, str):
        return len(content), bound_text(content)
    if content is None:
        return 0, 0
    if not isinstance(content, list):
        raise InvalidRequest(f"'{where}' must be a string or an array of parts, not {kind_of(content)}", param=where)
    chars = tokens = 0
    for index, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidRequest(f"'{where}[{index}]' must be an object with a 'type'", param=f"{where}[{index}]")
        text = part.get("text")
        chars += len(text) if isinstance(text, str) else 0
        texts = [text for name in _TEXT_PARTS if isinstance(text := part.get(name), str)]
        tokens += sum(map(bound_text, texts))
        if not texts or part["type"] not in _TEXT_PARTS:
            tokens += PART_TOKENS
    return chars, tokens
