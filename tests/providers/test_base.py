"""What is sent to a provider: our headers and the channel's, and nothing else."""

import attrs
import pytest

from gateway.domain.channel import Channel, Timeouts
from gateway.providers.base import Path, Provider, find_url_problem, keep_model_id, sign_bearer
from gateway.providers.registry import PROVIDERS

CHANNEL = Channel("up", "custom", "http://host:1/v1", timeouts=Timeouts(1, 2, 3, 4), proxy="http://proxy:3128")
OURS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
PATHS: tuple[Path, ...] = ("/chat/completions", "/embeddings")


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=lambda provider: provider.slug)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("stream", "accept"), [(True, "text/event-stream"), (False, "application/json")])
def test_a_post_carries_the_body_and_no_header_but_ours(
    provider: Provider, path: Path, stream: bool, accept: str
) -> None:
    plan = provider.plan_post(CHANNEL, path, "the-key", b"body", stream=stream)
    assert (plan.method, plan.url, plan.body) == ("POST", "http://host:1/v1" + path, b"body")
    assert (plan.timeouts, plan.proxy) == (CHANNEL.timeouts, CHANNEL.proxy)
    assert plan.headers == OURS | {"Accept": accept, "Authorization": "Bearer the-key"}


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=lambda provider: provider.slug)
def test_without_a_key_nothing_is_signed(provider: Provider) -> None:
    plan = provider.plan_post(CHANNEL, "/chat/completions", "", b"", stream=False)
    assert plan.headers == OURS | {"Accept": "application/json"}


LISTS = {
    slug: ("http://host:1/v1/models", {"Authorization": "Bearer the-key"}) for slug in PROVIDERS if slug != "anthropic"
}
LISTS["anthropic"] = (
    "http://host:1/v1/models?limit=1000",
    {"x-api-key": "the-key", "anthropic-version": "2023-06-01"},
)


@pytest.mark.parametrize("slug", LISTS)
def test_a_model_list_is_asked_for_as_its_vendor_documents(slug: str) -> None:
    url, signature = LISTS[slug]
    plan = PROVIDERS[slug].plan_models(CHANNEL, "the-key")
    assert (plan.method, plan.url, plan.body) == ("GET", url, None)
    assert (plan.timeouts, plan.proxy) == (CHANNEL.timeouts, CHANNEL.proxy)
    assert plan.headers == {"Accept": "application/json", "Accept-Encoding": "identity", **signature}


def test_a_channels_own_headers_are_added_and_win() -> None:
    channel = attrs.evolve(CHANNEL, headers=(("X-Title", "us"), ("Authorization", "Basic x")))
    for plan in (
        PROVIDERS["custom"].plan_post(channel, "/embeddings", "the-key", b"", stream=False),
        PROVIDERS["custom"].plan_models(channel, "the-key"),
    ):
        assert plan.headers["X-Title"] == "us"
        assert plan.headers["Authorization"] == "Basic x"


@pytest.mark.parametrize("name", ["authorization", "AUTHORIZATION", "content-type", "accept-encoding"])
def test_a_channels_own_header_replaces_ours_in_any_spelling(name: str) -> None:
    channel = attrs.evolve(CHANNEL, headers=((name, "theirs"),))
    for plan in (
        PROVIDERS["custom"].plan_post(channel, "/embeddings", "the-key", b"", stream=False),
        PROVIDERS["custom"].plan_models(channel, "the-key"),
    ):
        assert [value for header, value in plan.headers.items() if header.lower() == name.lower()] == ["theirs"]


def test_a_plan_never_shows_headers_body_or_proxy() -> None:
    plan = PROVIDERS["openai"].plan_post(CHANNEL, "/embeddings", "the-key", b"secret", stream=False)
    for secret in ("the-key", "secret", "proxy"):
        assert secret not in repr(plan).replace("proxy=", "")


def test_a_key_is_signed_as_a_bearer() -> None:
    assert sign_bearer("k") == {"Authorization": "Bearer k"}
    assert sign_bearer("") == {}


def test_ids_of_models_are_kept_but_for_geminis_prefix() -> None:
    assert keep_model_id("models/x") == "models/x"
    assert PROVIDERS["gemini"].read_model_id("models/gemini-2.5-pro") == "gemini-2.5-pro"
    assert PROVIDERS["gemini"].read_model_id("gemini-2.5-pro") == "gemini-2.5-pro"
    assert PROVIDERS["openrouter"].read_model_id("openai/gpt-4o:free") == "openai/gpt-4o:free"


@pytest.mark.parametrize(
    "url", ["http://x", "https://api.example.com/v1", "http://127.0.0.1:1234/v1/", "http://[::1]:80", "HTTPS://X/v1"]
)
def test_a_base_url_with_a_scheme_and_a_host_is_taken(url: str) -> None:
    assert find_url_problem(url) is None


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("url", ["http://a b/v1", "http://x/a b", "http://x\n/v1", "http://x/\x00"])
def test_a_base_url_with_white_space_or_control_characters_is_refused(url: str) -> None:
    assert find_url_problem(url) is not None
