"""What is not HTTP, or HTTP that two readers would read differently: refused in the one error shape."""

import asyncio
import re

import pytest

from tests.conftest import StartGateway
from tests.fakes.gateway import KEY, channels
from tests.fakes.upstream import COMPLETION, ScriptedUpstream, answer
from tests.web.wire import connect, hello, post, read_answer, split, talk

CHUNKED = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
    f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\nTransfer-Encoding: "
)
MALFORMED = {
    "no request line": b"NONSENSE\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100a5010000a10303"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown version": b"GET /healthz HTTP/9.9\r\nHost: a\r\n\r\n",
    "a request line without end": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "an oversized header": post(hello(), f"X-Big: {'x' * 20_000}"),
    "too many headers": post(hello(), *(f"X-{number}: a" for number in range(500))),
    "length and chunks": post(hello(), "Transfer-Encoding: chunked"),
    "two lengths": post(hello(), "Content-Length: 5"),
    "a negative length": post(hello()).replace(b"Content-Length: ", b"Content-Length: -"),
    "a length that is no number": post(hello()).replace(b"Content-Length: ", b"Content-Length: 0x"),
    "an unknown transfer encoding": CHUNKED.encode() + b"xchunked\r\n\r\n0\r\n\r\n",
    "two transfer encodings": CHUNKED.encode() + b"chunked, identity\r\n\r\n0\r\n\r\n",
    "a NUL in a header": post(hello(), "X-A: a\0b"),
    "a bare line feed in a header": post(hello(), "X-A: a\n b"),
    "a folded header": post(hello(), "X-A: a\r\n b"),
    "a space in a header's name": post(hello(), "X A: a"),
    "a space before the colon": post(hello(), "Transfer-Encoding : chunked"),
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "raw bytes in the path": b"GET /v1/models/\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "a chunk size that is no number": CHUNKED.encode() + b"chunked\r\n\r\nzz\r\nhello",
    "an endless chunk size": CHUNKED.encode() + b"chunked\r\n\r\n" + b"f" * 40 + b"\r\nhello",
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_http_gets_our_error_object_and_a_closed_connection(
    standing_with: StartGateway,
    case: str,
) -> None:
    gateway = await standing_with({})
    found = split(await talk(gateway.url, MALFORMED[case]))
    assert found.status == 400
    assert found.headers["content-type"] == "application/json"
    assert found.error["code"] == "invalid_request"
    assert found.error["type"] == "new_api_error"
    assert found.error["message"].endswith(f"(request id: {found.headers['x-request-id']})")
    assert b"Traceback" not in found.body
    await gateway.rows(0)


async def test_not_even_the_answer_to_malformed_http_names_the_server(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    found = split(await talk(gateway.url, MALFORMED["no request line"]))
    assert "server" not in found.headers


async def test_an_expectation_nobody_can_meet_gets_our_error_object(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    found = split(await talk(gateway.url, post(hello(), "Expect: a-miracle", "Connection: close")))
    assert found.status == 417
    assert found.headers["content-type"] == "application/json"
    assert found.error["message"].endswith(f"(request id: {found.headers['x-request-id']})")


async def test_a_caller_that_expects_100_continue_is_told_to_go_on(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        reader, writer = await connect(gateway.url)
        head, body = post(hello(), "Expect: 100-continue").split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        async with asyncio.timeout(3):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert (await read_answer(reader)).status == 200
        writer.close()


async def test_a_second_request_hidden_in_the_first_ones_body_is_never_answered(standing_with: StartGateway) -> None:
    hidden = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    raw = CHUNKED.encode() + b"chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n" % len(hidden) + hidden
    gateway = await standing_with({})
    reply = await talk(gateway.url, raw)
    assert reply.count(b"HTTP/1.") == 1
    assert split(reply).status == 400


async def test_pipelined_requests_are_answered_in_their_order(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    health = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    missing = b"GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    reply = await talk(gateway.url, health + health + missing)
    assert re.findall(rb"HTTP/1.1 (\d+)", reply) == [b"200", b"200", b"404"]


@pytest.mark.parametrize(
    "path",
    [b"/nope/%0d%0aX-Injected:%20yes", b"/v1/images/%0d%0aX-Injected:%20yes", b"/v1/models/%0d%0aX-Injected:%20yes"],
)
async def test_a_path_cannot_inject_a_header(standing_with: StartGateway, path: bytes) -> None:
    gateway = await standing_with({})
    raw = b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer %b\r\n\r\n" % (path, KEY.encode())
    found = split(await talk(gateway.url, raw))
    assert found.status in {404, 501}
    assert "x-injected" not in found.headers
    assert found.error["message"].endswith(f"(request id: {found.headers['x-request-id']})")


@pytest.mark.parametrize("path", [b"/", b"/v1/models", b"/admin/v1/status", b"/healthz"])
@pytest.mark.parametrize("host", [b"a:999999", b"[::1", b'"<evil>', b"\xff\xfe", b"", b"a b", b"a/b?c#d"])
async def test_a_hostile_host_header_is_no_bug_of_ours(standing_with: StartGateway, path: bytes, host: bytes) -> None:
    gateway = await standing_with({})
    raw = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path, host)
    assert split(await talk(gateway.url, raw)).status < 500


@pytest.mark.parametrize("path", [b"/v1/models", b"/admin/v1/status"])
@pytest.mark.parametrize("token", [b"\xff\xfe", b"sk-\xc3\xa9" * 10, b"", b"\x7f", b"a" * 4000])
async def test_a_hostile_authorization_header_is_a_401(standing_with: StartGateway, path: bytes, token: bytes) -> None:
    gateway = await standing_with({})
    raw = b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer %b\r\n\r\n" % (path, token)
    found = split(await talk(gateway.url, raw))
    # Where the byte is no byte of a header at all, the request is not HTTP: also right.
    assert (found.status, found.error["code"]) in {(401, "invalid_api_key"), (400, "invalid_request")}
