"""The usage of one request: strictly parsed tokens, or an estimate that is marked as one; images and durations."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import attrs

from gateway.domain.frozen import frozen

UsageSource = Literal["upstream", "estimate", "none", "bound"]
"""The source: the provider, or the gateway. "bound": the maximum, because the provider's numbers are impossible."""

MAX_TOKENS = 100_000_000
"""No request has more: a larger number is a provider's mistake."""

MAX_IMAGES = 1_000
MAX_DURATION_MS = 36_000_000
"""Ten hours. No request makes more images, longer audio or video: a larger number is a mistake, too."""
MAX_CHARACTERS = 1_000_000

CHARS_PER_TOKEN = 4
"""The rule of thumb: four characters of English, or one delta of a stream."""


@frozen
class AudioTokens:
    """The audio among the tokens of a request: of the prompt, of the cached part of the prompt, of the completion."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@frozen
class Usage:
    """Counts of one request.

    Attributes:
        reasoning_tokens: the part of ``completion_tokens`` that was reasoning, not answer.
        cached_tokens: the part of ``prompt_tokens`` that was read from a cache.
        written_tokens: the part of ``prompt_tokens`` that was written to a cache; ``written_long_tokens`` of them for
            an hour.
        duration_ms: of audio or video, made or transcribed.
        characters: of text that was spoken.
        size: of a video.
        audio: the tokens that are audio; None: none.
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
    audio: AudioTokens | None = None
    reasoning_tokens: int = attrs.field(default=0, eq=False, repr=False)


NO_USAGE = Usage()
_PLAIN = 3
"""Fields of most usages: the tokens of the prompt, of the completion and in total, and nothing else."""
_NO_DETAILS: Mapping[str, Any] = MappingProxyType({})


def parse_count(value: object) -> int | None:
    """Parse a provider's number of tokens. None: it is not plausible."""
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        return None
    return value


def parse_usage(raw: object, *, completes: bool = False) -> Usage | None:
    """Parse a ``usage`` object of the OpenAI API format. None: it is missing or not plausible.

    ``completes``: the request has a completion, so its tokens are required, too. A charge is never negative and never
    rounded from a float: any value that is not an integer in range invalidates the whole object. Cached tokens are in
    ``prompt_tokens_details`` (OpenAI's OpenAPI document, ``CompletionUsage``), in DeepSeek's
    ``prompt_cache_hit_tokens`` ("Context Caching" guide) or in Moonshot's ``cached_tokens``. xAI leaves reasoning out
    of ``completion_tokens`` ("Reasoning" guide), as its total shows.
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
    reported: Any = raw.get("prompt_tokens_details")
    details = reported if isinstance(reported, dict) else _NO_DETAILS
    cached: int | None = None
    for place in (details.get("cached_tokens"), raw.get("prompt_cache_hit_tokens"), raw.get("cached_tokens")):
        if place is not None and (cached := parse_count(place)) is not None:
            break
    written = details.get("cache_write_tokens")
    answered = raw.get("completion_tokens_details")
    thought = answered.get("reasoning_tokens") if isinstance(answered, dict) else None
    if details.get("audio_tokens") or (isinstance(answered, dict) and answered.get("audio_tokens")):
        audio = find_audio(details, answered, prompt, completion)
        shared = share_prompt(prompt, completion, cached=cached, written=written, thought=thought)
        return attrs.evolve(shared, audio=audio)
    if not (cached or written or thought):
        return Usage(prompt, completion, 0, "upstream")
    return share_prompt(prompt, completion, cached=cached, written=written, thought=thought)


def find_audio(prompt_details: object, completion_details: object, prompt: int, completion: int) -> AudioTokens | None:
    """Return the audio tokens of two objects of details, as far as they are plausible. None if there are none."""
    read = prompt_details if isinstance(prompt_details, dict) else _NO_DETAILS
    made = completion_details if isinstance(completion_details, dict) else _NO_DETAILS
    kept = read.get("cached_tokens_details")
    heard = min(parse_count(read.get("audio_tokens")) or 0, prompt)
    cached = min(parse_count(kept.get("audio_tokens")) or 0, heard) if isinstance(kept, dict) else 0
    spoken = min(parse_count(made.get("audio_tokens")) or 0, completion)
    return AudioTokens(heard, cached, spoken) if heard or spoken else None


def _find_reasoning_beside(raw: Mapping[str, Any], counted: int) -> int:
    """Return the reasoning tokens that are in the total and not in ``counted``. 0 if they are in both."""
    details = raw.get("completion_tokens_details")
    reasoning = parse_count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    return reasoning if reasoning and raw.get("total_tokens") == counted + reasoning else 0


def share_prompt(prompt: int, completion: int, *, cached: object, written: object, thought: object = None) -> Usage:
    """Return reported usage with the cached and written parts of its prompt, as far as they are plausible."""
    read = min(parse_count(cached) or 0, prompt)
    write = min(parse_count(written) or 0, prompt - read)
    reasoning = min(parse_count(thought) or 0, completion)
    return Usage(prompt, completion, read, "upstream", written_tokens=write, reasoning_tokens=reasoning)


_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "images", "duration_ms", "written_tokens",
           "written_long_tokens", "characters", "reasoning_tokens")  # fmt: skip
_LEAST_CERTAIN: tuple[UsageSource, ...] = ("bound", "estimate", "upstream", "none")


def add_usages(usages: Sequence[Usage]) -> Usage:
    """Add the usages of several requests. The source is the least certain of theirs."""
    counts = {name: sum(getattr(usage, name) for usage in usages) for name in _COUNTS}
    sources = {usage.source for usage in usages}
    return Usage(**counts, source=next((one for one in _LEAST_CERTAIN if one in sources), "none"))


def estimate_tokens(chars: int) -> int:
    """Return the tokens of a text of ``chars`` characters, rounded up."""
    return -(-max(chars, 0) // CHARS_PER_TOKEN)
