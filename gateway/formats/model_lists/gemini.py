"""Parse and build Gemini's model list.

Shape: ai.google.dev/api/models, ``models.list``: ``{"models": [{"name": "models/…", "supportedGenerationMethods":
[…]}], "nextPageToken"}``. A page has 50 models by default and at most 1,000. The gateway requests only the first page,
with ``?pageSize=1000``.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.domain.model_description import UNDESCRIBED, ModelDescription
from gateway.domain.model_info import ModelInfo
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.chat.openai.chat import parse_answer_object
from gateway.formats.model_lists.listed_description import parse_tokens

_GENERATION_METHODS = frozenset(
    {"generateContent", "streamGenerateContent", "embedContent", "batchEmbedContents", "predictLongRunning"}
)
"""Models without one of these methods are not usable here: they generate images by another method, or use a WebSocket.
"""
_DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE = 50, 1_000
_MAX_PAGE_SIZE_DIGITS = 9


def parse_models(raw: bytes, *, owned_by: str, now_s: int) -> list[ModelInfo]:
    """Return the usable models of a list, with ``owned_by`` and ``now_s``: Gemini reports neither owner nor time.

    Raises ``ProviderError`` if the answer is not a list: a failed request must not look like an empty list.
    """
    items = parse_answer_object(raw).get("models")
    if not isinstance(items, list):
        raise ProviderBadResponse("The provider's model list has no 'models' array")
    models: dict[str, ModelInfo] = {}
    for item in items:
        if isinstance(item, dict) and _is_callable(item) and (name := _parse_name(item)):
            models.setdefault(name, ModelInfo(name, now_s, owned_by, description=_parse_description(item)))
    return list(models.values())


def _parse_description(item: dict[str, Any]) -> ModelDescription | None:
    """Return the description in a model object; None if it has none. ``context_length`` is a field of Cohere's list."""
    methods = item.get("supportedGenerationMethods")
    embeds = isinstance(methods, list) and "embedContent" in methods and "generateContent" not in methods
    description = ModelDescription(
        "embedding" if embeds else None,
        parse_tokens(item.get("inputTokenLimit")) or parse_tokens(item.get("context_length")),
        None if embeds else parse_tokens(item.get("outputTokenLimit")),
    )
    return None if description == UNDESCRIBED else description


def _is_callable(item: dict[str, Any]) -> bool:
    methods = item.get("supportedGenerationMethods")
    return not isinstance(methods, list) or any(
        isinstance(method, str) and method in _GENERATION_METHODS for method in methods
    )


def _parse_name(item: dict[str, Any]) -> str:
    name = item.get("name")
    return name.removeprefix("models/") if isinstance(name, str) else ""


def build_model(model: ModelInfo, description: ModelDescription, methods: Sequence[str]) -> dict[str, Any]:
    """Build one model object. ``methods`` are the generation methods that the model supports."""
    known_fields = {
        "inputTokenLimit": description.context_window,
        "outputTokenLimit": description.max_output_tokens,
        "thinking": None if description.features is None else "reasoning" in description.features,
    }
    return {
        "name": f"models/{model.id}",
        "version": model.id,
        "displayName": model.id,
        "description": f"Provided by {model.owned_by}" if model.owned_by else "",
        "supportedGenerationMethods": list(methods),
    } | {name: value for name, value in known_fields.items() if value is not None}


def build_page(models: Sequence[dict[str, Any]], last_id: str | None) -> bytes:
    """Build one page of the list. ``last_id`` is the id after which the next page begins; None without one."""
    page: dict[str, Any] = {"models": models}
    if last_id is not None:
        page["nextPageToken"] = base64.urlsafe_b64encode(last_id.encode()).decode()
    return orjson.dumps(page)


def parse_page_token(token: str) -> str:
    """Return the id after which a page begins; empty for the first page. Raises ``InvalidRequest``."""
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("'pageToken' is not one of this list", param="pageToken") from None


def parse_page_size(text: str | None) -> int:
    """Return the page size: ``pageSize``, by default 50 and at most 1,000. Raises ``InvalidRequest``."""
    if text is None or text == "0":
        return _DEFAULT_PAGE_SIZE
    if not text.isascii() or not text.isdecimal():
        raise InvalidRequest("'pageSize' must be a number", param="pageSize")
    return min(int(text[:_MAX_PAGE_SIZE_DIGITS]), _MAX_PAGE_SIZE)
