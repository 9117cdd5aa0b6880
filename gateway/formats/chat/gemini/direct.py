"""Passthrough for channels with Gemini's API, and direct conversions between this API and others."""

from typing import Any

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import NO_USAGE
from gateway.formats.chat.anthropic.request_reader import parse_chat_request
from gateway.formats.chat.anthropic.response import build_count_answer
from gateway.formats.chat.gemini import passthrough, request_writer, token_counts
from gateway.formats.chat.gemini.passthrough_body import build_passed_body
from gateway.formats.chat.valid_chat import make_valid
from gateway.formats.embeddings import gemini as embeddings
from gateway.formats.embeddings import gemini_clients as client_embeddings
from gateway.formats.embeddings import vertex
from gateway.formats.errors.openai import Secrets
from gateway.formats.passthrough_format import (
    ParsedAnswer,
    PassthroughFormat,
    free_answer,
    unchanged_answer,
    without_identity,
)
from gateway.formats.translator import ResponseIdentity


def _build_count_body(inference: InferenceRequest, model: str) -> dict[str, Any]:
    valid_chat = make_valid(parse_chat_request(inference.body), request_writer.find_rules(model), model)
    return request_writer.build_count_body(valid_chat.request, model)


def _parse_count(
    raw: bytes, _inference: InferenceRequest, _identity: ResponseIdentity, secrets: Secrets
) -> ParsedAnswer:
    return build_count_answer(request_writer.parse_count_answer(raw, secrets)), NO_USAGE


GENERATE = PassthroughFormat(
    build_passed_body,
    unchanged_answer(passthrough.parse_passed_answer),
    passthrough.GenerateContentPassthrough,
    passthrough.build_whole,
)
COUNT_TOKENS = PassthroughFormat(_build_count_body, _parse_count)
EMBEDDINGS = PassthroughFormat(
    embeddings.build_embeddings_body,
    lambda raw, inference, identity, secrets: embeddings.parse_embeddings_answer(
        raw, inference, identity.model, secrets
    ),
)
VERTEX_EMBEDDINGS = PassthroughFormat(
    vertex.build_predict_body,
    lambda raw, inference, identity, secrets: vertex.parse_predict_answer(raw, inference, identity.model, secrets),
)
# Operations for clients of Gemini's API.
CONTENT_COUNT = PassthroughFormat(token_counts.build_gemini_body, free_answer(token_counts.check_gemini_answer))
ANTHROPIC_CONTENT_COUNT = PassthroughFormat(
    token_counts.build_anthropic_body, free_answer(token_counts.convert_anthropic_answer)
)
CONTENTS = PassthroughFormat(client_embeddings.build_batch_body, without_identity(client_embeddings.parse_batch_answer))
OPENAI_CONTENTS = PassthroughFormat(
    client_embeddings.build_openai_body, without_identity(client_embeddings.build_google_answer)
)
