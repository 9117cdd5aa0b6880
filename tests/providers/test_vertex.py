"""Requests to Vertex AI: signed by the service account itself, each model in its own format at its own path."""

from typing import Any

import jwt
import pytest

from gateway.domain.channel import Channel
from gateway.domain.operation import OPERATIONS
from gateway.errors import InvalidRequest, ProviderAuthError
from gateway.formats.embeddings.gemini import build_embeddings_body
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.embeddings.vertex import build_predict_body
from gateway.providers.base import EndpointRequest
from gateway.providers.vertex import SCOPE, VERTEX, sign_at
from tests.support.service_account import ACCOUNT, KEY, PRIVATE, pack, read_token
from tests.support.table_rows import table_rows

ROOT = "https://aiplatform.googleapis.com/v1/projects/p/locations/global"
NOON_S = 1_800_000_000


def test_a_token_is_signed_by_the_account_with_a_scope_and_no_audience() -> None:
    token = read_token(sign_at(KEY, NOON_S))
    claims = jwt.decode(
        token, PRIVATE.public_key(), algorithms=["RS256"], options={"verify_exp": False, "verify_iat": False}
    )
    assert claims == {
        "iss": ACCOUNT["client_email"],
        "sub": ACCOUNT["client_email"],
        "scope": SCOPE,
        "iat": NOON_S,
        "exp": NOON_S + 3_600,
    }
    assert jwt.get_unverified_header(token) == {"alg": "RS256", "typ": "JWT", "kid": "key-1"}


def test_a_token_serves_half_an_hour_and_is_valid_as_long_again() -> None:
    first = sign_at(KEY, NOON_S)
    assert sign_at(KEY, NOON_S + 1_799) is not first
    assert sign_at(KEY, NOON_S + 1_799) == first
    later = sign_at(KEY, NOON_S + 1_800)
    assert later != first
    expires_s = jwt.decode(read_token(first), options={"verify_signature": False})["exp"]
    assert expires_s - (NOON_S + 1_799) > 1_800


@table_rows("key", ["ya29.token", "", "key-of-another-kind"])
def test_a_key_that_is_no_key_file_is_sent_as_it_is(key: str) -> None:
    assert sign_at(key, 1) == ({"Authorization": f"Bearer {key}"} if key else {})


@table_rows(
    "file",
    [
        b"{",
        b"\n {",
        {},
        {"client_email": 5},
        ACCOUNT | {"private_key": "no PEM"},
        ACCOUNT | {"private_key": None},
        ACCOUNT | {"private_key_id": None} | {"private_key": 5},
    ],
    ids=repr,
)
def test_a_broken_key_file_is_an_error_of_the_key_and_is_never_sent(file: Any) -> None:
    with pytest.raises(ProviderAuthError) as caught:
        sign_at(pack(file), NOON_S)
    assert "private" not in str(caught.value)


@table_rows(
    ("model", "stream", "url"),
    [
        ("gemini-3-flash", False, "/publishers/google/models/gemini-3-flash:generateContent"),
        ("gemini-3-flash", True, "/publishers/google/models/gemini-3-flash:streamGenerateContent?alt=sse"),
        ("claude-opus-4-1@20250805", False, "/publishers/anthropic/models/claude-opus-4-1%4020250805:rawPredict"),
        ("claude-opus-4-1@20250805", True, "/publishers/anthropic/models/claude-opus-4-1%4020250805:streamRawPredict"),
        ("meta/llama-4-maverick-17b-128e-instruct-maas", True, "/endpoints/openapi/chat/completions"),
        ("google/gemini-3-flash", False, "/endpoints/openapi/chat/completions"),
    ],
)
@table_rows("operation", ["chat", "messages", "generate_content"])
def test_a_model_has_one_format_whatever_the_clients(operation: str, model: str, stream: bool, url: str) -> None:
    endpoint = VERTEX.find_endpoint(OPERATIONS[operation].formats, model)  # type: ignore[index]
    assert endpoint is not None
    request = EndpointRequest(b"{}", stream=stream)
    http_request = VERTEX.build_request(
        Channel("up", "vertex", ROOT), endpoint, request, model=model, key=KEY, now_s=NOON_S
    )
    assert http_request.url == ROOT + url
    assert read_token(http_request.headers) == read_token(sign_at(KEY, NOON_S))


@table_rows(
    ("operation", "model", "url"),
    [
        ("embeddings", "text-embedding-005", "text-embedding-005:predict"),
        ("embeddings", "text-multilingual-embedding-002", "text-multilingual-embedding-002:predict"),
        ("embeddings", "gemini-embedding-2", "gemini-embedding-2:batchEmbedContents"),
        ("embed_contents", "gemini-embedding-2-preview", "gemini-embedding-2-preview:batchEmbedContents"),
        ("images", "gemini-3-pro-image", "gemini-3-pro-image:generateContent"),
        ("image_edits", "gemini-2.5-flash-image", "gemini-2.5-flash-image:generateContent"),
    ],
)
def test_embeddings_and_images_have_their_places(operation: str, model: str, url: str) -> None:
    endpoint = VERTEX.find_endpoint(OPERATIONS[operation].formats, model)  # type: ignore[index]
    assert endpoint is not None
    channel = Channel("up", "vertex", ROOT)
    http_request = VERTEX.build_request(channel, endpoint, EndpointRequest(b"{}"), model=model, key=KEY, now_s=NOON_S)
    assert http_request.url == f"{ROOT}/publishers/google/models/{url}"


@table_rows(("model", "texts"), [("gemini-embedding-001", 2), ("text-embedding-005", 251)])
def test_more_texts_than_a_model_embeds_at_a_time_are_refused(model: str, texts: int) -> None:
    inference = parse_embeddings_inference({"model": "m", "input": ["a"] * texts})
    with pytest.raises(InvalidRequest) as refused:
        build_predict_body(inference, model)
    assert refused.value.param == "input"
    assert build_predict_body(parse_embeddings_inference({"model": "m", "input": "a", "dimensions": 9}), model) == {
        "instances": [{"content": "a"}],
        "parameters": {"outputDimensionality": 9},
    }


def test_the_options_of_an_embedding_have_an_object_of_their_own() -> None:
    endpoint = VERTEX.find_endpoint(("gemini_embeddings",), "gemini-embedding-2")
    assert endpoint is not None
    inference = parse_embeddings_inference({"model": "m", "input": ["a", "b"], "dimensions": 9})
    contents = [{"content": {"parts": [{"text": text}]}} for text in ("a", "b")]
    body = build_embeddings_body(inference, "gemini-embedding-2")
    endpoint.apply_quirks(body, "gemini-embedding-2")
    options = {"embedContentConfig": {"outputDimensionality": 9}}
    assert body == {"requests": [content | options for content in contents]}
    plain = build_embeddings_body(parse_embeddings_inference({"model": "m", "input": ["a", "b"]}), "gemini-embedding-2")
    endpoint.apply_quirks(plain, "gemini-embedding-2")
    assert plain == {"requests": contents}


def test_claude_is_named_in_the_path_alone() -> None:
    endpoint = VERTEX.find_endpoint(("anthropic_messages",), "claude-x")
    assert endpoint is not None
    body = {"model": "claude-x", "max_tokens": 1, "messages": [], "stream": True}
    endpoint.apply_quirks(body, "claude-x")
    assert body == {"max_tokens": 1, "messages": [], "stream": True, "anthropic_version": "vertex-2023-10-16"}
