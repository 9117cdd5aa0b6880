"""Files that are read as they come, and webhooks: what the guarded way asks, sends, follows, and where it stops."""

import asyncio
import gc
import gzip
from collections.abc import AsyncIterator, Callable

import attrs
import pytest

from gateway.domain.ip_address import Networks, parse_networks
from gateway.errors import EgressRefused, ProviderBadResponse, ProviderContentGone, ProviderError, ProviderTimeout
from gateway.upstream.interface import FetchedFile, FileRefused, FileRequest
from gateway.upstream.safe_fetch import MAX_REDIRECTS, SafeFetcher
from gateway.upstream.safe_fetch_response import MAX_DISCARDED_BYTES, PIECE_BYTES, SafeFetchResponse
from tests.support.scripted_upstream import FIN, LAST_CHUNK, RST, STALL, Flood, Script, ScriptedUpstream, answer, chunk
from tests.support.upstream_requests import until

FILM = bytes(range(256)) * 1024
FILE = answer(FILM, content_type="video/mp4")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\n"
SIGNATURE = (("Authorization", "Bearer provider-key"), ("x-goog-api-key", "provider-key"))
LOOPBACK = parse_networks(["127.0.0.0/8"])
HEADERS = {"Content-Type": "application/json", "User-Agent": "model-gateway", "webhook-id": "evt_1"}


class Allowing:
    """A guard, and what its operator allows at the moment."""

    def __init__(self) -> None:
        self.networks: Networks = ()
        self.fetcher = SafeFetcher(find_allowed_networks=lambda: self.networks)


@pytest.fixture
async def guard() -> AsyncIterator[Allowing]:
    allowing = Allowing()
    yield allowing
    await allowing.fetcher.close()
    del allowing
    gc.collect(1)  # the young ones: what was not released says so now, in the test that is to blame


def ask(up: ScriptedUpstream, path: str = "/1.mp4", **more: object) -> FileRequest:
    """A file on the channel's own server, asked for with its key."""
    at = FileRequest(f"http://127.0.0.1:{up.port}{path}", up.base_url, signature=SIGNATURE, connect_s=5, idle_s=5)
    return attrs.evolve(at, **more)  # type: ignore[arg-type]


async def read_all(file: FetchedFile) -> bytes:
    try:
        pieces = []
        while piece := await file.read():
            assert len(piece) <= PIECE_BYTES
            pieces.append(piece)
        assert await file.read() == b""
    finally:
        file.close()
    return b"".join(pieces)


async def fail(guard: Allowing, wanted: FileRequest) -> ProviderError:
    """The fault of a file that must not open: it never says an address, nor any part of a URL."""
    with pytest.raises(ProviderError) as raised:
        await guard.fetcher.open(wanted)
    assert not any(part in raised.value.message for part in ("127", "://", "mp4", "key"))
    return raised.value


async def fail_to_post(guard: Allowing, url: str, timeout_s: float = 5) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        await guard.fetcher.post(url, b"{}", HEADERS, timeout_s)
    assert raised.value.message.startswith("The webhook's ")
    assert not any(part in raised.value.message for part in ("127", "://", "hook?"))
    return raised.value


def redirect(location: str, status: int = 302) -> bytes:
    return answer(b"", status, location=location)


def list_secrets(up: ScriptedUpstream) -> list[bool]:
    """Of each request, whether it had the channel's key; half of it is none."""
    names = {name.lower() for name, _ in SIGNATURE}
    met = [names & seen.headers.keys() for seen in up.received]
    assert all(found in (names, set()) for found in met)
    return [bool(found) for found in met]


@pytest.mark.parametrize(
    ("script", "length"),
    [
        ([FILE], len(FILM)),
        ([CHUNKED, *(chunk(FILM[at : at + 40_000]) for at in range(0, len(FILM), 40_000)), LAST_CHUNK], None),
        ([UNTIL_CLOSE, FILM, FIN], None),
        ([answer(FILM, content_encoding="Identity")], len(FILM)),
    ],
    ids=["length", "chunks", "until close", "identity"],
)
async def test_a_file_comes_whole_and_in_pieces(guard: Allowing, script: Script, length: int | None) -> None:
    async with ScriptedUpstream(script) as up:
        file = await guard.fetcher.open(ask(up))
        assert (file.status, file.length) == (200, length)
        assert await read_all(file) == FILM
        await until(lambda: up.open_connections == 0)


async def test_what_is_asked_is_the_range_with_the_signature_and_no_encoding(guard: Allowing) -> None:
    async with ScriptedUpstream([answer(b"two", 206, content_range="bytes 4-6/9")]) as up:
        file = await guard.fetcher.open(ask(up, "/v?a=%2F", byte_range="bytes=4-6"))
        assert (file.status, file.headers["content-RANGE"]) == (206, "bytes 4-6/9")
        assert await read_all(file) == b"two"
        (seen,) = up.received
        assert (seen.method, seen.path) == ("GET", "/v?a=%2F")
        assert {name: value for name, value in seen.headers.items() if name != "connection"} == {
            "host": f"127.0.0.1:{up.port}",
            "accept": "*/*",
            "accept-encoding": "identity",
            "range": "bytes=4-6",
            **{name.lower(): value for name, value in SIGNATURE},
        }


async def test_the_signature_is_the_trusted_origins_alone(guard: Allowing) -> None:
    guard.networks = LOOPBACK
    async with ScriptedUpstream([FILE]) as store:
        hop = redirect(f"http://127.0.0.1:{store.port}/1.mp4")
        async with ScriptedUpstream([redirect("/2")], [hop]) as up:
            assert await read_all(await guard.fetcher.open(ask(up, byte_range="bytes=0-"))) == FILM
            assert (list_secrets(up), list_secrets(store)) == ([True, True], [False])
            assert store.received[0].headers["range"] == "bytes=0-"


async def test_a_chain_that_has_left_the_trusted_origin_is_not_signed_when_it_leads_back(guard: Allowing) -> None:
    guard.networks = LOOPBACK
    async with ScriptedUpstream([FILE]) as up, ScriptedUpstream([redirect(up.base_url)]) as elsewhere:
        away = ask(up, url=elsewhere.base_url)
        assert await read_all(await guard.fetcher.open(away)) == FILM
        assert list_secrets(elsewhere) + list_secrets(up) == [False, False]


async def test_nothing_is_trusted_where_no_origin_is_named(guard: Allowing) -> None:
    async with ScriptedUpstream([FILE]) as up:
        assert "fetches nothing from" in (await fail(guard, ask(up, trusted_origin=None))).message
        guard.networks = LOOPBACK
        assert await read_all(await guard.fetcher.open(ask(up, trusted_origin=None))) == FILM
        assert list_secrets(up) == [False]


async def test_a_redirect_from_the_trusted_origin_is_judged(guard: Allowing) -> None:
    async with ScriptedUpstream([FILE]) as inside, ScriptedUpstream([redirect(inside.base_url)]) as up:
        assert "fetches nothing from" in (await fail(guard, ask(up))).message
        assert inside.connections == 0
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("more", [0, 1])
async def test_redirects_are_followed_three_times(guard: Allowing, more: int) -> None:
    hops: list[Script] = [[redirect(f"/{number}", 307)] for number in range(MAX_REDIRECTS + more)]
    async with ScriptedUpstream(*hops, [FILE]) as up:
        if more:
            assert "too often" in (await fail(guard, ask(up))).message
        else:
            assert await read_all(await guard.fetcher.open(ask(up))) == FILM
        assert len(up.received) == 1 + MAX_REDIRECTS


@pytest.mark.parametrize("status", [201, 204, 206, 300, 304, 400, 401, 403, 416, 429, 500, 503])
async def test_only_a_200_is_a_file(guard: Allowing, status: int) -> None:
    async with ScriptedUpstream([answer(b"" if status in {204, 304} else b"secret", status)]) as up:
        error = await fail(guard, ask(up))
        assert f"status {status}" in error.message
        assert type(error) is FileRefused
        assert error.answer_status == status
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize(("status", "opens"), [(200, True), (206, True), (416, True), (304, False), (500, False)])
async def test_of_a_range_some_other_answers_are_heard(guard: Allowing, status: int, opens: bool) -> None:
    async with ScriptedUpstream([answer(b"" if status == 304 else b"part", status)]) as up:
        wanted = ask(up, byte_range="bytes=9-")
        if opens:
            file = await guard.fetcher.open(wanted)
            assert (file.status, file.length, await read_all(file)) == (status, 4, b"part")
        else:
            assert f"status {status}" in (await fail(guard, wanted)).message


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize("wanted", [None, "bytes=0-"])
async def test_a_file_that_is_not_there_is_told_apart(guard: Allowing, status: int, wanted: str | None) -> None:
    async with ScriptedUpstream([answer({"error": "secret"}, status)]) as up:
        assert isinstance(await fail(guard, ask(up, byte_range=wanted)), ProviderContentGone)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
async def test_an_encoded_fileis_refused_for_its_ranges_and_lengths_would_lie(guard: Allowing, encoding: str) -> None:
    async with ScriptedUpstream([answer(gzip.compress(b"x"), content_encoding=encoding)]) as up:
        assert isinstance(await fail(guard, ask(up)), ProviderBadResponse)
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize(
    "end",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx", FIN],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx", RST],
        [CHUNKED, chunk(b"x"), FIN],
        [CHUNKED, chunk(b"x"), b"a\r\nx", FIN],
        [CHUNKED, chunk(b"x"), b"zz\r\n", STALL],
        [CHUNKED, chunk(b"x"), 0.01, b"zz\r\n", STALL],
    ],
)
async def test_a_file_that_breaks_off_is_no_file(guard: Allowing, end: Script) -> None:
    async with ScriptedUpstream(end) as up:
        with pytest.raises(ProviderBadResponse) as raised:  # noqa: PT012 - what breaks at once may do so at its headers
            file = await guard.fetcher.open(ask(up))
            while await file.read():
                pass
        assert not isinstance(raised.value, ProviderTimeout)
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("script", [[FIN], [RST], [b"no http\r\n\r\n", FIN], [b"HTTP/1.1 200", FIN]])
async def test_what_has_no_headers_is_an_upstream_error(guard: Allowing, script: Script) -> None:
    async with ScriptedUpstream(script) as up:
        assert isinstance(await fail(guard, ask(up)), ProviderBadResponse)
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize(
    "scripts",
    [[[STALL]], [[b"HTTP/1.1 200 OK\r\n", STALL]], [[0.06, redirect("/slow")], [0.06, FILE]]],
    ids=["silent", "headers", "both"],
)
async def test_headers_have_one_deadline_with_their_redirects(guard: Allowing, scripts: list[Script]) -> None:
    async with ScriptedUpstream(*scripts) as up:
        assert isinstance(await fail(guard, ask(up, connect_s=0.1)), ProviderTimeout)
        await until(lambda: up.open_connections == 0)


async def test_a_body_has_no_deadline_as_long_as_something_comes(guard: Allowing) -> None:
    async with ScriptedUpstream([UNTIL_CLOSE, *(step for _ in range(30) for step in (b"x", 0.03)), FIN]) as up:
        assert await read_all(await guard.fetcher.open(ask(up, connect_s=0.6, idle_s=0.6))) == b"x" * 30


async def test_a_body_that_stops_coming_is_given_up(guard: Allowing) -> None:
    async with ScriptedUpstream([FILE[:-1], STALL]) as up:
        file = await guard.fetcher.open(ask(up, idle_s=0.05))
        with pytest.raises(ProviderTimeout):  # noqa: PT012 - after as many pieces as there are
            while await file.read():
                pass
        await until(lambda: up.open_connections == 0)
        with pytest.raises(ProviderBadResponse):
            await file.read()


async def test_a_slow_reader_holds_little_and_slows_the_file_down(guard: Allowing) -> None:
    async with ScriptedUpstream([UNTIL_CLOSE, Flood(b"x" * 65_536, 1_000), FIN]) as up:
        file = await guard.fetcher.open(ask(up))
        assert await file.read()
        await asyncio.sleep(0.05)
        held = up.flooded
        assert held < 16 << 20  # most of it in the sockets of this machine
        await asyncio.sleep(0.05)
        assert up.flooded == held
        assert isinstance(file, SafeFetchResponse)
        assert sum(map(len, file._response.content._buffer)) < 1 << 20
        file.close()
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("opened", [False, True])
async def test_whoever_gives_up_leaves_no_connection(guard: Allowing, opened: bool) -> None:
    async with ScriptedUpstream([answer(b"x")[:-1] if opened else b"", STALL]) as up:

        async def read() -> None:
            await read_all(await guard.fetcher.open(ask(up)))

        task = asyncio.create_task(read())
        await until(lambda: up.received)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: up.open_connections == 0)


async def test_a_file_that_is_closed_is_not_read_on(guard: Allowing) -> None:
    async with ScriptedUpstream([FILE[:-1], STALL]) as up:
        file = await guard.fetcher.open(ask(up))
        file.close()
        file.close()
        await until(lambda: up.open_connections == 0)
        with pytest.raises(ProviderBadResponse):  # noqa: PT012 - whatever had come before
            while await file.read():
                pass


async def test_a_file_is_asked_of_the_channels_proxy(guard: Allowing) -> None:
    async with ScriptedUpstream([FILE]) as proxy:
        by = {"proxy": f"http://127.0.0.1:{proxy.port}"}
        assert await read_all(await guard.fetcher.open(ask(proxy, url="http://files.test/1", **by))) == FILM
        assert "fetches nothing from" in (await fail(guard, ask(proxy, url="http://10.0.0.5:8188/", **by))).message
        assert ([seen.path for seen in proxy.received], list_secrets(proxy)) == (["http://files.test/1"], [False])


@pytest.mark.parametrize("status", [200, 204, 302, 307, 404, 410, 500])
async def test_a_webhook_is_sent_as_it_is_and_its_status_heard_redirects_too(guard: Allowing, status: int) -> None:
    guard.networks = LOOPBACK
    async with ScriptedUpstream([answer(b"" if status == 204 else b"thanks", status, location="/2")]) as up:
        assert await guard.fetcher.post(f"{up.base_url}/hook?a=%2F", b'{"a":1}', HEADERS, 5) == status
        (seen,) = up.received
        assert (seen.method, seen.path, seen.body) == ("POST", "/v1/hook?a=%2F", b'{"a":1}')
        assert {name: value for name, value in seen.headers.items() if name != "connection"} == {
            "host": f"127.0.0.1:{up.port}",
            "accept": "*/*",
            "accept-encoding": "identity",
            "content-length": "7",
            **{name.lower(): value for name, value in HEADERS.items()},
        }
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "[::ffff:127.0.0.1]:{port}", "localhost:{port}", "10.0.0.1:25"])
async def test_a_webhook_goes_nowhere_private_unless_it_is_allowed(guard: Allowing, host: str) -> None:
    async with ScriptedUpstream([answer(b"")]) as up:
        error = await fail_to_post(guard, f"http://{host.format(port=up.port)}/hook")
        assert "does not call" in error.message
        assert isinstance(error, EgressRefused) == (not host.startswith("localhost"))  # a name may lead elsewhere
        assert up.connections == 0


@pytest.mark.parametrize("port", [22, 25, 6379])
async def test_a_webhook_goes_to_no_other_service_where_its_address_is_allowed(guard: Allowing, port: int) -> None:
    guard.networks = LOOPBACK
    error = await fail_to_post(guard, f"http://127.0.0.1:{port}/hook")
    assert isinstance(error, EgressRefused)
    assert "does not call" in error.message


@pytest.mark.parametrize(
    "url", ["", "hook", "ftp://files.test/", "http://u:p@files.test/", "http://[/", "//files.test"]
)
async def test_a_webhook_that_is_no_url_is_not_sent(guard: Allowing, url: str) -> None:
    error = await fail_to_post(guard, url)
    assert isinstance(error, EgressRefused)
    assert "not a plain" in error.message


@pytest.mark.parametrize(
    "tail",
    [
        [STALL],
        [b"x", FIN],
        [b"x", RST],
        [Flood(b"x" * 65_536, 1_000), STALL],
        [*(step for _ in range(100) for step in (b"x", 0.01))],
    ],
    ids=["silent", "cut", "reset", "flood", "trickle"],
)
async def test_of_a_receivers_answer_only_the_status_counts(guard: Allowing, tail: Script) -> None:
    guard.networks = LOOPBACK
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
    async with ScriptedUpstream([head, *tail]) as up:
        assert await guard.fetcher.post(up.base_url, b"{}", HEADERS, 0.4) == 200
        await until(lambda: up.open_connections == 0)
        assert up.flooded < 16 << 20


async def test_a_receiver_may_say_what_belongs_to_its_status(guard: Allowing) -> None:
    """It is not reset while it still says the little that is read of it."""
    guard.networks = LOOPBACK
    answer = asyncio.Event()

    async def note(_received: object) -> None:
        answer.set()

    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % MAX_DISCARDED_BYTES
    async with ScriptedUpstream([head, 0.03, b"x" * (MAX_DISCARDED_BYTES - 1), 0.03, b"x", note]) as up:
        assert await guard.fetcher.post(up.base_url, b"{}", HEADERS, 5) == 200
        await asyncio.wait_for(answer.wait(), 3)


@pytest.mark.parametrize("script", [[FIN], [RST], [b"no http\r\n\r\n", FIN], [b"HTTP/1.1 200", FIN]])
async def test_a_receiver_that_does_not_answer_is_an_upstream_error(guard: Allowing, script: Script) -> None:
    guard.networks = LOOPBACK
    async with ScriptedUpstream(script) as up:
        assert isinstance(await fail_to_post(guard, up.base_url), ProviderBadResponse)
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("script", [[STALL], [b"HTTP/1.1 200 OK\r\n", STALL]], ids=["silent", "headers"])
async def test_a_receiver_has_a_deadline(guard: Allowing, script: Script) -> None:
    guard.networks = LOOPBACK
    async with ScriptedUpstream(script) as up:
        assert isinstance(await fail_to_post(guard, up.base_url, timeout_s=0.05), ProviderTimeout)
        await until(lambda: up.open_connections == 0)


@pytest.mark.parametrize("send", ["open", "post"])
async def test_headers_that_cannot_be_sent_are_not(guard: Allowing, send: str) -> None:
    guard.networks = LOOPBACK
    async with ScriptedUpstream([FILE]) as up:
        ways: dict[str, Callable[[], object]] = {
            "open": lambda: guard.fetcher.open(ask(up, byte_range="bytes=0-\r\nX: y")),
            "post": lambda: guard.fetcher.post(up.base_url, b"", {"X": "a\r\nb"}, 5),
        }
        with pytest.raises(ProviderBadResponse):
            await ways[send]()  # type: ignore[misc]
        assert up.received == []
