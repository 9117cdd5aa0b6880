"""Google Gemini, through its compatibility with the convention.

ai.google.dev/gemini-api/docs/openai; the list names models ``models/gemini-…``, the calls take the bare name.
"""

from gateway.providers.base import Provider


def _read_model_id(listed: str) -> str:
    return listed.removeprefix("models/")


GEMINI = Provider(
    slug="gemini",
    title="Google Gemini",
    base_url="https://generativelanguage.googleapis.com/v1beta/openai",
    env_key="GEMINI_API_KEY",
    read_model_id=_read_model_id,
)
