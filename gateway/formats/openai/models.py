"""The model list in the convention: ours written, a provider's read."""

from collections.abc import Iterable
from typing import Any

import orjson

from gateway.domain.model_info import Listed
from gateway.errors import UpstreamError

_MAX_CREATED_S = 4_102_444_800  # the year 2100; above it a provider speaks in milliseconds or nonsense


def _model(listed: Listed) -> dict[str, Any]:
    return {"id": listed.id, "object": "model", "created": listed.created_s, "owned_by": listed.owned_by}


def write_model(listed: Listed) -> bytes:
    """One model object."""
    return orjson.dumps(_model(listed))


def write_models(models: Iterable[Listed]) -> bytes:
    """The list object."""
    return orjson.dumps({"object": "list", "data": [_model(listed) for listed in models]})


def read_models(raw: bytes, *, owned_by: str, now_s: int) -> list[Listed]:
    """A provider's list -> what it offers, as ``owned_by``; ``created`` is filled where it says nothing.

    Its own word for the owner is left out: it may be the account that the gateway's key belongs to.

    Raises ``UpstreamError`` where the answer is no list: a failed listing must not look like an empty one.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise UpstreamError("The provider's model list is not JSON") from None
    items = value.get("data") if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise UpstreamError("The provider's model list has no 'data' array")
    return [_read_model(item, owned_by, now_s) for item in items if _has_id(item)]


def _has_id(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str) and bool(item["id"])


def _read_model(item: dict[str, Any], owned_by: str, now_s: int) -> Listed:
    created: Any = item.get("created")
    known = type(created) in {int, float} and 1 <= created <= _MAX_CREATED_S
    return Listed(item["id"], int(created) if known else now_s, owned_by)
