"""What one request used: tokens as reported, read strictly, or an estimate that says so; pictures and seconds."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

UsageSource = Literal["upstream", "estimate", "none"]

MAX_TOKENS = 100_000_000
"""No request has more; a number above it is a provider's mistake and is not believed."""

MAX_IMAGES = 1_000
MAX_DURATION_MS = 36_000_000
"""Ten hours. No request makes more pictures or longer sound or video; a claim above it is not believed either."""

CHARS_PER_TOKEN = 4
"""The rule of thumb of the estimate: four characters of English or one event's worth of a delta."""


@attrs.frozen
class Usage:
    """Counts. ``cached_tokens`` are part of ``prompt_tokens``; ``images`` are made, ``duration_ms`` made or heard."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    source: UsageSource = "none"
    images: int = 0
    duration_ms: int = 0


NO_USAGE = Usage()


def _count(value: object) -> int | None:
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        return None
    return value


def read_usage(raw: object, *, completes: bool = False) -> Usage | None:
    """A convention usage object -> ``Usage``; None where it is missing or cannot be believed.

    ``completes``: the call has a completion, so that its tokens must be said too.
    A charge is never negative and never a float's rounding: anything but an integer in range is refused whole.
    """
    if not isinstance(raw, Mapping):
        return None
    prompt = _count(raw.get("prompt_tokens"))
    completion = _count(raw.get("completion_tokens", None if completes else 0))
    if prompt is None or completion is None:
        return None
    details: Any = raw.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else None
    return Usage(prompt, completion, min(cached or 0, prompt), "upstream")


def estimate_tokens(chars: int) -> int:
    """Tokens of a text of ``chars`` characters, rounded up."""
    return -(-max(chars, 0) // CHARS_PER_TOKEN)
