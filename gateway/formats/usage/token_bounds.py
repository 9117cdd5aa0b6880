"""Upper bounds computed from a request's body: the tokens of the prompt, and the output to reserve.

No token of a byte-level vocabulary is shorter than a byte, so a text has at most as many tokens as bytes. Media have no
such bound: an image or a recording counts as a large one, and any tokens beyond that exceed the reservation.
"""

from typing import Any

from gateway.domain import exact_json
from gateway.formats.wire.fields import Body

MAX_RESERVED_OUTPUT = 4_096
"""The most output tokens to reserve for one answer, even if the client allows more."""
PART_TOKENS = 2_000
"""Tokens counted for an image, a recording or a file in a message."""
MESSAGE_TOKENS = 8
"""Tokens that a provider's template adds to each message and to the prompt as a whole."""


def bound_output(body: Body) -> int:
    """Return the tokens to reserve for one answer to a checked chat body."""
    max_tokens = max(body.get("max_tokens") or 0, body.get("max_completion_tokens") or 0)
    return max_tokens if 0 < max_tokens < MAX_RESERVED_OUTPUT else MAX_RESERVED_OUTPUT


def bound_text(text: str) -> int:
    """Return the length of a text in UTF-8 bytes, an upper bound of its tokens."""
    return len(text) if text.isascii() else len(text.encode())


def bound_json(value: Any) -> int:
    """Return the length of a value as JSON in bytes, an upper bound of its tokens."""
    return bound_text(value) if isinstance(value, str) else len(exact_json.dumps(value))
