"""What is sent to a provider: our headers and the channel's, and nothing else."""

import attrs

from gateway.domain.api_format import Wire
from gateway.domain.channel import Channel, Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.providers.base import (
    CHAT,
    EMBEDDINGS,
    Endpoint,
    EndpointRequest,
    Provider,
    find_url_problem,
    keep_model_id,
    sign_bearer,
)
from gateway.providers.registry import PROVIDERS
from tests.support.table_rows import table_rows

CHANNEL = Channel("up", "custom", "http://host:1/v1", timeouts=Timeouts(1, 2, 3, 4), proxy="http://proxy:3128")
OURS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
BEARER = {"Authorization": "Bearer the-key"}
SIGNED = dict.fromkeys(PROVIDERS, BEARER) | {
    "anthropic": {"x-api-key": "the-key", "anthropic-version": "2023-06-01"},
    "azure_openai": {"api-key": "the-key"},
    "bedrock": BEARER | {"anthropic-version": "2023-06-01"},
    "deepgram": {"Authorization": "Token the-key"},
    "elevenlabs": {"xi-api-key": "the-key"},
    "bfl": {"x-key": "the-key"},
    "fal": {"Authorization": "Key the-key"},
    "fal_queue": {"Authorization": "Key the-key"},
    "gemini": {"x-goog-api-key": "the-key"},
}
LISTS = dict.fromkeys(PROVIDERS, "/models") | {
    "anthropic": "/models?limit=1000",
    "azure_openai": None,
    "bedrock_converse": None,
    "deepgram": None,
    "elevenlabs": None,
    "bfl": None,
    "fal": None,
    "fal_queue": None,
    "luma": None,
    "stability": None,
    "cohere": "/v1/models?page_size=1000",
    "gemini": "/models?pageSize=1000",
    "kling": None,
    "minimax": None,
    "qianfan": None,
    "replicate": None,
    "runway": None,
    "vertex": None,
    "volcengine": None,
    "voyage": None,
}


def plan_json(provider: Provider, endpoint: Endpoint, *, model: str = "m", key: str = "the-key") -> HttpRequest:
    """A request that would say the least."""
    return provider.build_request(CHANNEL, endpoint, EndpointRequest(b"{}"), model=model, key=key)


@table_rows("provider", PROVIDERS.values(), ids=lambda provider: provider.slug)
@table_rows(("stream", "accept"), [(True, "text/event-stream"), (False, "application/json")])
def test_a_post_carries_the_body_and_no_header_but_ours(provider: Provider, stream: bool, accept: str) -> None:
    endpoint_request = EndpointRequest(b"body", stream=stream, accept=accept)
    for endpoint in provider.endpoints:
        http_request = provider.build_request(CHANNEL, endpoint, endpoint_request, model="some/model", key="the-key")
        path = ((endpoint.stream_path if stream else None) or endpoint.path).replace(
            "{model}", "some/model" if endpoint.rooted else "some%2Fmodel"
        )
        base = "http://host:1" if endpoint.rooted else "http://host:1/v1"
        assert (http_request.method, http_request.url, http_request.body) == ("POST", base + path, b"body"), endpoint
        assert (http_request.timeouts, http_request.proxy) == (CHANNEL.timeouts, CHANNEL.proxy), endpoint
        assert http_request.headers == OURS | {"Accept": accept} | SIGNED[provider.slug], endpoint


@table_rows("provider", PROVIDERS.values(), ids=lambda provider: provider.slug)
def test_without_a_key_nothing_is_signed(provider: Provider) -> None:
    version = {"anthropic-version": "2023-06-01"} if provider.slug in {"anthropic", "bedrock"} else {}
    http_request = plan_json(provider, provider.endpoints[0], key="")
    assert http_request.headers == OURS | {"Accept": "application/json"} | version


@table_rows("slug", [slug for slug, path in LISTS.items() if path])
def test_a_model_list_is_asked_for_as_its_vendor_documents(slug: str) -> None:
    http_request = PROVIDERS[slug].build_models_request(CHANNEL, "the-key")
    assert (http_request.method, http_request.url, http_request.body) == ("GET", f"http://host:1/v1{LISTS[slug]}", None)
    assert (http_request.timeouts, http_request.proxy) == (CHANNEL.timeouts, CHANNEL.proxy)
    assert http_request.headers == {"Accept": "application/json", "Accept-Encoding": "identity"} | SIGNED[slug]


def test_gemini_and_cohere_list_their_models_in_another_shape_and_some_not_at_all() -> None:
    assert {slug for slug, found in PROVIDERS.items() if found.list_format != "openai"} == {"gemini", "cohere"}
    silent = {slug for slug, found in PROVIDERS.items() if found.models_path is None}
    assert silent == {slug for slug, path in LISTS.items() if path is None}


@table_rows(
    ("stream", "url"),
    [
        (False, "https://x/v1beta/models/gemini-3-flash:generateContent"),
        (True, "https://x/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse"),
    ],
)
def test_a_model_in_a_path_and_a_path_of_its_own_for_streams(stream: bool, url: str) -> None:
    gemini = PROVIDERS["gemini"]
    channel = Channel("g", "gemini", "https://x/v1beta")
    endpoint_request = EndpointRequest(b"{}", stream=stream)
    http_request = gemini.build_request(channel, gemini.endpoints[0], endpoint_request, model="gemini-3-flash", key="k")
    assert http_request.url == url


@table_rows(
    "model",
    [
        "../../secret",
        "..",
        ".",
        "//evil.example/",
        "a?b=c",
        "a#b",
        "a b",
        "a\\b",
        "a%2e",
        "%2e%2e%2f",
        "a\r\nb",
        "\x00",
        "ü",
        "models/x:y",
        "",
    ],
)
def test_a_models_name_cannot_leave_its_place_in_the_path(model: str) -> None:
    gemini = PROVIDERS["gemini"]
    http_request = plan_json(gemini, gemini.endpoints[0], model=model)
    name = http_request.url.removeprefix("http://host:1/v1/models/").removesuffix(":generateContent")
    assert name.isascii()
    assert set("/?# :").isdisjoint(name)


def test_extra_headers_of_ours_are_sent_and_a_channels_win_over_them() -> None:
    provider = PROVIDERS["anthropic"]
    channel = attrs.evolve(CHANNEL, headers=(("Anthropic-Beta", "theirs"),))
    for sent, expected in ((CHANNEL, "ours"), (channel, "theirs")):
        endpoint_request = EndpointRequest(b"{}", headers=(("anthropic-beta", "ours"),))
        http_request = provider.build_request(sent, provider.endpoints[0], endpoint_request, model="m", key="k")
        assert [value for name, value in http_request.headers.items() if name.lower() == "anthropic-beta"] == [expected]


def test_a_channels_own_headers_are_added_and_win() -> None:
    channel = attrs.evolve(CHANNEL, headers=(("X-Title", "us"), ("Authorization", "Basic x")))
    for http_request in (
        PROVIDERS["custom"].build_request(channel, EMBEDDINGS, EndpointRequest(b"{}"), model="m", key="the-key"),
        PROVIDERS["custom"].build_models_request(channel, "the-key"),
    ):
        assert http_request.headers["X-Title"] == "us"
        assert http_request.headers["Authorization"] == "Basic x"


@table_rows("name", ["authorization", "AUTHORIZATION", "content-type", "accept-encoding"])
def test_a_channels_own_header_replaces_ours_in_any_spelling(name: str) -> None:
    channel = attrs.evolve(CHANNEL, headers=((name, "theirs"),))
    for http_request in (
        PROVIDERS["custom"].build_request(channel, EMBEDDINGS, EndpointRequest(b"{}"), model="m", key="the-key"),
        PROVIDERS["custom"].build_models_request(channel, "the-key"),
    ):
        assert [value for header, value in http_request.headers.items() if header.lower() == name.lower()] == ["theirs"]


def test_a_plan_never_shows_headers_body_or_proxy() -> None:
    http_request = PROVIDERS["openai"].build_request(
        CHANNEL, CHAT, EndpointRequest(b"secret"), model="m", key="the-key"
    )
    for secret in ("the-key", "secret", "proxy"):
        assert secret not in repr(http_request).replace("proxy=", "")


def test_the_language_that_was_asked_for_first_is_found_first() -> None:
    vllm, anthropic, groq = (PROVIDERS[slug] for slug in ("vllm", "anthropic", "groq"))
    both: tuple[Wire, ...] = ("anthropic_messages", "openai_chat")
    assert vllm.find_endpoint(("anthropic_messages", "openai_chat"), "m") == Endpoint("anthropic_messages", "/messages")
    assert vllm.find_endpoint(("openai_chat", "anthropic_messages"), "m") == vllm.endpoints[0]
    assert [
        found.wire for found in (anthropic.find_endpoint(both, "m"), groq.find_endpoint(both, "m")) if found
    ] == list(both)
    assert groq.find_endpoint(("openai_embeddings", "gemini_embeddings"), "m") is None


def test_a_language_that_is_for_some_models_is_found_for_these_alone() -> None:
    image_backend = Endpoint("openai_images", "/images/generations", models=("paint-*", "brush"))
    provider = Provider("x", "X", endpoints=(CHAT, image_backend))
    for model in ("paint-1", "brush"):
        assert provider.find_endpoint(("openai_images",), model) is image_backend
    assert provider.find_endpoint(("openai_images",), "chat-1") is None


def test_an_errand_may_go_elsewhere_by_another_method_and_without_a_body() -> None:
    rooted = Endpoint("dashscope_images", "/api/v1/{model}/pictures", rooted=True)
    endpoint_request = EndpointRequest(None, method="GET", path="/api/v1/tasks/1")
    http_request = PROVIDERS["custom"].build_request(CHANNEL, rooted, endpoint_request, model="a/b", key="k")
    assert (http_request.method, http_request.url, http_request.body) == ("GET", "http://host:1/api/v1/tasks/1", None)
    assert "Content-Type" not in http_request.headers
    assert plan_json(PROVIDERS["custom"], rooted, model="a/b?c").url == "http://host:1/api/v1/a/b%3Fc/pictures"


def test_a_key_is_signed_as_a_bearer() -> None:
    assert sign_bearer("k") == {"Authorization": "Bearer k"}
    assert sign_bearer("") == {}


def test_ids_of_models_are_kept_but_for_geminis_prefix() -> None:
    assert keep_model_id("models/x") == "models/x"
    assert PROVIDERS["gemini"].parse_model_id("models/gemini-2.5-pro") == "gemini-2.5-pro"
    assert PROVIDERS["gemini"].parse_model_id("gemini-2.5-pro") == "gemini-2.5-pro"
    assert PROVIDERS["openrouter"].parse_model_id("openai/gpt-4o:free") == "openai/gpt-4o:free"


@table_rows(
    "url", ["http://x", "https://api.example.com/v1", "http://127.0.0.1:1234/v1/", "http://[::1]:80", "HTTPS://X/v1"]
)
def test_a_base_url_with_a_scheme_and_a_host_is_taken(url: str) -> None:
    assert find_url_problem(url) is None


@table_rows(
    ("url", "why"),
    [
        ("", "host"),
        ("x", "host"),
        ("api.example.com/v1", "host"),
        ("ftp://x", "host"),
        ("file:///etc/passwd", "host"),
        ("http://", "host"),
        ("http:///v1", "host"),
        ("http://:80/v1", "host"),
        ("http://x:0", "host"),
        ("http://x:70000", "ort"),
        ("http://x:port", "ort"),
        ("http://[::1", "IPv6"),
        ("http://x?a=1", "query"),
        ("http://x#a", "fragment"),
        ("http://x/v1?", "query"),
        ("http://x/v1#", "fragment"),
        ("http://@x", "credentials"),
        ("http://:@x/v1", "credentials"),
        ("http://x\\@y/v1", "credentials"),
        ("http://user@x", "credentials"),
        ("http://user:pass@x", "credentials"),
        ("http://:pass@x", "credentials"),
    ],
)
def test_any_other_base_url_is_refused_and_told_why(url: str, why: str) -> None:
    problem = find_url_problem(url)
    assert problem is not None
    assert why in problem
    assert "pass" not in problem


@table_rows("url", ["http://a b/v1", "http://x/a b", "http://x\n/v1", "http://x/\x00"])
def test_a_base_url_with_white_space_or_control_characters_is_refused(url: str) -> None:
    assert find_url_problem(url) is not None
