"""The guarded way to files that a provider names: what it asks, what it follows, where it stops. See also test_ssrf."""

import asyncio
import gc
import gzip
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.domain.ip_address import Networks, parse_networks
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.upstream.safe_fetch import MAX_REDIRECTS, MAX_URL, SafeFetcher, _read_url
from tests.support.scripted_upstream import FIN, LAST_CHUNK, RST, STALL, Flood, Script, ScriptedUpstream, answer, chunk
from tests.support.upstream_requests import until

FILE = answer(b"an image", content_type="image/png")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"
LOOPBACK = parse_networks(["127.0.0.0/8"])
LIMIT = 1000


class Names(AbstractResolver):
    """Every name is 127.0.0.1, after ``delay_s``."""

    delay_s = 0.0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        await asyncio.sleep(self.delay_s)
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        pass


class Settings:
    """What the operator allows, at the moment."""

    allowed: Networks = ()

    def find(self) -> Networks:
        return self.allowed


@pytest.fixture
def allowing() -> Settings:
    return Settings()


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
async def fetcher(allowing: Settings, names: Names) -> AsyncIterator[SafeFetcher]:
    fetcher = SafeFetcher(find_allowed_networks=allowing.find, resolver=names)
    yield fetcher
    await fetcher.close()
    del fetcher
    gc.collect(1)  # the young ones: what was not released says so now, in the test that is to blame


async def fetch(
    fetcher: SafeFetcher,
    url: str,
    trusted: str | None = None,
    proxy: str | None = None,
    *,
    limit: int = LIMIT,
    timeout_s: float = 5,
) -> bytes:
    return await fetcher.fetch(url, trusted_origin=trusted, proxy=proxy, limit_bytes=limit, timeout_s=timeout_s)


async def fail(
    fetcher: SafeFetcher, url: str, trusted: str | None = None, proxy: str | None = None, **more: float
) -> str:
    """What is said of a fetch that must fail: never an address, nor any part of a URL."""
    with pytest.raises(ProviderError) as raised:
        await fetch(fetcher, url, trusted, proxy, **more)  # type: ignore[arg-type]
    text = raised.value.message
    assert not any(part in text for part in ("127.0", "://", ".test", "localhost", "secret"))
    return text


def redirect(location: str, status: int = 302) -> bytes:
    return answer(b"", status, location=location)


async def test_a_file_on_the_channels_own_origin_is_fetched_wherever_it_is(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([FILE]) as up:
        url = f"http://127.0.0.1:{up.port}/out/1.png"
        assert await fetch(fetcher, url, up.base_url) == b"an image"
        assert await fetch(fetcher, url, f"http://127.0.0.1:{up.port}") == b"an image"
        assert await fetch(fetcher, f"HTTP://Local.Test:{up.port}/", f"http://LOCAL.test:{up.port}/v1") == b"an image"
        assert up.connections == 3


async def test_nothing_of_ours_is_told_but_what_is_accepted(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([answer(b"x", set_cookie="secret=1; Path=/"), 0.01], [FILE]) as up:
        for _ in range(2):
            await fetch(fetcher, f"{up.base_url}/1.png", up.base_url)
        for seen in up.received:
            assert seen.method == "GET"
            headers = {"host": f"127.0.0.1:{up.port}", "accept": "*/*", "accept-encoding": "identity"}
            assert {name: value for name, value in seen.headers.items() if name != "connection"} == headers
        assert [seen.connection for seen in up.received] == [1, 2]


@pytest.mark.parametrize(
    "path",
    [
        "/a.png?sig=a%2Bb%2F%3D&X-Amz-Credential=AK%2F2025%2Fs3&x=%7e&se=1%3A2",
        "/a%2fb//c.d%20e.png",
        "/?%zz",
        "/a(1)!'~.png?a=b;c=[d]&e",
    ],
)
async def test_a_link_is_asked_for_as_it_is_written_for_it_may_be_signed(fetcher: SafeFetcher, path: str) -> None:
    async with ScriptedUpstream([FILE], [redirect(path)], [FILE]) as up:
        await fetch(fetcher, f"http://127.0.0.1:{up.port}{path}", up.base_url)
        await fetch(fetcher, f"http://127.0.0.1:{up.port}/first", up.base_url)
        assert [seen.path for seen in up.received] == [path, "/first", path]


async def test_a_link_with_what_no_url_has_is_quoted(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([FILE]) as up:
        await fetch(fetcher, f"http://127.0.0.1:{up.port}/a b/\u732b.png#part", up.base_url)
        assert up.received[0].path == "/a%20b/%E7%8C%AB.png"


@pytest.mark.parametrize(
    "trusted", ["https://127.0.0.1:{port}", "http://localhost:{port}", "http://127.0.0.1:1", "", "x"]
)
async def test_another_scheme_host_or_port_is_another_origin(fetcher: SafeFetcher, trusted: str) -> None:
    async with ScriptedUpstream([FILE]) as up:
        text = await fail(fetcher, f"http://127.0.0.1:{up.port}/", trusted.format(port=up.port))
        assert "fetches nothing from" in text
        assert up.connections == 0


async def test_what_is_allowed_is_asked_at_every_fetch(fetcher: SafeFetcher, allowing: Settings) -> None:
    async with ScriptedUpstream([FILE]) as up:
        url = f"http://files.test:{up.port}/1.png"
        assert "fetches nothing from" in await fail(fetcher, url)
        allowing.allowed = LOOPBACK
        assert await fetch(fetcher, url) == b"an image"
        allowing.allowed = parse_networks(["10.0.0.0/8"])
        assert "fetches nothing from" in await fail(fetcher, url)
        assert up.connections == 1


@pytest.mark.parametrize("port", [1, 22, 25, 81, 445, 1023, 2375, 6379, 9200, 11211])
async def test_ports_of_other_services_are_not_connected_to(
    fetcher: SafeFetcher, allowing: Settings, port: int
) -> None:
    allowing.allowed = LOOPBACK
    assert "fetches nothing from" in await fail(fetcher, f"http://127.0.0.1:{port}/")
    assert "could not be reached" in await fail(fetcher, f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_followed(fetcher: SafeFetcher, status: int) -> None:
    async with ScriptedUpstream([redirect("../2", status)], [FILE]) as up:
        assert await fetch(fetcher, f"{up.base_url}/1", up.base_url) == b"an image"
        assert [(seen.method, seen.path) for seen in up.received] == [("GET", "/v1/1"), ("GET", "/2")]


@pytest.mark.parametrize("more", [0, 1])
async def test_redirects_are_followed_three_times(fetcher: SafeFetcher, more: int) -> None:
    hops: list[Script] = [[redirect(f"/{number}")] for number in range(MAX_REDIRECTS + more)]
    async with ScriptedUpstream(*hops, [FILE]) as up:
        if more:
            assert "too often" in await fail(fetcher, up.base_url, up.base_url)
        else:
            assert await fetch(fetcher, up.base_url, up.base_url) == b"an image"
        assert len(up.received) == 1 + MAX_REDIRECTS


async def test_a_redirect_from_the_trusted_origin_is_not_trusted_elsewhere(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([FILE]) as other:
        hops = [redirect(f"http://127.0.0.1:{other.port}/"), redirect(f"//127.0.0.1:{other.port}/")]
        for hop in hops:
            async with ScriptedUpstream([hop]) as up:
                assert "fetches nothing from" in await fail(fetcher, up.base_url, up.base_url)
        assert other.connections == 0


async def test_leading_back_to_the_trusted_origin_does_not_make_trusted_again(
    fetcher: SafeFetcher, allowing: Settings
) -> None:
    allowing.allowed = LOOPBACK
    async with ScriptedUpstream([FILE]) as trusted:
        back = [redirect(trusted.base_url)]
        async with ScriptedUpstream([*back]) as public:
            assert await fetch(fetcher, public.base_url, trusted.base_url) == b"an image"

            async def narrow(_received: object) -> None:
                allowing.allowed = ()

            public._scripts[:] = [[narrow, *back]]
            assert "fetches nothing from" in await fail(fetcher, public.base_url, trusted.base_url)
        assert trusted.connections == 1


@pytest.mark.parametrize("hop", [answer(b"", 302), redirect(""), redirect("file:///etc/passwd"), redirect("http://[/")])
async def test_a_redirect_to_no_url_is_not_followed(fetcher: SafeFetcher, hop: bytes) -> None:
    async with ScriptedUpstream([hop]) as up:
        assert "not a plain" in await fail(fetcher, up.base_url, up.base_url)
        assert len(up.received) == 1


@pytest.mark.parametrize("status", [201, 204, 206, 300, 304, 400, 401, 403, 404, 429, 500, 503])
async def test_only_a_200_is_a_file(fetcher: SafeFetcher, status: int) -> None:
    async with ScriptedUpstream([answer(b"" if status in {204, 304} else b"secret", status)]) as up:
        assert f"status {status}" in await fail(fetcher, up.base_url, up.base_url)


@pytest.mark.parametrize(
    "script",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", STALL],
        [CHUNKED, chunk(b"x" * 600), chunk(b"x" * 401), STALL],
        [UNTIL_CLOSE, b"x" * 1001, STALL],
        [answer(gzip.compress(b"x" * 1001), content_encoding="gzip")],
        [UNTIL_CLOSE, Flood(b"x" * 65536, 10_000), FIN],
    ],
    ids=["length", "chunks", "until close", "gzip", "flood"],
)
async def test_what_is_too_large_is_not_read(fetcher: SafeFetcher, script: Script) -> None:
    async with ScriptedUpstream(script) as up:
        assert "larger than 1000 bytes" in await fail(fetcher, up.base_url, up.base_url)
        await until(lambda: up.open_connections == 0)
        assert up.flooded < 8 << 20


@pytest.mark.parametrize(
    "script",
    [
        [answer(b"x" * LIMIT)],
        [CHUNKED, chunk(b"x" * 400), chunk(b"x" * 600), LAST_CHUNK],
        [UNTIL_CLOSE, b"x" * LIMIT, FIN],
        [answer(gzip.compress(b"x" * LIMIT), content_encoding="gzip")],
        [answer(gzip.compress(b"x" * LIMIT), content_encoding="GZIP ")],
        [answer(b"x" * LIMIT, content_encoding="identity")],
    ],
)
async def test_what_is_just_small_enough_is_read(fetcher: SafeFetcher, script: Script) -> None:
    async with ScriptedUpstream(script) as up:
        assert await fetch(fetcher, up.base_url, up.base_url) == b"x" * LIMIT


async def test_an_empty_file_is_empty(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([answer(b"")]) as up:
        assert await fetch(fetcher, up.base_url, up.base_url, limit=0) == b""


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "identity, gzip"])
async def test_an_encoding_that_was_not_asked_foris_refused(fetcher: SafeFetcher, encoding: str) -> None:
    async with ScriptedUpstream([answer(b"x", content_encoding=encoding)]) as up:
        await fail(fetcher, up.base_url, up.base_url)


@pytest.mark.parametrize(
    "script",
    [
        [FIN],
        [RST],
        [b"HTTP/1.1 200", FIN],
        [b"no http\r\n\r\n", FIN],
        [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", FIN],
        [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, FIN],
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", FIN],
        [answer(b"x" * 9)[:-1], FIN],
        [answer(b"x" * 9)[:-1], RST],
        [CHUNKED, chunk(b"x"), FIN],
        [CHUNKED, b"zz\r\n", FIN],
        [answer(b"no gzip", content_encoding="gzip")],
    ],
)
async def test_what_breaks_is_an_upstream_error(fetcher: SafeFetcher, script: Script) -> None:
    async with ScriptedUpstream(script) as up:
        with pytest.raises(ProviderBadResponse):
            await fetch(fetcher, up.base_url, up.base_url)
        await until(lambda: up.open_connections == 0)


async def test_the_librarys_own_words_are_kept_for_the_log(fetcher: SafeFetcher) -> None:
    with pytest.raises(ProviderBadResponse) as raised:
        await fetch(fetcher, "http://files.test:8080/")
    assert isinstance(raised.value.__cause__, aiohttp.ClientConnectorError)
    assert "127.0.0.1 is not public" in str(raised.value.__cause__)


@pytest.mark.parametrize(
    "scripts",
    [
        [[STALL]],
        [[b"HTTP/1.1 200 OK\r\n", STALL]],
        [[answer(b"x" * 9)[:-1], STALL]],
        [[redirect("/slow")], [STALL]],
        [[0.06, redirect("/slow")], [0.06, FILE]],
        [[UNTIL_CLOSE, *(step for _ in range(100) for step in (b"x", 0.01))]],
        [[*(step for _ in range(100) for step in (b"HTTP/1.1 100 Continue\r\n\r\n", 0.01))]],
    ],
    ids=["silent", "headers", "body", "redirect", "both", "trickle", "interim"],
)
async def test_everything_together_has_one_deadline(fetcher: SafeFetcher, scripts: list[Script]) -> None:
    async with ScriptedUpstream(*scripts) as up:
        with pytest.raises(ProviderTimeout, match="took too long"):
            await fetch(fetcher, up.base_url, up.base_url, timeout_s=0.1)
        await until(lambda: up.open_connections == 0)


async def test_a_name_that_is_not_answered_has_the_same_deadline(fetcher: SafeFetcher, names: Names) -> None:
    names.delay_s = 60
    with pytest.raises(ProviderTimeout):
        await fetch(fetcher, "http://files.test/", timeout_s=0.05)


async def test_a_fetch_that_is_given_up_leaves_no_connection(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([answer(b"x" * 9)[:-1], STALL]) as up:
        task = asyncio.create_task(fetch(fetcher, up.base_url, up.base_url))
        await until(lambda: up.received)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: up.open_connections == 0)


async def test_what_was_closed_fetches_nothing(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([FILE]) as up:
        await fetcher.close()
        with pytest.raises(ProviderBadResponse):
            await fetch(fetcher, up.base_url, up.base_url)
        assert up.connections == 0


async def test_a_public_name_is_asked_of_the_channels_proxy(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([FILE]) as proxy:
        at = f"http://127.0.0.1:{proxy.port}"
        assert await fetch(fetcher, "http://files.test/1.png?s=%2F", None, at) == b"an image"
        assert await fetch(fetcher, "http://8.8.8.8/1.png", None, at) == b"an image"
        assert [seen.path for seen in proxy.received] == ["http://files.test/1.png?s=%2F", "http://8.8.8.8/1.png"]


async def test_the_proxy_is_asked_for_private_places_where_they_are_allowed_or_trusted(
    fetcher: SafeFetcher, allowing: Settings
) -> None:
    async with ScriptedUpstream([FILE]) as proxy:
        at = f"http://127.0.0.1:{proxy.port}"
        assert "fetches nothing from" in await fail(fetcher, "http://10.0.0.5:8188/", None, at)
        assert await fetch(fetcher, "http://10.0.0.5:8188/", "http://10.0.0.5:8188/v1", at) == b"an image"
        assert await fetch(fetcher, "http://box:8188/", "http://box:8188/v1", at) == b"an image"
        allowing.allowed = parse_networks(["10.0.0.0/8"])
        assert await fetch(fetcher, "http://10.0.0.5:8188/", None, at) == b"an image"
        assert len(proxy.received) == 3


async def test_a_redirect_that_a_proxy_brings_is_judged(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([redirect("http://169.254.169.254/latest")]) as proxy:
        text = await fail(fetcher, "http://files.test/", None, f"http://127.0.0.1:{proxy.port}")
        assert "fetches nothing from" in text
        assert len(proxy.received) == 1


async def test_a_proxy_that_refuses_is_told_apart(fetcher: SafeFetcher) -> None:
    async with ScriptedUpstream([answer(b"", 407)]) as proxy:
        text = await fail(fetcher, "https://files.test/1.png", None, f"http://127.0.0.1:{proxy.port}")
        assert text == "The proxy refused the connection (407 Proxy Authentication Required)"
        assert proxy.received[0].method == "CONNECT"


@settings(max_examples=200)
@example("http://[]@")
@given(
    st.text()
    | st.text("htps:/@[]%\\.#?0123456789abcdefx-_ \t")
    | st.text("0123456789.xe[]:@%").map("http://{}/".format)
)
def test_any_text_is_a_url_or_an_error(text: str) -> None:
    base = _read_url("http://files.test/a?b")
    for bases in ((), (base,)):
        try:
            url = _read_url(text, *bases)
        except ProviderBadResponse:
            continue
        assert url.scheme in {"http", "https"}
        assert url.raw_host
        assert url.raw_user is None


def test_a_url_has_a_bound() -> None:
    start = "http://files.test/"
    _read_url(start + "x" * (MAX_URL - len(start)))
    with pytest.raises(ProviderBadResponse):
        _read_url(start + "x" * (MAX_URL - len(start) + 1))


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
async def test_nothing_is_fetched_through_a_socks_proxy_nor_past_it(fetcher: SafeFetcher, scheme: str) -> None:
    async with ScriptedUpstream([FILE]) as up:
        text = await fail(fetcher, f"{up.base_url}/1.png", up.base_url, f"{scheme}://127.0.0.1:{up.port}")
        assert "SOCKS" in text
        assert not up.connections
