"""Channels that nobody configured. No vendor is ever asked here: what is found is looked at, not called."""

from collections.abc import Mapping

import attrs
import pytest

from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse
from gateway.providers.registry import PROVIDERS
from gateway.routing.discovery import find_keyed_channels, find_local_servers
from gateway.routing.model_catalog import ModelCatalog
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.interface import HttpResponse
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.table_rows import table_rows


@attrs.define
class NoAnswer:
    """An upstream where no server answers; it keeps the addresses it was asked for."""

    asked: list[str] = attrs.Factory(list)

    async def send(self, http_request: HttpRequest) -> HttpResponse:
        self.asked.append(http_request.url)
        raise ProviderBadResponse("nobody", phase="connect")

    async def close(self) -> None:
        """Nothing is open."""


@attrs.define
class Redirected:
    """The real way out, with every address led to one scripted server."""

    base_url: str
    real: PooledHttpClient

    async def send(self, http_request: HttpRequest) -> HttpResponse:
        path = http_request.url.rpartition("/v1")[2]
        return await self.real.send(attrs.evolve(http_request, url=self.base_url + path))

    async def close(self) -> None:
        await self.real.close()


@table_rows(
    ("environ", "slugs"),
    [
        ({}, []),
        ({"OPENAI_API_KEY": "k"}, ["openai"]),
        ({"GEMINI_API_KEY": "g", "OPENAI_API_KEY": "k"}, ["openai", "gemini"]),
        ({"OPENROUTER_API_KEY": "r", "ANTHROPIC_API_KEY": "a"}, ["anthropic", "openrouter"]),
        ({"OPENAI_API_KEY": "  "}, []),
        ({"OPENAI_API_KEY": ""}, []),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "not a URL", "ANTHROPIC_API_KEY": "a"}, ["anthropic"]),
        ({"openai_api_key": "k", "OPENAI_KEY": "k", "PATH": "/bin"}, []),
    ],
)
def test_every_known_key_of_the_environment_is_a_synchronized_channel(
    environ: Mapping[str, str], slugs: list[str]
) -> None:
    found = find_keyed_channels(environ)
    assert [channel.name for channel in found] == slugs
    for channel in found:
        provider = PROVIDERS[channel.provider]
        assert (channel.base_url, channel.sync, channel.origin) == (provider.base_url, True, "environment")
        assert channel.base_url.startswith("https://")


def test_a_keys_blanks_are_no_part_of_it() -> None:
    (channel,) = find_keyed_channels({"OPENAI_API_KEY": " sk-x\n"})
    assert channel.api_keys == ("sk-x",)
    assert "sk-x" not in repr(channel)


def test_a_channel_of_the_environment_is_in_the_catalogue_and_not_sure_of_any_model_yet() -> None:
    catalog = ModelCatalog(clock=lambda: 0.0)
    mine = Channel("mine", "custom", "http://mine/v1", models=("m",))
    catalog.set_channels([*find_keyed_channels({"OPENAI_API_KEY": "k"}), mine])
    assert [channel.name for channel in catalog.channels] == ["openai", "mine"]
    assert [(channel.name, sure) for channel, sure in catalog.list_serving_channels("m")] == [
        ("openai", False),
        ("mine", True),
    ]
    assert catalog.list_models()[0].id == "m"


async def test_where_no_local_server_answers_none_is_found() -> None:
    anonymous = NoAnswer()
    assert await find_local_servers(anonymous, own_port=8080, now_s=1) == []
    assert len(anonymous.asked) == 4
    assert all(url.startswith(("http://127.0.0.1:", "http://localhost:")) for url in anonymous.asked)


@pytest.mark.parametrize("port", [11434, 1234, 8000, 8081])
async def test_the_gateways_own_port_is_not_asked(port: int) -> None:
    anonymous = NoAnswer()
    await find_local_servers(anonymous, own_port=port, now_s=1)
    assert len(anonymous.asked) == 3
    assert not [url for url in anonymous.asked if f":{port}/" in url]


async def test_a_local_server_that_answers_is_a_channel_with_its_models() -> None:
    listing = {"object": "list", "data": [{"id": "llama"}, {"id": "qwen", "created": 5}]}
    async with ScriptedUpstream([answer(listing)]) as up:
        upstream = Redirected(up.base_url, PooledHttpClient())
        found = await find_local_servers(upstream, own_port=8080, now_s=77)
        await upstream.close()
    assert {channel.origin for channel, _ in found} == {"local"}
    assert len(found) == 4
    for _, models in found:
        assert [(model.id, model.created_s, model.owned_by) for model in models] == [
            ("llama", 77, "system"),
            ("qwen", 5, "system"),
        ]


@pytest.mark.parametrize(
    "reply", [answer(b"<html>"), answer({"error": "x"}, 404), answer({"data": 1}), answer(b"", 500)]
)
async def test_what_answers_otherwise_on_such_a_port_is_no_model_server(reply: bytes) -> None:
    async with ScriptedUpstream([reply]) as up:
        upstream = Redirected(up.base_url, PooledHttpClient())
        assert await find_local_servers(upstream, own_port=8080, now_s=1) == []
        await upstream.close()
