"""Anthropic, in its own API format; it has no embeddings.

platform.claude.com/docs/en/api/messages, .../messages-count-tokens and .../models-list (at most 1000 per page): the key
in an ``x-api-key`` header, and a version. Vendors with this format at a separate address are used with this provider
and that ``base_url``. Fast mode (``speed``) and inference in one country (``inference_geo``) have separate prices
(.../about-claude/pricing). ``fallbacks`` names other models that may answer, ``billing_policy`` another payer.
"""

import attrs

from gateway.providers.base import COUNT_TOKENS, MESSAGES, Body, Provider
from gateway.providers.priced_fields import BETA_HEADER, COMMON_FIELDS
from gateway.providers.quirks import hash_user

_hash_user_id = hash_user(256, "user_id")


def hash_metadata_user(body: Body, model: str) -> None:
    """Hash the ``user_id`` of a request's ``metadata`` if it is too long (.../api/messages: ``maxLength`` 256)."""
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        body["metadata"] = metadata = dict(metadata)
        _hash_user_id(metadata, model)


def _sign(key: str) -> dict[str, str]:
    return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})


ANTHROPIC = Provider(
    slug="anthropic",
    title="Anthropic",
    base_url="https://api.anthropic.com/v1",
    env_key="ANTHROPIC_API_KEY",
    endpoints=(attrs.evolve(MESSAGES, quirks=(hash_metadata_user,)), COUNT_TOKENS),
    sign=_sign,
    models_path="/models?limit=1000",
    priced_fields=COMMON_FIELDS | {"speed", "inference_geo", "fallbacks", "billing_policy", BETA_HEADER},
)
