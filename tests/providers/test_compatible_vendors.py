"""Vendors with the OpenAI format at their own address: the request as sent, and the model list as it arrives.

Their answers, streams and errors have the format's own shapes, which tests/formats/chat/openai covers.
"""

from pathlib import Path
from typing import Any

import orjson

from gateway.domain.channel import Channel
from gateway.domain.operation import OPERATIONS
from gateway.formats.model_lists.openai import parse_models
from gateway.providers.base import EndpointRequest, Provider
from gateway.providers.custom import CUSTOM
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

TABLE: dict[str, Any] = orjson.loads((Path(__file__).parent / "compatible_vendors.json").read_bytes())


def open_channel(provider: Provider) -> Channel:
    return Channel(provider.slug, provider.slug, provider.base_url or "https://gateway.example/v1")


@table_rows("slug", TABLE)
def test_a_chat_is_sent_as_recorded(slug: str) -> None:
    provider, case = PROVIDERS[slug], TABLE[slug]
    endpoint = provider.find_endpoint(OPERATIONS["chat"].formats, case["asked"]["model"])
    assert endpoint is not None
    body = dict(case["asked"])
    endpoint.apply_quirks(body, body["model"])
    http_request = provider.build_request(
        open_channel(provider), endpoint, EndpointRequest(orjson.dumps(body)), model=body["model"], key="k"
    )
    assert (http_request.url, http_request.headers["Authorization"], body) == (case["url"], "Bearer k", case["sent"])


@table_rows("slug", TABLE)
def test_a_model_list_is_read_as_recorded(slug: str) -> None:
    provider, case = PROVIDERS[slug], TABLE[slug]
    if case["listed"] is None:
        assert provider.models_path is None
        return
    http_request = provider.build_models_request(open_channel(provider), "k")
    assert http_request.url == f"{provider.base_url}/models"
    found = parse_models(orjson.dumps(case["listed"]), owned_by=slug, now_s=1)
    assert [model.id for model in found] == case["models"]


@table_rows(
    ("field", "value"), [("parallel_tool_calls", False), ("service_tier", "flex"), ("service_tier", "priority")]
)
def test_cerebras_rejects_what_a_client_would_miss(field: str, value: object) -> None:
    endpoint = PROVIDERS["cerebras"].endpoints[0]
    body = {"messages": [], field: value}
    endpoint.apply_quirks(body, "m")
    assert body == {"messages": [], field: value}


def test_perplexitys_agent_is_at_the_root() -> None:
    perplexity = PROVIDERS["perplexity"]
    endpoint = perplexity.find_endpoint(("openai_responses",), "perplexity/sonar")
    assert endpoint is not None
    http_request = perplexity.build_request(
        open_channel(perplexity), endpoint, EndpointRequest(b"{}"), model="m", key="k"
    )
    assert http_request.url == "https://api.perplexity.ai/v1/responses"


OWN_FORMAT = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "count_tokens": "/v1/messages/count_tokens",
    "generate_content": "/v1beta/models/a/b:generateContent",
    "count_content_tokens": "/v1beta/models/a/b:countTokens",
    "embed_contents": "/v1beta/models/a/b:batchEmbedContents",
    "embeddings": "/v1/embeddings",
    "completions": "/v1/completions",
    "moderations": "/v1/moderations",
    "rerank": "/v1/rerank",
    "responses": "/v1/responses",
    "images": "/v1/images/generations",
    "image_edits": "/v1/images/edits",
    "transcriptions": "/v1/audio/transcriptions",
    "translations": "/v1/audio/translations",
    "speech": "/v1/audio/speech",
    "videos": "/v1/videos",
    "video_remixes": "/v1/videos",
    "realtime": "/v1/realtime?model=a%2Fb",
}


def test_another_gateway_gets_every_operation_in_the_clients_own_format() -> None:
    other = PROVIDERS["model_gateway"]
    channel = open_channel(other)
    found = {}
    for operation, facts in OPERATIONS.items():
        endpoint = other.find_endpoint(facts.formats, "a/b")
        assert endpoint is not None
        assert endpoint.wire == facts.formats[0]
        assert not endpoint.quirks
        http_request = other.build_request(channel, endpoint, EndpointRequest(b"{}"), model="a/b", key="k")
        assert http_request.headers["Authorization"] == "Bearer k"
        found[operation] = http_request.url.removeprefix("https://gateway.example")
    assert found == OWN_FORMAT
    assert other.priced_fields == CUSTOM.priced_fields
