"""Which of the two drivers sends what."""

import sys
from collections.abc import AsyncIterator

import pytest

from gateway.domain.http_request import Plan
from gateway.domain.upload import Content
from gateway.errors import UpstreamError
from gateway.upstream.aiohttp_client import AiohttpReply
from gateway.upstream.client import EitherUpstream
from gateway.upstream.fast_client import WireReply, WireUpstream
from gateway.upstream.interface import Upstream
from tests.support.proxies import socks
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.upstream_requests import HEADERS, LIMIT, plan

HELLO = answer(b"hello")


@pytest.fixture
async def either() -> AsyncIterator[EitherUpstream]:
    driver = EitherUpstream()
    yield driver
    await driver.close()


async def send(upstream: Upstream, sent: Plan) -> type:
    reply = await upstream.send(sent)
    assert await reply.read(LIMIT) in {b"hello", b""}
    reply.close()
    return type(reply)


async def test_requests_are_sent_by_our_own_driver(either: EitherUpstream) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        assert await send(either, plan(up)) is WireReply
        assert await send(either, Plan("GET", up.base_url, HEADERS)) is WireReply
        assert await send(either, Plan("POST", up.base_url, HEADERS, Content((b"a", b"b")))) is WireReply
        assert await send(either, plan(up, proxy=f"http://127.0.0.1:{up.port}")) is WireReply
        assert either._ordinary is None


async def test_what_it_cannot_send_is_sent_the_ordinary_way(either: EitherUpstream) -> None:
    async with ScriptedUpstream([answer(b"")]) as up:
        assert await send(either, Plan("HEAD", up.base_url, HEADERS)) is AiohttpReply


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
    assert WireUpstream().takes(Plan("GET", url, {}, proxy=proxy)) is taken


async def test_everything_may_be_sent_the_ordinary_way() -> None:
    driver = EitherUpstream(ordinary=True)
    async with ScriptedUpstream([HELLO]) as up:
        assert await send(driver, plan(up)) is AiohttpReply
    await driver.close()


async def test_where_llhttp_is_missing_everything_is_sent_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)
    driver = EitherUpstream()
    async with ScriptedUpstream([HELLO]) as up:
        assert await send(driver, plan(up)) is AiohttpReply
    await driver.close()


async def test_a_socks_proxy_is_served_and_where_it_cannot_be_that_is_said(either: EitherUpstream) -> None:
    async with ScriptedUpstream([HELLO]) as up, socks(up.port) as proxy:
        sent = Plan(
            "POST", "http://10.1.2.3/", HEADERS, Content((b"a", b"b")), proxy=f"socks5://127.0.0.1:{proxy.port}"
        )
        assert await send(either, sent) is WireReply
        await either.close()
        ordinary = EitherUpstream(ordinary=True)
        with pytest.raises(UpstreamError, match="SOCKS") as caught:
            await ordinary.send(sent)
        assert caught.value.phase == "connect"
        await ordinary.close()


async def test_what_was_never_used_is_closed_too() -> None:
    await EitherUpstream().close()
    await EitherUpstream(ordinary=True).close()
