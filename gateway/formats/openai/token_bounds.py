"""Upper bounds from a request's body alone: the tokens of its prompt, and the output to reserve.

No token of a byte-level vocabulary is shorter than a byte, so a text has at most as many tokens as bytes. Anything else
has no such bound: an image or a recording counts as a large one, and what it costs beyond that is an overrun.
"""

from typing import Any

from gateway.domain import exact_json
from gateway.formats.openai.fields import Body

MAX_RESERVED_OUTPUT = 4_096
"""The most tokens of one answer that are reserved, whatever the client allows."""
PART_TOKENS = 2_000
"""An image, a recording or a file in a message."""
MESSAGE_TOKENS = 8
"""Added by a provider's template to each message, and to a prompt as a whole."""


def bound_output(body: Body) -> int:
    """Return the tokens to reserve for one answer to a checked chat body."""
    requested = max(body.get("max_tokens") or 0, body.get("max_completion_tokens") or 0)
    return requested if 0 < requested < MAX_RESERVED_OUTPUT else MAX_RESERVED_OUTPUT


def bound_text(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def bound_json(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return bound_text(value) if isinstance(value, str) else len(exact_json.dumps(value))
