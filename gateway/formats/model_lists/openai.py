"""Model lists in the OpenAI API format: builds the gateway's list and parses a provider's."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway.domain.model_description import ModelDescription, list_known_properties
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderBadResponse
from gateway.formats.model_lists.listed_description import parse_description

_MAX_CREATED_S = 4_102_444_800  # the year 2100; a larger number is in milliseconds or invalid


def _build_object(model: ModelInfo) -> dict[str, Any]:
    return {"id": model.id, "object": "model", "created": model.created_s, "owned_by": model.owned_by}


def build_described_model(model: ModelInfo, description: ModelDescription, pricing: Mapping[str, Any] | None) -> bytes:
    """Build one model object, with the properties that are known."""
    fields = _build_object(model) | list_known_properties(description)
    if pricing is not None:
        fields["pricing"] = pricing
    return orjson.dumps(fields)


def build_models(objects: Iterable[bytes]) -> bytes:
    """Build the list from model objects that are serialized already."""
    return b'{"object":"list","data":[' + b",".join(objects) + b"]}"


def parse_models(raw: bytes, *, owned_by: str, now_s: int) -> list[ModelInfo]:
    """Parse a provider's model list. ``now_s`` replaces a missing ``created``.

    ``owned_by`` replaces the owner, which may be the account of the gateway's key. Raises ``ProviderBadResponse`` if
    the answer is not a list: a failed request must not look like an empty list.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise ProviderBadResponse("The provider's model list is not JSON") from None
    items = value.get("data") if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise ProviderBadResponse("The provider's model list has no 'data' array")
    return [_parse_model(item, owned_by, now_s) for item in items if _has_id(item)]


def _has_id(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str) and bool(item["id"])


def _parse_model(item: dict[str, Any], owned_by: str, now_s: int) -> ModelInfo:
    created_s: Any = item.get("created")
    is_plausible = type(created_s) in {int, float} and 1 <= created_s <= _MAX_CREATED_S
    description = parse_description(item)
    return ModelInfo(item["id"], int(created_s) if is_plausible else now_s, owned_by, description=description)
