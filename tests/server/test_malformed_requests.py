"""What is not HTTP, or HTTP that two readers would read differently: refused in the one error shape."""

import asyncio
import re

import pytest

from tests.support.gateway import CHAT, KEY, channels
from tests.support.raw_client import connect, hello, post, read_answer, split, talk
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

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
    standing_with: StartGateway, case: str
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


@pytest.mark.parametrize("wish", ["a-miracle", "\xff\xfe", "100-c\xf6ntinue"])
@pytest.mark.parametrize("path", [CHAT, "/healthz", "/console", "/nowhere"])
async def test_an_expectation_nobody_can_meet_gets_our_error_object(
    standing_with: StartGateway, path: str, wish: str
) -> None:
    gateway = await standing_with({})
    found = split(await talk(gateway.url, post(hello(), f"Expect: {wish}", "Connection: close", path=path)))
    assert found.status == 417
    assert found.headers["content-type"] == "application/json"
    assert found.error["message"].endswith(f"(request id: {found.headers['x-request-id']})")


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/images/edits", "/v1/videos", "/admin/v1/session"])
async def test_a_media_type_of_odd_bytes_is_refused_as_any_other(standing_with: StartGateway, path: str) -> None:
    gateway = await standing_with({})
    raw = post(hello(), "Connection: close", path=path).replace(b"application/json", b"\xff\xfe/\xed\xa0\x80")
    found = split(await talk(gateway.url, raw))
    assert found.status in ({415} if path.startswith("/v1") else {401, 404, 405, 415})
    assert found.headers["content-type"] == "application/json"


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


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "junk", [b"NONSENSE\r\n\r\n", b"\x16\x03\x01", b"GET /x HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nA\r\n"]
)
@pytest.mark.parametrize("good", [1, 2, 5])
async def test_good_requests_before_garbage_in_one_piece_are_served_first(
    standing_with: StartGateway, junk: bytes, good: int
) -> None:
    gateway = await standing_with({})
    reply = await talk(gateway.url, HEALTH * good + junk)
    assert re.findall(rb"HTTP/1\.[01] (\d+)", reply) == [b"200"] * good + [b"400"]


async def test_a_call_before_garbage_is_made_and_answered(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        reply = await talk(gateway.url, HEALTH + post(hello()) + b"GARBAGE\r\n\r\n")
        assert re.findall(rb"HTTP/1\.[01] (\d+)", reply) == [b"200", b"200", b"400"]
        assert len(up.received) == 1


async def test_garbage_behind_a_kept_connections_next_request_waits_for_it_too(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    reader, writer = await connect(gateway.url)
    writer.write(HEALTH)
    assert (await read_answer(reader)).status == 200
    writer.write(HEALTH[:9])
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.write(HEALTH[9:] + HEALTH + b"NONSENSE\r\n\r\n")
    assert [(await read_answer(reader)).status for _ in range(3)] == [200, 200, 400]
    writer.close()


async def test_a_request_whose_body_is_broken_is_not_served(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    broken = CHUNKED.encode() + b"chunked\r\n\r\n2\r\n{}\r\nzz\r\n"
    reply = await talk(gateway.url, HEALTH + broken)
    assert re.findall(rb"HTTP/1\.[01] (\d+)", reply) == [b"200", b"400"]


@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "deflate,chunked", "identity, chunked", "chunked, chunked", "x, chunked"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/admin/v1/accounts", "/healthz", "/nothing"])
async def test_a_transfer_encoding_that_is_more_than_chunked_is_refused_and_the_connection_ends(
    standing_with: StartGateway, coding: str, path: str
) -> None:
    gateway = await standing_with({})
    raw = CHUNKED.encode().replace(b"/v1/chat/completions", path.encode()) + coding.encode() + b"\r\n\r\n0\r\n\r\n"
    reply = await talk(gateway.url, raw + HEALTH)
    found = split(reply)
    assert found.status in {400, 501}
    assert reply.count(b"HTTP/1.") == 1
    assert (b'"type":"error"' in found.body) == (path == "/v1/messages" and found.status == 501)


async def test_chunked_in_http_1_0_is_refused_and_in_any_case_of_letters_is_taken(standing_with: StartGateway) -> None:
    gateway = await standing_with({})
    raw = CHUNKED.encode() + b"chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    found = split(await talk(gateway.url, raw.replace(b"HTTP/1.1", b"HTTP/1.0", 1)))
    assert (found.status, found.error["code"]) == (400, "invalid_request")
    assert "transfer-encoding" in found.error["message"].lower()
    reader, writer = await connect(gateway.url)
    writer.write(raw.replace(b"chunked", b"Chunked"))
    assert "model" in (await read_answer(reader)).error["message"]
    writer.close()


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        ("/v1/models", ["Authorization: Bearer KEY", "Authorization: Bearer KEY"], 400),
        ("/v1/models", ["Authorization: Bearer KEY", "Authorization: Bearer other"], 400),
        ("/v1/chat/completions", ["Authorization: Bearer other", "Authorization: Bearer KEY"], 400),
        ("/v1/models", ["Authorization: Bearer KEY", "x-api-key: sk-another-key-of-another"], 400),
        ("/v1/models", ["x-api-key: KEY", "x-api-key: sk-another-key-of-another"], 400),
        ("/v1/models", ["Authorization: Bearer KEY", "x-api-key: KEY"], 200),
        ("/v1/models", ["authorization: bearer  KEY", "X-Api-Key: KEY"], 200),
        ("/v1/models", ["Authorization: Bearer KEY", "x-api-key: "], 200),
        ("/v1/videos", ["Authorization: Bearer KEY", "x-api-key: of-a-proxy-in-between"], 200),
        ("/admin/v1/status", ["Authorization: Bearer TOKEN", "Authorization: Bearer TOKEN"], 400),
        ("/admin/v1/status", ["Authorization: Bearer TOKEN", "Authorization: Bearer other"], 400),
        ("/admin/v1/status", ["Authorization: Bearer TOKEN"], 200),
    ],
)
async def test_two_keys_are_one_too_many(standing_with: StartGateway, path: str, lines: list[str], status: int) -> None:
    gateway = await standing_with({})
    method = "POST" if "chat" in path else "GET"
    head = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: a", "Connection: close", *lines])
    message = head.replace("KEY", KEY).replace("TOKEN", gateway.admin_token)
    found = split(await talk(gateway.url, message.encode() + b"\r\n\r\n"))
    assert found.status == status
    assert status == 200 or b"more than one" in found.body
