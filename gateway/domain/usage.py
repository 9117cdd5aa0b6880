"""The usage of one request: tokens, images, durations and so on, reported by the provider or marked as estimated."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

import attrs

from gateway.frozen import quick_frozen

UsageSource = Literal["upstream", "estimate", "none", "bound"]
"""The source of the numbers. "upstream": the provider. "estimate": the gateway. "none": there is no usage. "bound": the
maximum, because the provider's numbers are impossible."""

MAX_TOKENS = 100_000_000
"""The plausible maximum per request: a larger number is a provider's mistake."""

MAX_IMAGES = 1_000
MAX_DURATION_MS = 36_000_000
"""Ten hours. Like ``MAX_IMAGES``, a plausible maximum per request: a larger number is a mistake."""
MAX_CHARACTERS = 1_000_000

CHARS_PER_TOKEN = 4
"""A rule of thumb for English text. A delta of a stream counts as one token."""


@quick_frozen
class UsageDetails:
    """Units that few requests have: non-text tokens, separately counted units, and the provider's price information.

    Attributes:
        audio_input: audio tokens in the prompt, of which ``cached_audio`` were read from a cache. ``image_input`` and
            ``cached_image`` work alike; ``video_input`` has no cached part.
        audio_output: audio tokens in the completion. ``image_output`` and ``video_output`` work alike.
        reasoning: reasoning tokens that are not included in the completion.
        citations: tokens of quoted pages that are not included in the prompt.
        calls: the number of requests to the provider of which this is the sum.
        tier: the service tier that served the request, in lower case; empty for the standard tier.
        cost_nanos: the cost reported by the provider; None if it reports none.
    """

    audio_input: int = 0
    cached_audio: int = 0
    audio_output: int = 0
    image_input: int = 0
    cached_image: int = 0
    image_output: int = 0
    video_input: int = 0
    video_output: int = 0
    reasoning: int = 0
    citations: int = 0
    searches: int = 0
    file_searches: int = 0
    calls: int = 1
    tier: str = ""
    cost_nanos: int | None = None


@quick_frozen
class Usage:
    """The usage of one request.

    Attributes:
        reasoning_tokens: the part of ``completion_tokens`` that was reasoning and not answer.
        cached_tokens: the part of ``prompt_tokens`` that was read from a cache.
        written_tokens: the part of ``prompt_tokens`` that was written to a cache, of which ``written_long_tokens`` for
            an hour.
        duration_ms: the length of audio or video that was generated or transcribed.
        characters: the characters of text converted to speech.
        size: the size of a video, as ``1280x720``.
        details: units that few requests have; None if there are none.
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
    details: UsageDetails | None = None
    reasoning_tokens: int = attrs.field(default=0, eq=False, repr=False)

    @property
    def used(self) -> bool:
        """Whether there is any usage: False for an unprocessed request."""
        return bool(
            self.prompt_tokens
            or self.completion_tokens
            or self.images
            or self.duration_ms
            or self.characters
            or (self.details is not None and (self.details.searches or self.details.file_searches))
        )


NO_USAGE = Usage()
NO_USAGE_DETAILS = UsageDetails()
_USUAL_TIERS = frozenset(
    {"", "default", "standard", "auto", "provisioned_throughput", "traffic_type_unspecified", "unspecified"}
)
MAX_TIER_CHARS = 32
MAX_COST_USD = 10_000
"""The plausible maximum per request: a larger amount is a provider's mistake."""
_PLAIN_FIELD_COUNT = 3
"""The number of fields of a plain usage object: prompt, completion and total tokens."""
_EMPTY_DETAILS: Mapping[str, Any] = {}
_PROMPT_PARTS = (
    ("audio_tokens", "audio_input", "cached_audio"),
    ("image_tokens", "image_input", "cached_image"),
    ("video_tokens", "video_input", ""),
)
_COMPLETION_PARTS = (
    ("audio_tokens", "audio_output", ""),
    ("image_tokens", "image_output", ""),
    ("video_tokens", "video_output", ""),
)
"""For each field of a details object: its field of ``UsageDetails``, and the field of its cached part."""
_DETAIL_FIELDS = (
    *(("prompt_tokens", f) for _, f, _ in _PROMPT_PARTS),
    *(("completion_tokens", f) for _, f, _ in _COMPLETION_PARTS),
)
_CACHED_FIELDS = tuple((cached_field, field) for _, field, cached_field in _PROMPT_PARTS if cached_field)
_SEPARATE_COUNTS = (
    ("num_search_queries", "searches"),
    ("citation_tokens", "citations"),
    ("reasoning_tokens", "reasoning"),
)
_TICKS_FIELD = "cost_in_usd_ticks"
_AUDIO_SECONDS_FIELD = "prompt_audio_seconds"  # Mistral's: docs.mistral.ai, "Audio & Transcription"
_SEPARATE_FIELDS = frozenset({"cost", _TICKS_FIELD, _AUDIO_SECONDS_FIELD, *(name for name, _ in _SEPARATE_COUNTS)})


def parse_count(value: object) -> int | None:
    """Parse a provider's number of tokens. Return None if it is not plausible."""
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        return None
    return value


def parse_usage(fields: object, *, completes: bool = False) -> Usage | None:
    """Parse a ``usage`` object of the OpenAI API format. Return None if it is missing or not plausible.

    If ``completes`` is true, ``completion_tokens`` is required, and a prompt of 0 tokens is not plausible: some servers
    report 0 instead of counting. Counts have to be integers in range, so a charge is never negative.

    Cached tokens are in ``prompt_tokens_details`` (OpenAI's OpenAPI document, ``CompletionUsage``), in DeepSeek's
    ``prompt_cache_hit_tokens`` ("Context Caching" guide) or in Moonshot's ``cached_tokens``. xAI does not include
    reasoning in ``completion_tokens`` ("Reasoning" guide); the total shows this.
    """
    if not isinstance(fields, dict):
        return None
    prompt = parse_count(fields.get("prompt_tokens"))
    completion = parse_count(fields.get("completion_tokens", None if completes else 0))
    if prompt is None or completion is None or (completes and not prompt):
        return None
    if fields.get("total_tokens") == prompt + completion:
        if len(fields) == _PLAIN_FIELD_COUNT and "completion_tokens" in fields:
            return Usage(prompt, completion, 0, "upstream")
    else:
        completion = min(completion + _find_separate_reasoning_tokens(fields, prompt + completion), MAX_TOKENS)
    prompt_details: Any = fields.get("prompt_tokens_details")
    details = prompt_details if isinstance(prompt_details, dict) else _EMPTY_DETAILS
    cached: int | None = None
    for count in (details.get("cached_tokens"), fields.get("prompt_cache_hit_tokens"), fields.get("cached_tokens")):
        if count is not None and (cached := parse_count(count)) is not None:
            break
    written, completion_details = details.get("cache_write_tokens"), fields.get("completion_tokens_details")
    thought = completion_details.get("reasoning_tokens") if isinstance(completion_details, dict) else None
    usage = (
        build_reported_usage(prompt, completion, cached_tokens=cached, written_tokens=written, reasoning_tokens=thought)
        if cached or written or thought
        else Usage(prompt, completion, 0, "upstream")
    )
    modalities = find_modalities(prompt_details, completion_details) if prompt_details or completion_details else {}
    if not _SEPARATE_FIELDS.isdisjoint(fields):
        modalities |= _find_separate_units(fields)
        if seconds := parse_count(fields.get(_AUDIO_SECONDS_FIELD)):
            usage = attrs.evolve(usage, duration_ms=min(seconds * 1_000, MAX_DURATION_MS))
    return attach_details(usage, modalities) if modalities else usage


def find_modalities(prompt_details: object, completion_details: object) -> dict[str, Any]:
    """Return the audio, image and video tokens in two OpenAI details objects, by fields of ``UsageDetails``."""
    counts: dict[str, Any] = {}
    if isinstance(prompt_details, dict):
        cached_details = prompt_details.get("cached_tokens_details")
        for name, field, cached_field in _PROMPT_PARTS:
            if (value := prompt_details.get(name)) and (count := parse_count(value)):
                counts[field] = count
                if (
                    cached_field
                    and isinstance(cached_details, dict)
                    and (cached_count := parse_count(cached_details.get(name)))
                ):
                    counts[cached_field] = cached_count
    if isinstance(completion_details, dict):
        for name, field, _ in _COMPLETION_PARTS:
            if (value := completion_details.get(name)) and (count := parse_count(value)):
                counts[field] = count
    return counts


def _find_separate_units(reported_usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``usage`` object's separately counted units (Perplexity, "Sonar Deep Research") and its cost."""
    counts: dict[str, Any] = {
        field: count for name, field in _SEPARATE_COUNTS if (count := parse_count(reported_usage.get(name)))
    }
    if (cost := find_cost(reported_usage)) is not None:
        counts["cost_nanos"] = cost
    return counts


def find_cost(reported_usage: Mapping[str, Any]) -> int | None:
    """Return the cost reported in a ``usage`` object, in nano-USD; None if there is no plausible one.

    ``cost`` is OpenRouter's ("Usage Accounting"); if the customer's own key for the model's vendor is used, the
    vendor's charge is added. xAI reports ticks of a ten-billionth of a dollar (docs.x.ai, "Models and Pricing").
    """
    if _TICKS_FIELD in reported_usage:
        ticks: Any = reported_usage[_TICKS_FIELD]
        return -(-ticks // 10) if type(ticks) is int and 0 <= ticks <= MAX_COST_USD * 10**10 else None
    cost_nanos = parse_cost(reported_usage.get("cost"))
    details = reported_usage.get("cost_details")
    if cost_nanos is not None and reported_usage.get("is_byok") is True and isinstance(details, dict):
        cost_nanos += parse_cost(details.get("upstream_inference_cost")) or 0
    return cost_nanos


def parse_cost(value: object) -> int | None:
    """Convert a provider's amount in USD to nano-USD, rounded up; None if it is not plausible."""
    if type(value) not in {int, float} or not isinstance(value, int | float) or not 0 <= value <= MAX_COST_USD:
        return None
    return int((Decimal(str(value)) * 10**9).to_integral_value(rounding=ROUND_CEILING))


def find_tier(name: object) -> str:
    """Return the normalized name of a service tier; empty for the standard tier and for an invalid name.

    Vertex AI writes ``ON_DEMAND_PRIORITY`` (``UsageMetadata.trafficType``) where others write ``priority``. Gemini's
    enum calls the standard tier ``unspecified`` (googleapis.github.io/js-genai, ``ServiceTier``), formerly with a
    prefix.
    """
    tier = (
        name.lower().removeprefix("on_demand").removeprefix("service_tier").lstrip("_") if isinstance(name, str) else ""
    )
    return "" if tier in _USUAL_TIERS or len(tier) > MAX_TIER_CHARS else tier


def attach_tier(usage: Usage, name: object) -> Usage:
    """Return ``usage`` with the service tier ``name`` from the provider's answer."""
    tier = find_tier(name)
    return attach_details(usage, {"tier": tier}) if tier else usage


def attach_details(usage: Usage, details: Mapping[str, Any]) -> Usage:
    """Return ``usage`` with the rare units ``details``. Parts of the prompt or completion are capped at its tokens."""
    if not details:
        return usage
    counts = dict(details)
    for maximum, name in _DETAIL_FIELDS:
        if name in counts:
            counts[name] = min(counts[name], getattr(usage, maximum))
    for cached_field, whole_field in _CACHED_FIELDS:
        if cached_field in counts:
            counts[cached_field] = min(counts[cached_field], counts.get(whole_field, 0))
    return attrs.evolve(usage, details=attrs.evolve(usage.details or NO_USAGE_DETAILS, **counts))


def _find_separate_reasoning_tokens(reported_usage: Mapping[str, Any], counted_tokens: int) -> int:
    """Return the reasoning tokens that the total includes and ``counted_tokens`` does not. 0 if both include them."""
    details = reported_usage.get("completion_tokens_details")
    reasoning = parse_count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    return reasoning if reasoning and reported_usage.get("total_tokens") == counted_tokens + reasoning else 0


def build_reported_usage(
    prompt: int, completion: int, *, cached_tokens: object, written_tokens: object, reasoning_tokens: object = None
) -> Usage:
    """Build reported usage, with the plausible cached, written and reasoning parts."""
    cached_count = min(parse_count(cached_tokens) or 0, prompt)
    written_count = min(parse_count(written_tokens) or 0, prompt - cached_count)
    reasoning = min(parse_count(reasoning_tokens) or 0, completion)
    return Usage(prompt, completion, cached_count, "upstream", written_tokens=written_count, reasoning_tokens=reasoning)


_COUNT_FIELDS = ("prompt_tokens", "completion_tokens", "cached_tokens", "images", "duration_ms", "written_tokens",
           "written_long_tokens", "characters", "reasoning_tokens")  # fmt: skip
_DETAIL_COUNTS = tuple(field.name for field in attrs.fields(UsageDetails) if field.type is int)
_SOURCES_BY_CERTAINTY: tuple[UsageSource, ...] = ("bound", "estimate", "upstream", "none")


def add_usages(usages: Sequence[Usage]) -> Usage:
    """Add the usages of several requests. The source is the least certain one."""
    counts = {name: sum(getattr(usage, name) for usage in usages) for name in _COUNT_FIELDS}
    sources = {usage.source for usage in usages}
    details = (
        _add_details([usage.details or NO_USAGE_DETAILS for usage in usages])
        if any(usage.details for usage in usages)
        else None
    )
    if details is None and len(usages) > 1:
        details = UsageDetails(calls=len(usages))
    return Usage(
        **counts,
        source=next((source for source in _SOURCES_BY_CERTAINTY if source in sources), "none"),
        details=details,
    )


def _add_details(parts: Sequence[UsageDetails]) -> UsageDetails:
    """Add rare units. The tier is kept if it is the same in all, the cost if all report one."""
    counts = {name: sum(getattr(part, name) for part in parts) for name in _DETAIL_COUNTS}
    tiers, costs = {part.tier for part in parts}, [part.cost_nanos for part in parts if part.cost_nanos is not None]
    cost = sum(costs) if len(costs) == len(parts) else None
    return UsageDetails(**counts, tier=parts[0].tier if len(tiers) == 1 else "", cost_nanos=cost)


def without_cache(usage: Usage) -> Usage:
    """Return the same usage with nothing read from a prompt cache or written to one."""
    details = usage.details
    if details is not None and (details.cached_audio or details.cached_image):
        details = attrs.evolve(details, cached_audio=0, cached_image=0)
    return attrs.evolve(usage, cached_tokens=0, written_tokens=0, written_long_tokens=0, details=details)


def estimate_tokens(chars: int) -> int:
    """Estimate the tokens of a text of ``chars`` characters, rounded up."""
    return -(-max(chars, 0) // CHARS_PER_TOKEN)
