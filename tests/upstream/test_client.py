"""Which of the two drivers sends what."""

import sys
from collections.abc import AsyncIterator

import pytest

from gateway.domain.http_request import HttpRequest
from gateway.domain.upload import Content
from gateway.errors import ProviderBadResponse
from gateway.upstream.aiohttp_client import AiohttpResponse
from gateway.upstream.client import FallbackHttpClient
from gateway.upstream.fast_client import FastHttpClient, FastHttpResponse
from gateway.upstream.interface import HttpClient
from tests.support.proxies import socks
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.upstream_requests import HEADERS, LIMIT, build_request

HELLO = answer(b"hello")


@pytest.fixture
async def either() -> AsyncIterator[FallbackHttpClient]:
    driver = FallbackHttpClient()
    yield driver
    await driver.close()


async def send(upstream: HttpClient, sent: HttpRequest) -> type:
    response = await upstream.send(sent)
    assert await response.read(LIMIT) in {b"hello", b""}
    response.close()
    return type(response)


async def test_requests_are_sent_by_our_own_driver(either: FallbackHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        assert await send(either, build_request(up)) is FastHttpResponse
        assert await send(either, HttpRequest("GET", up.base_url, HEADERS)) is FastHttpResponse
        assert await send(either, HttpRequest("POST", up.base_url, HEADERS, Content((b"a", b"b")))) is FastHttpResponse
        assert await send(either, build_request(up, proxy=f"http://127.0.0.1:{up.port}")) is FastHttpResponse
        assert either._ordinary is None


async def test_what_it_cannot_send_is_sent_the_ordinary_way(either: FallbackHttpClient) -> None:
    async with ScriptedUpstream([answer(b"")]) as up:
        assert await send(either, HttpRequest("HEAD", up.base_url, HEADERS)) is AiohttpResponse


@pytest.mark.parametrize(
    ("url", "proxy", "taken"),
    [
        ("https://host/", None, True),
        ("http://host/", "http://proxy", True),
        ("https://host/", "socks5://proxy", True),
        ("https://host/", "SOCKS5H://proxy", True),
        ("https://host/", "https://proxy", False),
        ("https://host/", "socks4://proxy", False),
        ("unix://host/", None, False),
    ],
)
async def test_it_says_what_it_takes(url: str, proxy: str | None, taken: bool) -> None:
    assert FastHttpClient().takes(HttpRequest("GET", url, {}, proxy=proxy)) is taken


async def test_everything_may_be_sent_the_ordinary_way() -> None:
    driver = FallbackHttpClient(ordinary=True)
    async with ScriptedUpstream([HELLO]) as up:
        assert await send(driver, build_request(up)) is AiohttpResponse
    await driver.close()


async def test_where_llhttp_is_missing_everything_is_sent_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)
    driver = FallbackHttpClient()
    async with ScriptedUpstream([HELLO]) as up:
        assert await send(driver, build_request(up)) is AiohttpResponse
    await driver.close()


async def test_a_socks_proxy_is_served_and_where_it_cannot_be_that_is_said(either: FallbackHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up, socks(up.port) as proxy:
        sent = HttpRequest(
            "POST", "http://10.1.2.3/", HEADERS, Content((b"a", b"b")), proxy=f"socks5://127.0.0.1:{proxy.port}"
        )
        assert await send(either, sent) is FastHttpResponse
        await either.close()
        ordinary = FallbackHttpClient(ordinary=True)
        with pytest.raises(ProviderBadResponse, match="SOCKS") as caught:
            await ordinary.send(sent)
        assert caught.value.phase == "connect"
        await ordinary.close()


async def test_what_was_never_used_is_closed_too() -> None:
    await FallbackHttpClient().close()
    await FallbackHttpClient(ordinary=True).close()
