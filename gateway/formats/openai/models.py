"""The model list in the convention: ours written, a provider's read."""

from collections.abc import Iterable
from typing import Any

import orjson

from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderBadResponse

_MAX_CREATED_S = 4_102_444_800  # the year 2100; above it a provider speaks in milliseconds or nonsense


def _model(listed: ModelInfo) -> dict[str, Any]:
    return {"id": listed.id, "object": "model", "created": listed.created_s, "owned_by": listed.owned_by}


def build_model(listed: ModelInfo) -> bytes:
    """One model object."""
    return orjson.dumps(_model(listed))


def build_models(models: Iterable[ModelInfo]) -> bytes:
    """The list object."""
    return orjson.dumps({"object": "list", "data": [_model(listed) for listed in models]})


def parse_models(raw: bytes, *, owned_by: str, now_s: int) -> list[ModelInfo]:
    """A provider's list -> what it offers, as ``owned_by``; ``created`` is filled where it says nothing.

    Its own word for the owner is left out: it may be the account that the gateway's key belongs to.

    Raises ``ProviderBadResponse`` where the answer is no list: a failed listing must not look like an empty one.
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
    created: Any = item.get("created")
    known = type(created) in {int, float} and 1 <= created <= _MAX_CREATED_S
    return ModelInfo(item["id"], int(created) if known else now_s, owned_by)
