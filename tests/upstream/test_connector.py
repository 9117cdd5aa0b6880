"""From an address to a connection: names, two addresses of one name, TLS that is not to be trusted, proxies."""

import asyncio
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.connection import find_no_data
from gateway.upstream.dns_cache import MAX_NAMES, DnsCache, find_literal, resolve
from tests.support.proxies import make_context, socks, tunnel
from tests.support.scripted_upstream import FIN, STALL, ScriptedUpstream, answer
from tests.support.upstream_lines import list_lines
from tests.support.upstream_requests import HEADERS, LIMIT, TIMEOUTS, ask, build_request, until

HELLO = answer(b"hello")
Info = tuple[Any, ...]


def at(port: int, address: str = "127.0.0.1") -> Info:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))


@attrs.define
class Book:
    """A resolver whose every name is here."""

    infos: list[Info] = attrs.field(factory=list)
    asked: list[tuple[str, int]] = attrs.field(factory=list)
    wait_s: float = 0

    async def find(self, host: str, port: int) -> list[Info]:
        self.asked.append((host, port))
        await asyncio.sleep(self.wait_s)
        if not self.infos:
            raise socket.gaierror("no such name")
        return self.infos


@asynccontextmanager
async def opened(
    book: Book, open_tls_context: Callable[[], ssl.SSLContext] | None = None
) -> AsyncIterator[PooledHttpClient]:
    driver = PooledHttpClient(book.find) if open_tls_context is None else PooledHttpClient(book.find, open_tls_context)
    try:
        yield driver
    finally:
        await driver.close()


async def get(upstream: PooledHttpClient, url: str, timeouts: Timeouts = TIMEOUTS, proxy: str | None = None) -> bytes:
    response = await upstream.send(HttpRequest("POST", url, HEADERS, b"{}", timeouts, proxy))
    try:
        return await response.read(LIMIT)
    finally:
        response.close()


# Names.


async def test_a_name_is_asked_for_once_in_a_while_and_an_address_never(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        book = Book([at(up.port)])
        async with opened(book) as driver:
            for _ in range(2):
                response = await driver.send(build_request(up, url=f"http://provider.test:{up.port}/v1", once=True))
                response.close()
            await ask(driver, up)
        assert book.asked == [("provider.test", up.port)]
        assert up.received[0].headers["host"] == f"provider.test:{up.port}"


async def test_those_who_ask_for_a_name_at_once_share_one_search_and_none_stops_it_for_the_others() -> None:
    book = Book([at(1)], wait_s=0.03)
    names = DnsCache(book.find)
    first, second, third = (asyncio.create_task(names.find("provider.test", 1)) for _ in range(3))
    await asyncio.sleep(0.01)
    first.cancel()
    assert await second == await third == book.infos
    assert len(book.asked) == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_no_answer_is_remembered_where_there_was_none() -> None:
    book = Book()
    names = DnsCache(book.find)
    for _ in range(2):
        with pytest.raises(OSError, match="no such name"):
            await names.find("provider.test", 1)
    book.infos.append(at(1))
    assert await names.find("provider.test", 1) == book.infos
    assert len(book.asked) == 3


async def test_a_search_that_everybody_left_ends_unheard_and_close_ends_one_that_runs(
    upstream: PooledHttpClient,
) -> None:
    book = Book(wait_s=0.02)
    names = DnsCache(book.find)
    asking = asyncio.create_task(names.find("provider.test", 1))
    await asyncio.sleep(0.005)
    asking.cancel()
    await asyncio.sleep(0.03)
    book.wait_s = 3600
    asking = asyncio.create_task(names.find("provider.test", 1))
    await asyncio.sleep(0)
    await names.close()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_addresses_on_which_nobody_answers_are_not_remembered(upstream: PooledHttpClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        book = Book([at(taken.getsockname()[1])])
        async with ScriptedUpstream([HELLO]) as up, opened(book) as driver:
            with pytest.raises(ProviderBadResponse, match="could not be reached"):
                await get(driver, "http://provider.test/")
            book.infos[:] = [at(up.port)]
            assert await get(driver, "http://provider.test/") == b"hello"


async def test_few_names_are_remembered() -> None:
    book = Book([at(1)])
    names = DnsCache(book.find)
    for number in range(MAX_NAMES + 1):
        await names.find(f"host-{number}.test", 1)
    assert len(names._entries) == 1


async def test_the_systems_own_names_are_found() -> None:
    assert {info[4][1] for info in await resolve("localhost", 80)} == {80}
    assert find_literal("127.0.0.1", 80)[0][4] == ("127.0.0.1", 80)
    assert find_literal("::1", 80)[0][4][:2] == ("::1", 80)
    assert find_literal("localhost", 80) == find_literal("x" * 300, 80) == []


@pytest.mark.parametrize(
    "url", ["http://no-such-name.invalid/", f"http://{'x' * 64}.test/"], ids=["unknown", "no name"]
)
async def test_a_name_that_leads_nowhere_is_an_error(upstream: PooledHttpClient, url: str) -> None:
    with pytest.raises(ProviderBadResponse) as caught:
        await get(upstream, url)
    assert caught.value.phase == "connect"


async def test_where_one_address_does_not_answer_the_next_is_tried(upstream: PooledHttpClient) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        anonymous = at(taken.getsockname()[1])
        async with ScriptedUpstream([HELLO]) as up, opened(Book([anonymous, at(up.port)])) as driver:
            assert await get(driver, "http://provider.test/") == b"hello"


async def test_an_address_that_says_nothing_is_not_waited_for_to_the_end(upstream: PooledHttpClient) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        deaf = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(deaf)
        async with ScriptedUpstream([HELLO]) as up, opened(Book([at(deaf[1]), at(up.port)])) as driver:
            assert await get(driver, "http://provider.test/", timeouts=Timeouts(connect_s=2)) == b"hello"
            with pytest.raises(ProviderTimeout) as caught:
                await get(driver, f"http://127.0.0.1:{deaf[1]}/", timeouts=Timeouts(connect_s=0.05))
            assert caught.value.phase == "connect"
        for sock in waiting:
            sock.close()


@pytest.mark.parametrize(("addresses", "is_raced"), [(1, False), (2, True)])
async def test_the_event_loop_opens_the_socket_to_the_only_address(
    upstream: PooledHttpClient, addresses: int, *, is_raced: bool
) -> None:
    """A socket that uvloop is given costs three times as much CPU time."""
    callers: set[str] = set()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            callers.add(frame.f_globals.get("__name__", ""))

    async with ScriptedUpstream([HELLO]) as up, opened(Book([at(up.port)] * addresses)) as driver:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            assert await get(driver, "http://provider.test/") == b"hello"
        finally:
            sys.setprofile(before)
    assert ("aiohappyeyeballs.impl" in callers) is is_raced


async def test_the_time_to_connect_is_for_the_name_too(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up, opened(Book([at(up.port)], wait_s=3600)) as driver:
        with pytest.raises(ProviderTimeout) as caught:
            await get(driver, "http://provider.test/", timeouts=Timeouts(connect_s=0.03))
        assert caught.value.phase == "connect"


# TLS.


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    return make_context(tmp_path_factory.mktemp("tls"), "provider.test")


async def test_tls_is_spoken_to_whom_the_certificate_names(
    upstream: PooledHttpClient, certified: tuple[ssl.SSLContext, Path]
) -> None:
    tls, certificate = certified
    trusted: list[ssl.SSLContext] = []

    def open_tls_context() -> ssl.SSLContext:
        trusted.append(ssl.create_default_context(cafile=certificate))
        return trusted[0]

    async with ScriptedUpstream([HELLO], tls=tls) as up, opened(Book([at(up.port)]), open_tls_context) as driver:
        for url in ("https://provider.test/v1", "https://provider.test/v1", "https://provider.test./v1"):
            assert await get(driver, url) == b"hello"
        with pytest.raises(ProviderBadResponse, match="TLS certificate"):
            await get(driver, "https://elsewhere.test/v1")
        with pytest.raises(ProviderBadResponse, match="TLS certificate"):
            await get(driver, f"https://127.0.0.1:{up.port}/v1")
        assert [seen.connection for seen in up.received] == [1, 1, 2]
        assert len(trusted) == 1
        assert all(connection.peek is not find_no_data for connection in list_lines(driver))


async def test_a_certificate_that_nobody_vouches_foris_refused(
    upstream: PooledHttpClient, certified: tuple[ssl.SSLContext, Path]
) -> None:
    async with ScriptedUpstream([HELLO], tls=certified[0]) as up:
        with pytest.raises(ProviderBadResponse, match="TLS certificate") as caught:
            await get(upstream, f"https://127.0.0.1:{up.port}/v1")
        assert caught.value.phase == "connect"
        assert not up.received


async def test_tls_to_a_plaintext_port_is_not_downgraded(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO], greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as up:
        with pytest.raises(ProviderBadResponse) as caught:
            await get(upstream, f"https://127.0.0.1:{up.port}/v1")
        assert caught.value.phase == "connect"
        assert not up.received


async def test_a_descriptor_is_closed_once_where_the_other_end_was_gone_before_the_handshake(
    upstream: PooledHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sock = socket.create_connection(listening.getsockname())
        taken, _ = listening.accept()
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        taken.close()
    sock.setblocking(False)

    async def reach(_origin: object) -> socket.socket:
        return sock

    monkeypatch.setattr(upstream._dialer, "_open_socket", reach)
    with pytest.raises(ProviderBadResponse):
        await get(upstream, "https://127.0.0.1:1/")
    assert sock.fileno() == -1  # else it would close whatever has the number by then


async def test_a_large_body_and_a_stream_go_over_tls(
    upstream: PooledHttpClient, certified: tuple[ssl.SSLContext, Path]
) -> None:
    tls, certificate = certified
    body = bytes(range(256)) * 8000
    async with (
        ScriptedUpstream([answer(body)], tls=tls) as up,
        opened(Book([at(up.port)]), lambda: ssl.create_default_context(cafile=certificate)) as driver,
    ):
        sent = attrs.evolve(build_request(up, url="https://provider.test/v1"), body=body)
        response = await driver.send(sent)
        assert await response.read(len(body)) == body
        response.close()
        assert up.received[0].body == body


# Proxies.


async def test_tls_goes_through_a_tunnel_that_is_asked_for_with_the_proxys_password_only(
    upstream: PooledHttpClient, certified: tuple[ssl.SSLContext, Path]
) -> None:
    tls, certificate = certified
    book = Book()
    async with (
        ScriptedUpstream([HELLO], tls=tls) as up,
        tunnel(up.port) as proxy,
        opened(book, lambda: ssl.create_default_context(cafile=certificate)) as driver,
    ):
        way = f"http://m%40e:hid%3Aden@127.0.0.1:{proxy.port}"
        for _ in range(2):
            assert await get(driver, "https://provider.test:444/v1", proxy=way) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 1]
        assert "proxy-authorization" not in up.received[0].headers
        await driver.close()
    (asked,) = proxy.asked
    assert asked.startswith(b"CONNECT provider.test:444 HTTP/1.1\r\nHost: provider.test:444\r\n")
    assert asked.endswith(b"\r\nProxy-Authorization: Basic bUBlOmhpZDpkZW4=\r\n\r\n")
    assert not book.asked


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nbusy",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nand more",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000,
    ],
    ids=["password", "busy", "no proxy", "more", "endless"],
)
async def test_a_tunnel_that_is_refused_is_the_proxys_doing(upstream: PooledHttpClient, raw: bytes) -> None:
    async with ScriptedUpstream([HELLO]) as up, tunnel(up.port, raw) as proxy:
        with pytest.raises(ProviderBadResponse, match="proxy refused") as caught:
            await get(upstream, "https://127.0.0.1/v1", proxy=f"http://127.0.0.1:{proxy.port}")
        assert caught.value.phase == "connect"
        assert ("(407 Proxy Authentication Required)" in caught.value.message) == (b" 407 " in raw)
        assert len(proxy.asked) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_is_not_there_is_an_error(upstream: PooledHttpClient, scheme: str) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        there = f"http://127.0.0.1:{up.port}"
    with pytest.raises(ProviderBadResponse, match="could not be reached"):
        await get(upstream, f"{scheme}://provider.test/v1", proxy=there)


async def test_a_proxy_that_hangs_up_is_an_error(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([FIN]) as up:
        for url in ("https://provider.test/v1", "http://provider.test/v1"):
            with pytest.raises(ProviderBadResponse):
                await get(upstream, url, proxy=f"http://127.0.0.1:{up.port}")


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
@pytest.mark.parametrize("password", [b"", b"hid:den"])
async def test_socks_leads_to_the_provider(upstream: PooledHttpClient, scheme: str, password: bytes) -> None:
    async with ScriptedUpstream([HELLO]) as up, socks(up.port, password=password) as proxy:
        book = Book([at(7, "10.1.2.3")])
        async with opened(book) as driver:
            way = f"{scheme}://{'me:hid%3Aden@' if password else ''}127.0.0.1:{proxy.port}"
            for _ in range(2):
                assert await get(driver, "http://provider.test:7/v1", proxy=way) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 1]
        assert up.received[0].headers["host"] == "provider.test:7"
    (asked,) = proxy.asked
    assert asked.endswith((b"|provider.test" if scheme == "socks5h" else b"|\x0a\x01\x02\x03") + b"\x00\x07")
    assert book.asked == ([] if scheme == "socks5h" else [("provider.test", 7)])


async def test_tls_goes_through_socks(upstream: PooledHttpClient, certified: tuple[ssl.SSLContext, Path]) -> None:
    tls, certificate = certified
    async with (
        ScriptedUpstream([HELLO], tls=tls) as up,
        socks(up.port) as proxy,
        opened(Book(), lambda: ssl.create_default_context(cafile=certificate)) as driver,
    ):
        assert await get(driver, "https://provider.test/", proxy=f"socks5h://127.0.0.1:{proxy.port}") == b"hello"


@pytest.mark.parametrize(
    "reply",
    [b"\x05\x05\x00\x01" + bytes(6), b"\x04\x00\x00\x01" + bytes(6), b"\x05\x00\x00\x09" + bytes(6)],
    ids=["refused", "no socks", "odd address"],
)
async def test_a_socks_proxy_that_refuses_or_talks_nonsense_is_to_blame(
    upstream: PooledHttpClient, reply: bytes
) -> None:
    async with ScriptedUpstream([STALL]) as up, socks(up.port, reply=reply) as proxy:
        with pytest.raises(ProviderError):
            await get(upstream, "http://10.1.2.3/", Timeouts(total_s=0.2), f"socks5://127.0.0.1:{proxy.port}")


async def test_a_socks_proxy_that_wants_a_password_which_nobody_gave_is_to_blame(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up, socks(up.port, password=b"hidden") as proxy:
        for who in ("", "me:wrong@"):
            with pytest.raises(ProviderBadResponse, match="proxy refused"):
                await get(upstream, "http://10.1.2.3/", proxy=f"socks5://{who}127.0.0.1:{proxy.port}")
        assert not up.received


async def test_a_socks_proxy_that_is_not_there_is_an_error(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        there = f"socks5://127.0.0.1:{up.port}"
    with pytest.raises(ProviderBadResponse, match="could not be reached"):
        await get(upstream, "http://10.1.2.3/", proxy=there)


async def test_a_socks_proxy_that_says_nothing_is_a_timeout_to_connect(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([STALL]) as up:
        way = f"socks5h://127.0.0.1:{up.port}"
        with pytest.raises(ProviderTimeout) as caught:
            await get(upstream, "http://10.1.2.3/", proxy=way, timeouts=Timeouts(connect_s=0.03))
        assert caught.value.phase == "connect"
        await until(lambda: up.open_connections == 0)
