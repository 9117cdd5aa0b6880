"""The head of a request: what it says, where it leads, and what is never sent."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest, RequestTemplate
from gateway.errors import ProviderBadResponse
from gateway.upstream.client import MAX_ORIGINS, PooledHttpClient, RequestHead, RequestHeadBuilder
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.table_rows import table_rows
from tests.support.upstream_requests import HEADERS, build_request

HELLO = answer(b"hello")


def write(
    url: str = "http://host/v1", headers: dict[str, str] | None = None, length: int | None = 2, **more: Any
) -> bytes:
    request = HttpRequest(more.pop("method", "POST"), url, {"A": "b"} if headers is None else headers, **more)
    return RequestHeadBuilder().build(request, request.proxy).build(length)


def test_a_head_is_the_plans_headers_where_it_goes_and_how_long_the_body_is() -> None:
    assert write() == b"POST /v1 HTTP/1.1\r\nHost: host\r\nA: b\r\nContent-Length: 2\r\n\r\n"
    assert write(length=None) == b"POST /v1 HTTP/1.1\r\nHost: host\r\nA: b\r\nContent-Length: 0\r\n\r\n"
    assert write(method="GET", length=None) == b"GET /v1 HTTP/1.1\r\nHost: host\r\nA: b\r\n\r\n"
    assert write(headers={"host": "other"}) == b"POST /v1 HTTP/1.1\r\nhost: other\r\nContent-Length: 2\r\n\r\n"


@table_rows(
    ("url", "target", "host"),
    [
        ("http://host", b"/", b"host"),
        ("http://host:80/a?b=c&d=%20#e", b"/a?b=c&d=%20", b"host"),
        ("https://host:443/a", b"/a", b"host"),
        ("https://host:80/a", b"/a", b"host:80"),
        ("http://[::1]:8080/a", b"/a", b"[::1]:8080"),
        ("http://HOST/a b/é", b"/a%20b/%C3%A9", b"host"),
        ("http://bücher.test/", b"/", b"xn--bcher-kva.test"),
        ("http://host/models/a:generate", b"/models/a:generate", b"host"),
    ],
)
def test_a_url_is_written_as_http_wants_it(url: str, target: bytes, host: bytes) -> None:
    assert write(url).startswith(b"POST " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n")


async def test_a_url_reaches_the_provider_as_http_wants_it(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        response = await upstream.send(build_request(up, url=f"{up.base_url}/a b/é?q=ü%2F&x=[1]#there"))
        response.close()
        assert up.received[0].path == "/v1/a%20b/%C3%A9?q=%C3%BC/&x=%5B1%5D"


async def test_a_url_that_a_signature_covers_is_left_as_it_is(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        response = await upstream.send(
            build_request(up, url=f"{up.base_url}/model/a.b-v1%3A0%2Fx/%7E?q=%3A", exact=True)
        )
        response.close()
        assert up.received[0].path == "/v1/model/a.b-v1%3A0%2Fx/%7E?q=%3A"


def test_a_proxy_for_plain_http_is_told_all_of_the_url() -> None:
    head = write("http://host:81/a?b#c", proxy="http://me:hidden@proxy")
    assert head.startswith(
        b"POST http://host:81/a?b HTTP/1.1\r\nProxy-Authorization: Basic bWU6aGlkZGVu\r\nHost: host:81\r\n"
    )
    assert b"Proxy-Authorization" not in write("http://host/", proxy="http://proxy")
    assert b"Proxy-Authorization" not in write("https://host/", proxy="http://me:hidden@proxy")
    assert write("http://host/", proxy="socks5://me:hidden@proxy").startswith(b"POST / HTTP/1.1\r\nHost: host\r\n")


@table_rows(
    "wrong",
    [
        {"headers": {"A": "b\r\nEvil: c"}},
        {"headers": {"A": "b\nEvil: c"}},
        {"headers": {"A": "b\rc"}},
        {"headers": {"A": "b\x00"}},
        {"headers": {"A\r\nEvil": "b"}},
        {"headers": {"A\r": "\nb"}},
        {"headers": {"A": "schlüssel \u20ac"}},
        {"headers": {"A": "\ud800"}},
        {"headers": {"content-length": "2"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
        {"url": "http://host/a\r\nEvil: b"},
        {"url": "http://host/a\x00"},
        {"url": "http://host\n/"},
        {"url": "http://"},
        {"url": "ftp://host/"},
        {"url": "http://me:hidden@host/"},
        {"url": "http://:hidden@host/"},
        {"url": "http://[::1/"},
        {"url": "http://host:70000/"},
        {"url": "/v1"},
        {"method": "GET /evil HTTP/1.1\r\nA:"},
        {"method": ""},
        {"method": "HEAD"},
        {"proxy": "http://\u20ac:x@proxy", "url": "http://host/a"},
    ],
)
def test_what_must_not_be_sentis_refused_before_anything_is(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProviderBadResponse, match="cannot be sent") as caught:
        write(**wrong)
    assert caught.value.phase == "connect"
    assert "hidden" not in str(caught.value)


@table_rows("proxy", ["https://me:hidden@proxy", "HTTPS://proxy", "socks4://proxy", "socks://proxy", "proxy:80"])
@table_rows("url", ["http://host/a", "https://host/a"])
def test_a_proxy_that_no_connection_can_use_is_refused(proxy: str, url: str) -> None:
    with pytest.raises(ProviderBadResponse, match="proxy must be an http://, socks5:// or socks5h:// URL") as caught:
        write(url, proxy=proxy)
    assert "hidden" not in str(caught.value)


odd = st.text("aZ-: \t\r\n\x00\x0b\x85é\u2028\u20ac\ud800", max_size=8)


@given(st.dictionaries(odd, odd, max_size=4), odd)
@example({"A": "b\x85c"}, "\x85")
def test_whatever_is_in_a_plan_its_head_has_as_many_lines_as_headers(headers: dict[str, str], path: str) -> None:
    try:
        head = write(f"http://host/{path}", headers)
    except ProviderBadResponse:
        return
    lines = head.split(b"\r\n")
    assert len(lines) == len(headers) + 5 - ("host" in {name.lower() for name in headers})
    assert head.count(b"\n") == head.count(b"\r") == len(lines) - 1
    assert b"\0" not in head


async def test_a_head_is_built_once_for_all_requests_of_a_template(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        template = RequestTemplate(Channel("up", "custom", up.base_url, ("key",), ("m",)), up.base_url, dict(HEADERS))
        heads = set()
        for number in range(2):
            request = HttpRequest("POST", template.url, template.headers, b"%d" % number, template=template)
            response = await upstream.send(request)
            await response.read(100)
            response.close()
            heads.add(template.head)
        assert [seen.body for seen in up.received] == [b"0", b"1"]
        assert up.connections == 1
        (head,) = heads
        assert isinstance(head, RequestHead)


def test_heads_of_one_server_lead_to_one_origin_and_origins_are_bounded() -> None:
    builder = RequestHeadBuilder()
    first = builder.build(HttpRequest("GET", "http://host/0", {}), None)
    assert builder.build(HttpRequest("POST", "http://host/1", {}), None).origin is first.origin
    for number in range(MAX_ORIGINS):
        builder.build(HttpRequest("GET", f"http://host{number}/", {}), None)
    assert len(builder._origins) <= MAX_ORIGINS
