"""``/v1/moderations`` and ``/v1/rerank``: scores of texts, by their words.

The OpenAI API's OpenAPI document describes moderations: ``CreateModerationRequest`` and ``CreateModerationResponse``.
Reranking is that of Jina and Cohere, see ``gateway/formats/rerank.py``.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from gateway.demo.models import MODERATION_MODEL, RERANK_MODEL
from gateway.demo.replies import json_reply, parse_json
from gateway.demo.requests import (
    MAX_INPUT_TOKENS,
    Json,
    RequestError,
    fields_of,
    integer,
    typed,
)
from gateway.demo.text import features, pieces, vector

_CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent", "self-harm",
    "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence", "violence/graphic",
)  # fmt: skip
_IMAGE_CATEGORIES = frozenset(
    {"self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "violence", "violence/graphic"}
)
"""Categories that apply to images too."""
_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "harassment": re.compile(r"\b(?:idiot|moron|stupid)s?\b"),
    "hate": re.compile(r"\bhat(?:e|ed|es|ing)\b"),
    "illicit": re.compile(r"\b(?:burgle|explosives?|steal)\b"),
    "self-harm": re.compile(r"\b(?:suicide|(?:hurt|kill) myself)\b"),
    "sexual": re.compile(r"\b(?:naked|porn|sex)\b"),
    "violence": re.compile(r"\b(?:attack|kill|murder|shoot|stab)(?:ed|ing|s)?\b"),
}
"""The patterns that indicate a category."""
_MAX_TEXTS = 2_048
_MAX_DOCUMENTS = 1_000
_DIMENSIONS = 256


def add_routes(app: web.Application) -> None:
    """Add the paths."""
    app.router.add_post("/v1/moderations", _moderate)
    app.router.add_post("/v1/rerank", _rerank)


async def _moderate(request: web.Request) -> web.Response:
    fields = fields_of(await parse_json(request), MODERATION_MODEL)
    results = [_judge(text, kinds) for text, kinds in _parse_texts(fields.get("input"))]
    return json_reply({"id": f"modr-{secrets.token_hex(12)}", "model": MODERATION_MODEL, "results": results})


def _parse_texts(given: object) -> list[tuple[str, list[str]]]:
    """Return each text to judge with its kinds of input; parts are judged together."""
    value = [given] if isinstance(given, str) else given
    if isinstance(value, list) and 0 < len(value) <= _MAX_TEXTS:
        if all(isinstance(item, str) for item in value):
            return [(item, ["text"]) for item in value]
        if all(isinstance(item, dict) and item.get("type") in {"text", "image_url"} for item in value):
            texts = [typed(item, "text", str, default="") for item in value]
            return [("\n".join(texts), sorted({"text" if item["type"] == "text" else "image" for item in value}))]
    raise RequestError("'input' must be a text, or a list of texts or of parts, and not empty.", param="input")


def _judge(text: str, kinds: list[str]) -> Json:
    found = {name for name, pattern in _PATTERNS.items() if pattern.search(text.lower())}
    return {
        "flagged": bool(found),
        "categories": {name: name in found for name in _CATEGORIES},
        "category_scores": {name: 0.98 if name in found else 0.0001 for name in _CATEGORIES},
        "category_applied_input_types": {
            name: [kind for kind in kinds if kind == "text" or name in _IMAGE_CATEGORIES] for name in _CATEGORIES
        },
    }


async def _rerank(request: web.Request) -> web.Response:
    fields = fields_of(await parse_json(request), RERANK_MODEL)
    query, documents = _parse_document(fields.get("query"), "query"), typed(fields, "documents", list, default=[])
    if not 1 <= len(documents) <= _MAX_DOCUMENTS:
        raise RequestError(f"'documents' must be a list of 1 to {_MAX_DOCUMENTS} documents.", param="documents")
    texts = [_parse_document(document, f"documents[{index}]") for index, document in enumerate(documents)]
    most = integer(fields, "top_n", 2**31) or len(texts)
    tokens = sum(len(pieces(text)) + len(pieces(query)) for text in texts)
    if tokens > MAX_INPUT_TOKENS:
        message = f"'documents' and 'query' have {tokens} tokens; the demo reads at most {MAX_INPUT_TOKENS} a request."
        raise RequestError(message, param="documents", code="context_length_exceeded")
    requested = vector(features(query), _DIMENSIONS)
    scores = [(_compare(requested, vector(features(text), _DIMENSIONS)), -index) for index, text in enumerate(texts)]
    shown = typed(fields, "return_documents", bool, default=False)
    results = [
        {"index": -place, "relevance_score": score, **({"document": {"text": texts[-place]}} if shown else {})}
        for score, place in sorted(scores, reverse=True)[:most]
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_reply(
        {"id": f"rerank-{secrets.token_hex(12)}", "model": RERANK_MODEL, "results": results, "usage": usage}
    )


def _parse_document(given: Any, where: str) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str) or not text:
        raise RequestError(f"'{where}' must be a text, or an object with a 'text', and not empty.", param=where)
    return text


def _compare(one: list[float], other: list[float]) -> float:
    """Return the similarity of two unit vectors, from 0 to 1."""
    return round(min(max(sum(a * b for a, b in zip(one, other, strict=True)), 0.0), 1.0), 6)
