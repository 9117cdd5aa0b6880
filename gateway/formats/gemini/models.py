"""Parses Gemini's model list.

Shape: ai.google.dev/api/models, ``models.list``: ``{"models": [{"name": "models/…", "supportedGenerationMethods":
[…]}], "nextPageToken"}``. A page has 50 models unless ``pageSize`` asks for more, at most 1,000: it is requested with
``?pageSize=1000``, and further pages are not.
"""

from typing import Any

from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderBadResponse
from gateway.formats.openai.chat import parse_answer_object

_METHODS = frozenset(
    {"generateContent", "streamGenerateContent", "embedContent", "batchEmbedContents", "predictLongRunning"},
)
"""Models without one of these cannot be used here: they make images in another way, or use a socket."""


def parse_models(raw: bytes, *, owned_by: str, now_s: int) -> list[ModelInfo]:
    """Return the usable models of the list; Gemini reports neither creation time nor owner.

    Raises ``ProviderBadResponse`` if the answer is no list: a failed listing must not look like an empty one.
    """
    items = parse_answer_object(raw).get("models")
    if not isinstance(items, list):
        raise ProviderBadResponse("The provider's model list has no 'models' array")
    names = dict.fromkeys(_parse_name(item) for item in items if isinstance(item, dict) and _is_callable(item))
    return [ModelInfo(name, now_s, owned_by) for name in names if name]


def _is_callable(item: dict[str, Any]) -> bool:
    methods = item.get("supportedGenerationMethods")
    return not isinstance(methods, list) or any(isinstance(method, str) and method in _METHODS for method in methods)


def _parse_name(item: dict[str, Any]) -> str:
    name = item.get("name")
    return name.removeprefix("models/") if isinstance(name, str) else ""
