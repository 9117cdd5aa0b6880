"""What one request used: tokens as reported, read strictly, or an estimate that says so; pictures and seconds."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from gateway.domain.frozen import frozen

UsageSource = Literal["upstream", "estimate", "none", "bound"]
"""Who counted: the provider, or the gateway; "bound": the provider says what cannot be; the most that can is taken."""

MAX_TOKENS = 100_000_000
"""No request has more; a number above it is a provider's mistake and is not believed."""

MAX_IMAGES = 1_000
MAX_DURATION_MS = 36_000_000
"""Ten hours. No request makes more pictures or longer sound or video; a claim above it is not believed either."""
MAX_CHARACTERS = 1_000_000

CHARS_PER_TOKEN = 4
"""The rule of thumb of the estimate: four characters of English or one event's worth of a delta."""


@frozen
class Usage:
    """Counts. ``images`` are made, ``duration_ms`` made or heard, ``characters`` spoken; ``size`` is of a video.

    ``reasoning_tokens`` are those of ``completion_tokens`` that a provider says were thought, not answered.
    ``cached_tokens`` (read from a cache) and ``written_tokens`` (written into one, ``written_long_tokens`` of them for
    an hour) are parts of ``prompt_tokens``.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    source: UsageSource = "none"
    images: int = 0
    duration_ms: int = 0
    written_tokens: int = 0
    written_long_tokens: int = 0
    characters: int = 0
    size: str = ""
    reasoning_tokens: int = attrs.field(default=0, eq=False, repr=False)


NO_USAGE = Usage()
_PLAIN = 3
"""Fields of the usage of many: the tokens of the prompt, those of the completion and their sum, and nothing else."""
_NOTHING_SAID: Mapping[str, Any] = MappingProxyType({})


def parse_count(value: object) -> int | None:
    """A number of tokens as a provider said it; None where it cannot be believed."""
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        return None
    return value


def parse_usage(raw: object, *, completes: bool = False) -> Usage | None:
    """A convention usage object -> ``Usage``; None where it is missing or cannot be believed.

    ``completes``: the call has a completion, so that its tokens must be said too.
    A charge is never negative and never a float's rounding: anything but an integer in range is refused whole.
    What came from a cache is in ``prompt_tokens_details`` (the convention's OpenAPI document, ``CompletionUsage``);
    DeepSeek says ``prompt_cache_hit_tokens`` (its "Context Caching" guide), Moonshot ``cached_tokens`` beside it. xAI
    leaves what was reasoned out of ``completion_tokens`` (its "Reasoning" guide), as its total shows.
    """
    if not isinstance(raw, dict):
        return None
    prompt = parse_count(raw.get("prompt_tokens"))
    completion = parse_count(raw.get("completion_tokens", None if completes else 0))
    if prompt is None or completion is None:
        return None
    if raw.get("total_tokens") == prompt + completion:
        if len(raw) == _PLAIN and "completion_tokens" in raw:
            return Usage(prompt, completion, 0, "upstream")
    else:
        completion = min(completion + _find_reasoning_beside(raw, prompt + completion), MAX_TOKENS)
    said: Any = raw.get("prompt_tokens_details")
    details = said if isinstance(said, dict) else _NOTHING_SAID
    cached: int | None = None
    for place in (details.get("cached_tokens"), raw.get("prompt_cache_hit_tokens"), raw.get("cached_tokens")):
        if place is not None and (cached := parse_count(place)) is not None:
            break
    written = details.get("cache_write_tokens")
    answered = raw.get("completion_tokens_details")
    thought = answered.get("reasoning_tokens") if isinstance(answered, dict) else None
    if not (cached or written or thought):
        return Usage(prompt, completion, 0, "upstream")
    return share_prompt(prompt, completion, cached=cached, written=written, thought=thought)


def _find_reasoning_beside(raw: Mapping[str, Any], counted: int) -> int:
    """Reasoning tokens that are part of the total and of nothing that was ``counted``; 0 where they are in it."""
    details = raw.get("completion_tokens_details")
    reasoning = parse_count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    return reasoning if reasoning and raw.get("total_tokens") == counted + reasoning else 0


def share_prompt(prompt: int, completion: int, *, cached: object, written: object, thought: object = None) -> Usage:
    """Reported usage, of whose prompt a part came from a cache and another went into one, as far as can be believed."""
    read = min(parse_count(cached) or 0, prompt)
    write = min(parse_count(written) or 0, prompt - read)
    reasoning = min(parse_count(thought) or 0, completion)
    return Usage(prompt, completion, read, "upstream", written_tokens=write, reasoning_tokens=reasoning)


def estimate_tokens(chars: int) -> int:
    """Tokens of a text of ``chars`` characters, rounded up."""
    return -(-max(chars, 0) // CHARS_PER_TOKEN)
