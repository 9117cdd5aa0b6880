"""The contract of the upstream port where the provider breaks, lies or sends too much."""

import asyncio
import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse, ProviderError, ProviderTimeout
from gateway.upstream.client import PooledHttpClient
from gateway.upstream.interface import RESEND_WITHIN_S, HttpResponse, StaleConnection
from tests.support.compressed_runs import compress_run
from tests.support.scripted_upstream import (
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    STALL,
    Act,
    Flood,
    Script,
    ScriptedUpstream,
    Step,
    answer,
    chunk,
)
from tests.support.upstream_requests import HEADERS, LIMIT, ask, build_request, pump_all, until

HELLO = answer(b"hello")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("act", [FIN, RST])
async def test_an_idempotent_request_on_a_kept_connection_that_closes_is_sent_again(
    upstream: PooledHttpClient, act: Act
) -> None:
    async with ScriptedUpstream([HELLO], [act], [HELLO]) as up:
        assert await ask(upstream, up, "GET") == b"hello"
        assert await ask(upstream, up, "GET") == b"hello"
        assert [seen.connection for seen in up.received] == [1, 1, 2]


@pytest.mark.parametrize("act", [FIN, RST])
async def test_a_post_on_a_kept_connection_that_closes_at_once_is_told_to_be_stale_and_not_sent_again(
    upstream: PooledHttpClient, act: Act
) -> None:
    async with ScriptedUpstream([HELLO], [act], [HELLO]) as up:
        await ask(upstream, up)
        with pytest.raises(StaleConnection) as caught:
            await upstream.send(build_request(up))
        assert (caught.value.phase, caught.value.failure_scope, caught.value.retryable) == ("headers", "nobody", True)
        assert [seen.connection for seen in up.received] == [1, 1]


@pytest.mark.parametrize("act", [FIN, RST])
async def test_a_post_that_the_provider_had_for_a_while_is_not_told_to_be_stale(
    upstream: PooledHttpClient, act: Act
) -> None:
    async with ScriptedUpstream([HELLO], [RESEND_WITHIN_S + 0.02, act], [HELLO]) as up:
        await ask(upstream, up)
        with pytest.raises(ProviderBadResponse) as caught:
            await upstream.send(build_request(up))
        assert not isinstance(caught.value, StaleConnection)
        assert (caught.value.phase, caught.value.failure_scope) == ("headers", "channel")
        assert len(up.received) == 2


async def test_a_connection_that_closes_between_requests_costs_no_second_post(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO, 0.01, FIN], [HELLO]) as up:
        await ask(upstream, up)
        await until(lambda: up.open_connections == 0)
        await asyncio.sleep(0.01)  # until its end has come over the wire too
        assert await ask(upstream, up) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 2]


@pytest.mark.parametrize("act", [FIN, RST])
async def test_the_replacement_of_a_connection_is_not_replaced_again(upstream: PooledHttpClient, act: Act) -> None:
    async with ScriptedUpstream([HELLO], [act]) as up:
        await ask(upstream, up)
        with pytest.raises(ProviderBadResponse):
            await upstream.send(build_request(up, method="GET"))
        assert [seen.connection for seen in up.received] == [1, 1, 2]


@pytest.mark.parametrize("act", [FIN, RST])
async def test_a_fresh_connection_that_dies_is_not_tried_again(upstream: PooledHttpClient, act: Act) -> None:
    async with ScriptedUpstream([act], [HELLO]) as up:
        with pytest.raises(ProviderBadResponse):
            await upstream.send(build_request(up))
        assert len(up.received) == 1


@pytest.mark.parametrize("act", [FIN, RST])
@pytest.mark.parametrize("cut", [1, 8, 13, 17, 30, len(HEAD), len(HEAD) + 2])
async def test_a_reused_connection_that_dies_within_the_headers_is_not_tried_again(
    upstream: PooledHttpClient, act: Act, cut: int
) -> None:
    async with ScriptedUpstream([HELLO], [HEAD[:cut], 0.01, act], [HELLO]) as up:
        await ask(upstream, up)
        with pytest.raises(ProviderBadResponse):
            await upstream.send(build_request(up))
        assert len(up.received) == 2


async def test_a_reused_connection_that_stays_silent_is_a_timeout_and_not_tried_again(
    upstream: PooledHttpClient,
) -> None:
    async with ScriptedUpstream([HELLO], [STALL], [HELLO]) as up:
        await ask(upstream, up)
        with pytest.raises(ProviderTimeout):
            await upstream.send(build_request(up, Timeouts(total_s=0.1)))
        assert len(up.received) == 2


async def test_a_refused_connection_is_an_error(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        there = build_request(up)
    with pytest.raises(ProviderBadResponse) as caught:
        await upstream.send(there)
    assert caught.value.phase == "connect"


@pytest.mark.parametrize("name", ["X-Line", "X\r\nLine"])
async def test_headers_that_cannot_be_sent_are_an_error_and_reach_nobody(upstream: PooledHttpClient, name: str) -> None:
    async with ScriptedUpstream([HELLO]) as up:
        with pytest.raises(ProviderError):
            await upstream.send(HttpRequest("POST", up.base_url, {**HEADERS, name: "a\r\nX-Injected: b"}, b"{}"))
        assert not up.received


@pytest.mark.parametrize(
    "script",
    [
        [answer(b"hello")[:-2], FIN],
        [answer(b"hello")[:-2], RST],
        [SSE_HEAD, chunk(b"hel"), FIN],
        [SSE_HEAD, chunk(b"hel"), RST],
        [SSE_HEAD, chunk(b"hel"), b"5\r\n", FIN],
        [SSE_HEAD, chunk(b"hel"), b"zz\r\nwhat", FIN],
        [SSE_HEAD, chunk(b"hel"), b"-5\r\nwhat\r\n", FIN],
        [SSE_HEAD, chunk(b"hel"), b"ffffffffffffffffff\r\nwhat\r\n", FIN],
    ],
    ids=[
        "length FIN",
        "length RST",
        "chunked FIN",
        "chunked RST",
        "cut chunk",
        "bad size",
        "negative size",
        "overflow",
    ],
)
async def test_a_body_cut_off_delivers_what_came_and_then_raises(upstream: PooledHttpClient, script: Script) -> None:
    async with ScriptedUpstream([part for step in script for part in (step, 0.02)]) as up:
        response = await upstream.send(build_request(up))
        got: list[bytes] = []
        with pytest.raises(ProviderBadResponse):
            await response.pump(lambda piece, _raw: bool(got.append(piece)))  # type: ignore[func-returns-value]
        response.close()
        assert b"".join(got) == b"hel"
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("framing", [[answer(b"hello")[:-2], FIN], [SSE_HEAD, chunk(b"hel"), FIN]])
async def test_reading_a_body_cut_off_raises(upstream: PooledHttpClient, framing: Script) -> None:
    async with ScriptedUpstream(framing) as up:
        with pytest.raises(ProviderBadResponse):
            await ask(upstream, up)


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        HEAD + b"Content-Length: -2\r\n\r\n{}",
        HEAD + b"Content-Length: 2, 2\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"X-Nul: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"X-Long: " + b"x" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"".join(b"X-%d: y\r\n" % index for index in range(5_000)) + b"Content-Length: 2\r\n\r\n{}",
    ],
    ids=[
        "no http", "bad status", "bad version", "tls", "two lengths", "negative length", "length list",
        "length and chunked", "nul", "20 KB header", "5000 headers",
    ],
)  # fmt: skip
async def test_a_malformed_answer_is_the_providers_error_and_its_connection_is_broken(
    upstream: PooledHttpClient, raw: bytes
) -> None:
    async with ScriptedUpstream([raw, STALL]) as up:
        with pytest.raises(ProviderBadResponse):
            await asyncio.wait_for(ask(upstream, up), 2)
        await asyncio.wait_for(up.hung_up.wait(), 2)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(raw=st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda tail: WHOLE[:-4] + tail)))
async def test_whatever_a_provider_answers_only_upstream_faults_come_out(
    upstream: PooledHttpClient, raw: bytes
) -> None:
    async with ScriptedUpstream([raw, FIN]) as up:
        try:
            response = await upstream.send(build_request(up))
        except ProviderError:
            return
        try:
            assert isinstance(await response.read(LIMIT), bytes)
        except ProviderError:
            pass
        finally:
            response.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_and_no_credential_is_sent_on(upstream: PooledHttpClient, status: int) -> None:
    async with ScriptedUpstream([HELLO]) as thief:
        away = answer(b"", status, Location=f"http://127.0.0.1:{thief.port}/steal")
        async with ScriptedUpstream([away]) as up:
            response = await upstream.send(build_request(up))
            assert response.status == status
            response.close()
        assert thief.connections == 0


async def test_cookies_are_never_kept(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(b"hello", Set_Cookie="session=1; Path=/")]) as up:
        await ask(upstream, up)
        await ask(upstream, up)
        assert "cookie" not in up.received[1].headers


async def test_proxies_and_passwords_of_the_environment_are_not_used(
    upstream: PooledHttpClient, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    netrc = f"{tmp_path}/netrc"
    with open(netrc, "w", encoding="ascii") as file:  # noqa: ASYNC230, PTH123
        file.write("machine 127.0.0.1 login someone password secret\n")
    async with ScriptedUpstream([HELLO]) as proxy, ScriptedUpstream([HELLO]) as up:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv("NETRC", netrc)
        response = await upstream.send(
            HttpRequest("GET", up.base_url, {"Accept": "*/*", "Accept-Encoding": "identity"})
        )
        response.close()
        assert proxy.connections == 0
        assert "authorization" not in up.received[0].headers


async def test_the_plans_own_proxy_is_used(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([HELLO]) as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        response = await upstream.send(build_request(proxy, url="http://provider.invalid/v1/ask", proxy=address))
        assert await response.read(LIMIT) == b"hello"
        response.close()
        assert proxy.received[0].path == "http://provider.invalid/v1/ask"


async def test_tls_goes_through_the_plans_proxy_in_a_tunnel(upstream: PooledHttpClient) -> None:
    answers: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        answers.append(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        there = HttpRequest("POST", "https://provider.invalid/v1/ask", HEADERS, b"{}", proxy=address)
        with pytest.raises(ProviderBadResponse):
            await upstream.send(there)
        await until(lambda: len(answers) == 2)
        server.close()
    asked, hello = answers
    assert asked.startswith(b"CONNECT provider.invalid:443 ")
    assert b"provider-key" not in asked
    assert hello == b"\x16", "the first byte through the tunnel is a TLS handshake"


@pytest.mark.parametrize("wait", [0, 0.02], ids=["with the end", "after the end"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize(
    "extra",
    [b"x", b"HTTP/1.1 200 OK\r\nX-Half: ", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"],
    ids=["garbage", "half an answer", "a whole answer"],
)
async def test_bytes_after_the_end_never_reach_the_next_request(
    upstream: PooledHttpClient, wait: float, framing: str, extra: bytes
) -> None:
    body = [HELLO] if framing == "length" else [SSE_HEAD, chunk(b"hello") + LAST_CHUNK]
    script: list[Step] = [*body, wait, extra] if wait else [*body[:-1], body[-1] + extra]
    async with ScriptedUpstream(script, [HELLO]) as up:
        assert await ask(upstream, up) == b"hello"
        await until(lambda: up.open_connections == 0)
        assert await ask(upstream, up) == b"hello"
        assert [seen.connection for seen in up.received] == [1, 2]


@pytest.mark.parametrize("name", ["gzip", "GZIP", "deflate"])
async def test_a_compressed_answer_is_decoded(upstream: PooledHttpClient, name: str) -> None:
    packed = gzip.compress(b"hello" * 1000) if name.lower() == "gzip" else zlib.compress(b"hello" * 1000)
    async with ScriptedUpstream([answer(packed, Content_Encoding=name)]) as up:
        assert await ask(upstream, up) == b"hello" * 1000


async def test_a_compressed_stream_is_decoded_as_it_comes(upstream: PooledHttpClient) -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(b"one") + packer.flush(zlib.Z_SYNC_FLUSH), packer.compress(b"two") + packer.flush()]
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    async with ScriptedUpstream([head, chunk(pieces[0]), 0.02, chunk(pieces[1]), LAST_CHUNK]) as up:
        response = await upstream.send(build_request(up))
        first: list[bytes] = []
        await response.pump(lambda piece, _raw: bool(first.append(piece)) or True)  # type: ignore[func-returns-value]
        assert first == [b"one"]
        assert await pump_all(response) == b"two"
        response.close()


def encoded(*values: str) -> bytes:
    lines = b"".join(b"Content-Encoding: %b\r\n" % value.encode() for value in values)
    body = gzip.compress(gzip.compress(b"hello"))
    return HEAD + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "values",
    [["br"], ["zstd"], ["x-secret"], ["gzip, gzip"], ["gzip", "gzip"], ["identity", "gzip"], ["gzip", "br"]],
    ids="+".join,
)  # fmt: skip
async def test_an_unknown_or_double_encodingis_refused_and_its_connection_is_broken(
    upstream: PooledHttpClient, values: list[str]
) -> None:
    async with ScriptedUpstream([encoded(*values)[:-1], STALL]) as up:
        with pytest.raises(ProviderBadResponse):
            (await upstream.send(build_request(up))).close()
        await asyncio.wait_for(up.hung_up.wait(), 2)


async def read_corrupt(response: HttpResponse) -> bytes:
    try:
        return await response.read(LIMIT)
    finally:
        response.close()


async def test_a_body_that_is_not_encoded_as_it_says_is_an_error(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(b"this is not gzip at all", Content_Encoding="gzip")]) as up:
        with pytest.raises(ProviderBadResponse):
            await read_corrupt(await upstream.send(build_request(up)))


@pytest.mark.slow
async def test_a_bomb_is_given_up_at_the_limit_in_bounded_memory(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([answer(compress_run(b"\0", 256), Content_Encoding="gzip")]) as up:
        response = await upstream.send(build_request(up))
        tracemalloc.start()
        try:
            with pytest.raises(ProviderBadResponse):
                await response.read(LIMIT)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        response.close()
        assert peak < 24 * LIMIT


async def test_an_endless_row_of_interim_answers_is_the_providers_error(upstream: PooledHttpClient) -> None:
    async with ScriptedUpstream([Flood(b"HTTP/1.1 100 Continue\r\n\r\n", 1 << 30)]) as up:
        with pytest.raises(ProviderBadResponse):
            await upstream.send(build_request(up))
        await until(lambda: up.open_connections == 0)


async def test_interim_answers_are_passed_over(upstream: PooledHttpClient) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with ScriptedUpstream([b"HTTP/1.1 100 Continue\r\n\r\n", early, HELLO]) as up:
        assert await ask(upstream, up) == b"hello"


CUT = answer(gzip.compress(b"hello" * 100)[:-9], Content_Encoding="gzip")


@pytest.mark.parametrize("early", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("whole", [SSE_HEAD + b"zz\r\n{}\r\n", CUT], ids=["bad chunk", "cut gzip"])
async def test_a_body_that_is_broken_from_its_first_byte_is_no_fault_of_the_head(
    upstream: PooledHttpClient, whole: bytes, early: int
) -> None:
    """However the pieces lie, with ``early`` bytes of the head's end before the rest: the prompt is paid for."""
    at = whole.index(b"\r\n\r\n") + 4 - early
    pieces: list[bytes | float] = [whole[:at], 0.01, whole[at:]] if early else [whole]
    async with ScriptedUpstream([*pieces, STALL]) as up:
        response = await upstream.send(build_request(up))
        assert response.status == 200
        with pytest.raises(ProviderBadResponse) as caught:
            await pump_all(response)
        assert (caught.value.phase, caught.value.passing) == ("body", False)
        response.close()
