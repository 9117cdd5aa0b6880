"""The usage of Gemini's answers (ai.google.dev/api/generate-content, ``UsageMetadata``)."""

from collections.abc import Mapping
from typing import Any

from gateway.domain.usage import Usage, attach_details, find_tier, parse_count
from gateway.formats.chat.model import UsageReport
from gateway.formats.wire.json_values import as_object, list_objects

_MODALITIES: Mapping[str, str] = {"AUDIO": "audio", "IMAGE": "image", "DOCUMENT": "image", "VIDEO": "video"}
_DETAIL_FIELDS = (
    ("promptTokensDetails", "{}_input"),
    ("toolUsePromptTokensDetails", "{}_input"),
    ("cacheTokensDetails", "cached_{}"),
    ("candidatesTokensDetails", "{}_output"),
)
_PRICED_BY_PROMPT_PREFIX = "gemini-2"
"""Models before Gemini 3, which charge one search per prompt. Later ones charge per query ("Gemini API pricing")."""


def parse_usage_metadata(raw: object) -> UsageReport | None:
    """Return the counts so far; None if the prompt's count is missing or 0, or if any count is implausible.

    Gemini omits counts of 0.
    """
    if not isinstance(raw, dict) or not raw.get("promptTokenCount"):
        return None
    names = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    counts = [parse_count(0 if raw.get(name) is None else raw[name]) for name in names]
    if None in counts:
        return None
    prompt_count, tool_prompt_count, answer_count, thoughts_count = (count or 0 for count in counts)
    cached_count = parse_count(raw.get("cachedContentTokenCount")) or 0
    prompt_tokens = prompt_count + tool_prompt_count
    usage = Usage(
        prompt_tokens,
        answer_count + thoughts_count,
        min(cached_count, prompt_tokens),
        "upstream",
        reasoning_tokens=thoughts_count,
    )
    return UsageReport(attach_details(usage, _find_details(raw)), thoughts_count)


def _find_details(raw: Mapping[str, Any]) -> dict[str, Any]:
    details: dict[str, Any] = {}
    for name, field in _DETAIL_FIELDS:
        for detail in list_objects(raw.get(name)):
            modality = _MODALITIES.get(str(detail.get("modality")))
            count = parse_count(detail.get("tokenCount"))
            if modality and count and (modality != "video" or name != "cacheTokensDetails"):
                key = field.format(modality)
                details[key] = details.get(key, 0) + count
    if tier := find_tier(raw.get("serviceTier")) or find_tier(raw.get("trafficType")):
        details["tier"] = tier
    return details


def attach_searches(usage: Usage, answer: Mapping[str, Any]) -> Usage:
    """Return ``usage`` with the number of searches to charge, as listed in ``answer``: a whole answer or a chunk.

    Before Gemini 3, all searches of a prompt count as one.
    """
    query_count = 0
    for candidate in list_objects(answer.get("candidates")):
        search_queries = as_object(candidate.get("groundingMetadata")).get("webSearchQueries")
        query_count += len(search_queries) if isinstance(search_queries, list) else 0
    if not query_count:
        return usage
    is_billed_by_prompt = str(answer.get("modelVersion")).startswith(_PRICED_BY_PROMPT_PREFIX)
    return attach_details(usage, {"searches": 1 if is_billed_by_prompt else query_count})


def has_completion(raw: object) -> bool:
    """Return whether the usage includes the completion. The first chunks may count only the prompt."""
    return isinstance(raw, dict) and (
        raw.get("candidatesTokenCount") is not None or raw.get("thoughtsTokenCount") is not None
    )
