"""Upper bounds for cost units other than text tokens: media, searches, service tier."""

from typing import Any

import attrs

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import ONE_PPM, Price
from gateway.domain.usage import NO_USAGE_DETAILS, Usage, UsageDetails, attach_details, find_tier, parse_count
from gateway.formats.wire.json_values import list_objects

_TIER_FIELDS = ("speed", "service_tier", "serviceTier", "inference_geo")
_STANDARD_TIERS = ("default", "standard", "standard_only", "global")
PRICED_REQUEST_FIELDS = frozenset({"tools", "web_search_options", "plugins", "search_parameters", *_TIER_FIELDS})
"""Fields that may cause costs other than tokens."""
_TEXT_KINDS = frozenset({"text", "input_text", "output_text", "refusal", "message"})
_GEMINI_MEDIA_FIELDS = frozenset({"inlineData", "fileData", "inline_data", "file_data"})
_SEARCH_TOOLS = ("web_search", "google_search", "googleSearch", "file_search", "enterpriseWebSearch")
ASSUMED_SEARCHES = 10
"""Searches reserved for a request that may search without a limit; further searches are charged nevertheless."""


def fill_details(usage: Usage, inference: InferenceRequest) -> Usage:
    """Return ``usage`` with the details that follow from the operation, where the provider gives none.

    An image operation's completion tokens are image output, a transcription's prompt tokens are audio input, and a
    rerank is billed by searches.
    """
    details, counts, known_unit = (
        usage.details or NO_USAGE_DETAILS,
        dict[str, int](),
        OPERATIONS[inference.operation].known_unit,
    )
    if known_unit == "search":
        counts = {"searches": details.searches or inference.searches}
    elif known_unit == "sound" and usage.details is None:
        counts = {"audio_input": usage.prompt_tokens}
    elif known_unit == "image" and not details.image_output:
        counts = {"image_output": usage.completion_tokens}
    return attach_details(usage, counts)


def bound_details(usage: Usage, inference: InferenceRequest, price: Price | None) -> Usage:
    """Return ``usage``, an upper bound, with upper bounds of its details if ``price`` needs them."""
    if price is None or usage.details is not None:
        return usage
    if not (
        price.modal
        or OPERATIONS[inference.operation].known_unit
        or not PRICED_REQUEST_FIELDS.isdisjoint(inference.body)
    ):
        return usage
    has_media = price.modal and (bool(inference.files) or inference.image is not None or _has_media(inference.body))
    prompt_tokens, output_tokens = (
        usage.prompt_tokens if has_media else 0,
        usage.completion_tokens if price.modal else 0,
    )
    searches = inference.searches or _count_searches(inference.body)
    details = UsageDetails(
        audio_input=prompt_tokens,
        image_input=prompt_tokens,
        video_input=prompt_tokens,
        audio_output=output_tokens if inference.makes_media else 0,
        image_output=output_tokens,
        video_output=output_tokens,
        searches=searches,
        file_searches=searches,
        tier=_find_tier(inference.body, price),
    )
    return attrs.evolve(usage, details=details)


def _has_media(body: dict[str, Any]) -> bool:
    for name in ("messages", "contents", "input", "content"):
        for message in list_objects(body.get(name)):
            for part in list_objects(message.get("content") or message.get("parts") or [message]):
                kind = part.get("type")
                if (kind is not None and kind not in _TEXT_KINDS) or not _GEMINI_MEDIA_FIELDS.isdisjoint(part):
                    return True
    return False


def _count_searches(body: dict[str, Any]) -> int:
    search_count = ASSUMED_SEARCHES if body.get("web_search_options") or body.get("search_parameters") else 0
    for tool in list_objects(body.get("tools")):
        if str(tool.get("type")).startswith(_SEARCH_TOOLS) or any(name in tool for name in _SEARCH_TOOLS):
            search_count += parse_count(tool.get("max_uses")) or ASSUMED_SEARCHES
    return search_count


def _find_tier(body: dict[str, Any], price: Price) -> str:
    """Return the priced service tiers of a request, joined with "+"; empty if it has none.

    A requested tier without a price of its own, such as ``auto``, counts as the most expensive one.
    """
    highest_tier, highest_factor = max(
        price.tiers_served, key=lambda tier_factor: tier_factor[1], default=("", ONE_PPM)
    )
    tiers = []
    for tier_field in map(body.get, _TIER_FIELDS):
        if tier_field is None or tier_field in _STANDARD_TIERS:
            continue
        tier = find_tier(tier_field)
        if tier and price.find_factor(tier) != ONE_PPM:
            tiers.append(tier)
        elif highest_factor > ONE_PPM:
            tiers.append(highest_tier)
    return "+".join(dict.fromkeys(tiers))
