"""What a call may come to, told from its body alone: an upper bound of its prompt, and the output to set aside for.

No token of a byte-level vocabulary is shorter than a byte, so a text has at most as many tokens as bytes. What is not
text has no such bound: a picture or a recording is counted as a large one, and what it costs beyond that is an overrun.
"""

from typing import Any

import orjson

from gateway.formats.openai.fields import Body

MAX_RESERVED_OUTPUT = 4_096
"""Tokens of one answer that money is set aside for, whatever more the caller allows."""
PART_TOKENS = 2_000
"""A picture, a recording or a file in a message."""
MESSAGE_TOKENS = 8
"""What a provider's template puts around one message, and around a prompt as a whole."""


def bound_output(body: Body) -> int:
    """Tokens to set aside for one answer to a checked chat body."""
    asked = max(body.get("max_tokens") or 0, body.get("max_completion_tokens") or 0)
    return asked if 0 < asked < MAX_RESERVED_OUTPUT else MAX_RESERVED_OUTPUT


def bound_text(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def bound_json(value: Any) -> int:
    """Bytes of a value written as JSON."""
    return bound_text(value) if isinstance(value, str) else len(orjson.dumps(value))
