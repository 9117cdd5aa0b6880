"""Anthropic, through its compatibility with the convention.

Chat: platform.claude.com/docs/en/api/openai-sdk (Bearer key, ``stream_options`` supported, no embeddings).
Model list: platform.claude.com/docs/en/api/models-list (``x-api-key``, a version header, at most 1000 a page).
"""

from gateway.providers.base import Provider


def _sign_list(key: str) -> dict[str, str]:
    return {"x-api-key": key, "anthropic-version": "2023-06-01"}


ANTHROPIC = Provider(
    slug="anthropic",
    title="Anthropic",
    base_url="https://api.anthropic.com/v1",
    env_key="ANTHROPIC_API_KEY",
    sign_list=_sign_list,
    list_query="?limit=1000",
)
