"""Errors before there is a request: the error object, a request id, the end of the connection, and no ``Server``."""

from tests.support.gateway import channels
from tests.support.raw_client import split, talk
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

_POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
FRAMES = {
    "no HTTP": b"\x16\x03\x01\x00\xa5hello\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "large header": b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "two lengths": _POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "length and chunks": _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two codings": _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks of HTTP/1.0": _POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an expectation": _POST + b"Expect: tea\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    "too large": _POST + b"Connection: close\r\nContent-Length: 999999999\r\n\r\n",
}


async def test_an_error_of_framing_has_the_shape_of_every_other(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        for name, raw in FRAMES.items():
            found = split(await talk(gateway.url, raw))
            assert 400 <= found.status < 600, name
            assert "server" not in found.headers, name
            assert found.headers["x-request-id"] in found.error["message"], name
            page = found.error["doc_url"]
            assert page.removeprefix("http://a") == f"/help/reference/errors#{found.error['code']}", name
            assert found.headers["link"] == f'<{page}>; rel="help"', name


async def test_an_error_of_framing_has_the_address_that_is_set(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"server": {"base_url": "https://ai.example.com/v1"}})
    found = split(await talk(gateway.url, FRAMES["no HTTP"]))
    assert found.error["doc_url"] == "https://ai.example.com/help/reference/errors#invalid_request"
