"""Limits, paths and names that ``public.yaml`` repeats are those of the code."""

from typing import Any

import pytest

from gateway.domain import video
from gateway.domain.idempotency import MAX_KEY_CHARS
from gateway.domain.image import MAX_IMAGES, MAX_INPUT_IMAGES
from gateway.domain.media import MEDIA_PATH
from gateway.domain.usage import MAX_TOKENS
from gateway.domain.webhook import MAX_WEBHOOK_URL_CHARS
from gateway.formats.audio.speech import MAX_INPUT_CHARS, MEDIA_TYPES
from gateway.formats.embeddings.openai import MAX_DIMENSIONS
from gateway.formats.images.openai import MAX_PROMPT_CHARS
from gateway.formats.moderations import DEFAULT_MODEL
from gateway.formats.rerank import MAX_DOCUMENTS
from gateway.formats.wire.fields import MAX_CHOICES, MAX_MODEL_CHARS
from gateway.server.openapi.document import get_document
from gateway.server.sessions import CONSOLE_HEADER, COOKIE, KEY_HEADER

LIMITS = {
    "ChatCompletionRequest model maxLength": MAX_MODEL_CHARS,
    "ChatCompletionRequest n maximum": MAX_CHOICES,
    "ChatCompletionRequest max_tokens maximum": MAX_TOKENS,
    "ChatCompletionRequest max_completion_tokens maximum": MAX_TOKENS,
    "ResponseRequest max_output_tokens maximum": MAX_TOKENS,
    "CompletionRequest max_tokens maximum": MAX_TOKENS,
    "CompletionRequest n maximum": MAX_CHOICES,
    "CompletionRequest best_of maximum": MAX_CHOICES,
    "MessageRequest max_tokens maximum": MAX_TOKENS,
    "MessageRequest top_k maximum": MAX_TOKENS,
    "EmbeddingsRequest dimensions maximum": MAX_DIMENSIONS,
    "RankingRequest documents maxItems": MAX_DOCUMENTS,
    "RankingRequest top_n maximum": MAX_TOKENS,
    "ModerationRequest model default": DEFAULT_MODEL,
    "ImagesRequest prompt maxLength": MAX_PROMPT_CHARS,
    "ImagesRequest n maximum": MAX_IMAGES,
    "ImageEditForm prompt maxLength": MAX_PROMPT_CHARS,
    "ImageEditForm n maximum": MAX_IMAGES,
    "SpeechRequest input maxLength": MAX_INPUT_CHARS,
    "VideoRequest prompt maxLength": video.MAX_PROMPT_CHARS,
    "VideoRequest webhook_url maxLength": MAX_WEBHOOK_URL_CHARS,
    "VideoForm prompt maxLength": video.MAX_PROMPT_CHARS,
    "VideoForm webhook_url maxLength": MAX_WEBHOOK_URL_CHARS,
    "VideoRemixRequest prompt maxLength": video.MAX_PROMPT_CHARS,
    "VideoRemixRequest webhook_url maxLength": MAX_WEBHOOK_URL_CHARS,
    "VideoRemixForm prompt maxLength": video.MAX_PROMPT_CHARS,
    "VideoRemixForm webhook_url maxLength": MAX_WEBHOOK_URL_CHARS,
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return get_document()


@pytest.mark.parametrize("place", LIMITS)
def test_a_limit_in_the_document_is_the_one_of_the_code(document: dict[str, Any], place: str) -> None:
    schema, field, keyword = place.split()
    assert document["components"]["schemas"][schema]["properties"][field][keyword] == LIMITS[place]


def test_what_else_the_document_repeats_is_that_of_the_code(document: dict[str, Any]) -> None:
    components = document["components"]
    schemas, parameters, session = (
        components["schemas"],
        components["parameters"],
        components["securitySchemes"]["session"],
    )
    assert schemas["SpeechRequest"]["properties"]["response_format"]["enum"] == [*MEDIA_TYPES, None]
    assert schemas["VideoRequest"]["properties"]["seconds"]["anyOf"][1]["maximum"] == video.MAX_SECONDS
    assert schemas["VideoForm"]["properties"]["seconds"]["anyOf"][1]["maximum"] == video.MAX_SECONDS
    assert parameters["IdempotencyKey"]["schema"]["maxLength"] == MAX_KEY_CHARS
    assert parameters["Console"]["name"] == CONSOLE_HEADER
    assert session["name"] == COOKIE
    assert f"`{CONSOLE_HEADER}`" in session["description"]
    assert f"`{KEY_HEADER}`" in session["description"]
    assert f"{MEDIA_PATH}/{{id}}" in document["paths"]
    assert f"to {MAX_INPUT_IMAGES} " in document["paths"]["/v1/images/edits"]["post"]["description"]
