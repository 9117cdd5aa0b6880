"""Anthropic, in its own language; it has no embeddings.

platform.claude.com/docs/en/api/messages, .../messages-count-tokens and .../models-list (at most 1000 a page): the key
in an ``x-api-key`` header, and a version. Vendors that speak this language under an address of their own are reached
with this provider and that ``base_url``; their files say which.
"""

from gateway.providers.base import COUNT_TOKENS, MESSAGES, Provider


def _sign(key: str) -> dict[str, str]:
    return {"anthropic-version": "2023-06-01"} | ({"x-api-key": key} if key else {})


ANTHROPIC = Provider(
    slug="anthropic",
    title="Anthropic",
    base_url="https://api.anthropic.com/v1",
    env_key="ANTHROPIC_API_KEY",
    endpoints=(MESSAGES, COUNT_TOKENS),
    sign=_sign,
    models_path="/models?limit=1000",
)
