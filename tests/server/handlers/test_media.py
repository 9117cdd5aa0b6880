"""Media over HTTP: the signed link is the key; ranges, conditions, and headers that keep a browser safe."""

import asyncio
import io
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from aiohttp.web_response import StreamResponse
from structlog.testing import capture_logs

from gateway.domain.media import MEDIA_PATH, Media, build_link
from gateway.media.signed_links import SignedLinks
from gateway.server.context import SERVICES, MediaServices
from gateway.server.handlers import media as door
from gateway.server.handlers.media import get_media
from gateway.server.middlewares import error_responses, request_context
from gateway.server.protocol import GatewayRunner
from gateway.server.responses import add_common_headers
from gateway.storage.media_files import MediaFiles
from gateway.storage.media_store import MediaStore
from tests.support.image_providers import draw
from tests.support.media_stores import open_media_store
from tests.support.part_services import HTTP, build_services
from tests.support.raw_client import connect, split, talk

KEY = b"k" * 32
NOW = 1_750_000_000.0
TTL_S = 3600.0
IMAGE = draw(64, 64)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
BIG = b"RIFF\0\0\0\0WAVE" + bytes(range(256)) * 64 * 1024
"""16 MB: more than every buffer between here and a reader."""


@attrs.define
class Clock:
    now_s: float = NOW

    def __call__(self) -> float:
        return self.now_s


@attrs.define
class MediaScenario:
    """A server of media alone, with the gateway's middlewares; ``client`` has no key."""

    url: str
    store: MediaStore
    keeper: SignedLinks
    folder: Path
    clock: Clock
    client: aiohttp.ClientSession
    runner: GatewayRunner

    @property
    def connections(self) -> int:
        assert self.runner.server is not None
        return len(self.runner.server.connections)

    async def keep(self, data: bytes = IMAGE) -> str:
        return await self.keeper.create_link(data)

    def get(self, link: str, method: str = "GET", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, self.url + link, headers=named)

    def count_open(self) -> int:
        """Descriptors that this process has of media."""
        targets = []
        for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
            try:
                targets.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
            except FileNotFoundError:
                continue
        return sum(target.startswith(str(self.folder)) for target in targets)


def _add_media(app: web.Application) -> None:
    app.router.add_get(f"{MEDIA_PATH}/{{id}}", get_media)


async def open_shop(
    store: MediaStore, folder: Path, add_routes: Callable[[web.Application], None] = _add_media
) -> AsyncIterator[MediaScenario]:
    clock = Clock()
    app = web.Application(middlewares=[request_context, error_responses])
    add_routes(app)
    app.on_response_prepare.append(add_common_headers)
    keeper, absent = SignedLinks(store, KEY, ttl_s=TTL_S, clock=clock), cast("Any", None)
    media = MediaServices(absent, keeper, absent, absent, absent)
    app[SERVICES] = build_services(clock=clock, http=HTTP, media=media)
    runner = GatewayRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    await web.SockSite(runner, listening).start()
    async with aiohttp.ClientSession(auto_decompress=False) as client:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield MediaScenario(url, store, keeper, folder, clock, client, runner)
    await runner.cleanup()


@pytest.fixture(params=["folder", "bucket"])
async def scenario(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MediaScenario]:
    """What is answered does not depend on where the file is."""
    async with open_media_store(request.param, tmp_path) as store:
        async for opened in open_shop(store, tmp_path):
            yield opened


@pytest.fixture
async def hasty_shop(tmp_path: Path) -> AsyncIterator[MediaScenario]:
    """Nobody gets longer than 0.1 s for a file."""

    def add_routes(app: web.Application) -> None:
        app.router.add_get("/media/{id}", partial(get_media, timeout_s=0.1))

    async for opened in open_shop(MediaFiles(tmp_path), tmp_path, add_routes):
        yield opened


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - nothing to be told by
            await asyncio.sleep(0.005)


# ---- the file


async def test_a_link_leads_to_the_file_without_a_key(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    async with scenario.get(link) as response:
        assert response.status == 200
        assert await response.read() == IMAGE
        assert response.content_length == len(IMAGE)
        assert response.headers["X-Request-Id"].startswith("req_")
        assert "Server" not in response.headers


@pytest.mark.parametrize(
    ("data", "media_type", "disposition", "extension"),
    [
        (IMAGE, "image/png", "inline", "png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg", "inline", "jpg"),
        (SVG, "image/svg+xml", "attachment", "svg"),
        (BIG[:100], "audio/wav", "inline", "wav"),
        (b"\0\0\0\x10ftypmp42\0\0\0\0", "video/mp4", "inline", "mp4"),
    ],
    ids=["png", "jpeg", "svg", "wav", "mp4"],
)
async def test_a_browser_is_told_what_it_is_and_may_do_nothing_with_it(
    scenario: MediaScenario, data: bytes, media_type: str, disposition: str, extension: str
) -> None:
    link = await scenario.keep(data)
    media_id = link.removeprefix("/media/").partition("?")[0]
    assert media_id.endswith(f".{extension}")
    async with scenario.get(link) as response:
        assert await response.read() == data
        reported = {name: response.headers.getall(name) for name in response.headers}
    assert reported["Content-Type"] == [media_type]
    assert reported["Content-Disposition"] == [f'{disposition}; filename="{media_id}"']
    assert reported["X-Content-Type-Options"] == ["nosniff"]
    assert reported["Content-Security-Policy"] == ["default-src 'none'; sandbox"]
    assert reported["Cross-Origin-Resource-Policy"] == ["cross-origin"]
    assert reported["Referrer-Policy"] == ["no-referrer"]
    assert reported["Cache-Control"] == [f"private, max-age={TTL_S:.0f}, immutable"]
    assert reported["Accept-Ranges"] == ["bytes"]
    assert "Content-Encoding" not in reported


async def test_it_may_be_kept_as_long_as_its_link_works(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    scenario.clock.now_s += TTL_S - 60
    async with scenario.get(link) as response:
        assert response.headers["Cache-Control"] == "private, max-age=60, immutable"


async def test_head_is_get_without_the_file(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    async with scenario.get(link) as response:
        whole = {name.lower(): value for name, value in response.headers.items()}
    async with scenario.get(link, "HEAD") as response:
        assert response.status == 200
        head = {name.lower(): value for name, value in response.headers.items()}
        assert await response.read() == b""
    for headers in (whole, head):
        del headers["date"], headers["x-request-id"]
    assert head == whole
    assert head["content-length"] == str(len(IMAGE))
    async with scenario.get(link.replace("signature=", "signature=0"), "HEAD") as response:
        assert response.status == 404


async def test_a_connection_goes_on_after_a_file(scenario: MediaScenario) -> None:
    reader, writer = await connect(scenario.url)
    for data in (IMAGE, BIG, SVG):
        link = await scenario.keep(data)
        writer.write(f"GET {link} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(len(data)) == data
    writer.close()


async def test_a_file_larger_than_every_buffer_arrives_whole(scenario: MediaScenario) -> None:
    link = await scenario.keep(BIG)
    async with scenario.get(link) as response:
        assert await response.read() == BIG
    await eventually(lambda: scenario.count_open() == 0)


async def test_a_compressed_file_beside_it_is_not_sent(scenario: MediaScenario) -> None:
    """aiohttp looks for ``.gz`` and ``.br`` siblings; the store makes none."""
    link = await scenario.keep()
    async with scenario.get(link, Accept_Encoding="gzip, br") as response:
        assert await response.read() == IMAGE


# ---- ranges


SIZE = len(IMAGE)


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-9", 0, 10),
        ("bytes=10-19", 10, 20),
        ("bytes=10-", 10, SIZE),
        ("bytes=0-", 0, SIZE),
        ("bytes=-10", SIZE - 10, SIZE),
        (f"bytes=-{SIZE * 2}", 0, SIZE),
        (f"bytes=5-{SIZE * 2}", 5, SIZE),
        (f"bytes=5-{'9' * 1000}", 5, SIZE),
        (f"bytes={SIZE - 1}-", SIZE - 1, SIZE),
        ("BYTES=1-2", 1, 3),
        ("bytes= ,1-2 ,", 1, 3),
        (f"bytes={'0' * 5000}1-2", 1, 3),
    ],
)
async def test_a_range_is_these_bytes_and_no_others(scenario: MediaScenario, asked: str, start: int, end: int) -> None:
    link = await scenario.keep()
    async with scenario.get(link, Range=asked) as response:
        assert response.status == 206
        assert response.headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
        assert response.headers["Content-Length"] == str(end - start)
        assert response.headers["Content-Type"] == "image/png"
        assert await response.read() == IMAGE[start:end]


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE + 5}", "bytes=-0", f"bytes={'9' * 6000}-"])
async def test_a_range_that_the_file_does_not_have_is_said_to_be_none(scenario: MediaScenario, asked: str) -> None:
    link = await scenario.keep()
    async with scenario.get(link, Range=asked) as response:
        assert response.status == 416
        assert response.headers["Content-Range"] == f"bytes */{SIZE}"
        assert response.content_type == "application/json"
        assert "Content-Disposition" not in response.headers
        assert "max-age" not in response.headers.get("Cache-Control", "")
        error = (await response.json())["error"]
    assert (error["code"], error["param"], error["type"]) == ("range_not_satisfiable", "Range", "new_api_error")
    assert str(SIZE) in error["message"]
    async with scenario.get(link) as response:
        assert await response.read() == IMAGE


IGNORED = [
    "bytes=9-5",
    f"bytes=9{'9' * 30}-{'9' * 30}",
    "bytes=-",
    "bytes=x",
    "bytes=",
    "bytes=0x0-0x9",
    "bytes=0-9-",
    "bytes 0-9",
    "lines=1-2",
    "pages=0-0",
    "",
    "bytes=0-1,3-4",
    "bytes=0-0,-1",
    f"bytes=0-0,{SIZE}-",
    "bytes=\N{ARABIC-INDIC DIGIT ONE}-",
]
"""What RFC 9110, 14.2, says to ignore, or allows to."""


@pytest.mark.parametrize("asked", IGNORED)
async def test_a_range_that_is_to_be_ignored_is_the_whole_file(scenario: MediaScenario, asked: str) -> None:
    link = await scenario.keep()
    async with scenario.get(link, Range=asked) as response:
        assert response.status == 200
        assert "Content-Range" not in response.headers
        assert await response.read() == IMAGE


async def test_a_range_in_two_lines_is_a_list_of_several(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    raw = f"GET {link} HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0\r\nRange: bytes=1-1\r\nConnection: close\r\n\r\n"
    answer = split(await talk(scenario.url, raw.encode()))
    assert (answer.status, answer.body) == (200, IMAGE)


async def test_head_has_no_ranges(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    for asked in ("bytes=0-9", f"bytes={SIZE}-"):
        async with scenario.get(link, "HEAD", Range=asked) as response:
            assert (response.status, response.headers["Content-Length"]) == (200, str(SIZE))
            assert "Content-Range" not in response.headers


async def test_the_ranges_of_a_file_make_the_file(scenario: MediaScenario) -> None:
    link, pieces = await scenario.keep(BIG), []
    for start in range(0, len(BIG), 5_000_000):
        async with scenario.get(link, Range=f"bytes={start}-{start + 4_999_999}") as response:
            assert response.status == 206
            pieces.append(await response.read())
    assert b"".join(pieces) == BIG


# ---- conditions


async def test_what_is_known_is_not_sent_again(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    async with scenario.get(link) as response:
        etag, modified = response.headers["ETag"], response.headers["Last-Modified"]
    for known in ({"If_None_Match": etag}, {"If_None_Match": f'"x", W/{etag}'}, {"If_Modified_Since": modified}):
        async with scenario.get(link, **known) as response:
            assert response.status == 304
            assert await response.read() == b""
            assert response.headers["ETag"] == etag
            assert response.headers["Cache-Control"].startswith("private, max-age=")
    for other in (
        {"If_None_Match": '"x"'},
        {"If_Modified_Since": "Mon, 01 Jan 2001 00:00:00 GMT"},
        {"If_Modified_Since": "yesterday"},
        {"If_None_Match": '"x"', "If_Modified_Since": modified},
        {"If_Match": etag},
    ):
        async with scenario.get(link, **other) as response:
            assert response.status == 200
            assert await response.read() == IMAGE


async def test_a_condition_that_fails_is_said_to(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    for condition in ({"If_Match": '"x"'}, {"If_Unmodified_Since": "Mon, 01 Jan 2001 00:00:00 GMT"}):
        async with scenario.get(link, **condition) as response:
            assert response.status == 412
            assert "max-age" not in response.headers.get("Cache-Control", "")
            assert (await response.json())["error"]["code"] == "precondition_failed"


async def test_a_range_of_what_is_another_file_by_now_is_the_whole(scenario: MediaScenario) -> None:
    """RFC 9110, 13.1.5: the entity tag by the strong comparison, or exactly the date of the file."""
    link = await scenario.keep()
    async with scenario.get(link) as response:
        etag, modified = response.headers["ETag"], response.headers["Last-Modified"]
    later = "Mon, 01 Jan 2035 00:00:00 GMT"
    for other in ("Mon, 01 Jan 2001 00:00:00 GMT", later, '"x"', f"W/{etag}", etag.strip('"'), "yesterday", "*", ""):
        for asked in ("bytes=0-9", f"bytes={SIZE}-"):
            async with scenario.get(link, Range=asked, If_Range=other) as response:
                assert (response.status, await response.read()) == (200, IMAGE), other
    for same in (etag, modified):
        async with scenario.get(link, Range="bytes=0-9", If_Range=same) as response:
            assert (response.status, await response.read()) == (206, IMAGE[:10]), same
        async with scenario.get(link, Range=f"bytes={SIZE}-", If_Range=same) as response:
            assert response.status == 416
        async with scenario.get(link, If_Range=same) as response:
            assert (response.status, await response.read()) == (200, IMAGE)


@pytest.mark.parametrize("name", ["If_Modified_Since", "If_Unmodified_Since"])
async def test_a_date_beyond_all_numbers_is_the_readers_mistake(scenario: MediaScenario, name: str) -> None:
    link = await scenario.keep()
    with capture_logs() as lines:
        async with scenario.get(link, **{name: f"Mon, 20 Nov {'9' * 20} 19:12:08 GMT"}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "invalid_request"
    assert [line["event"] for line in lines] == ["request_served"]


# ---- links that are none


async def check_not_found(scenario: MediaScenario, link: str) -> dict[str, Any]:
    async with scenario.get(link) as response:
        assert response.status == 404, link
        assert response.content_type == "application/json"
        assert "Content-Disposition" not in response.headers
        assert "Cache-Control" not in response.headers
        error = (await response.json())["error"]
    assert error["code"] == "not_found"
    return {**error, "message": error["message"].partition(" (request id")[0]}


async def test_every_bad_link_is_answered_alike(scenario: MediaScenario) -> None:
    good, other = await scenario.keep(), await scenario.keep()
    path, _, query = good.partition("?")
    expires, _, signature = query.partition("&")
    bad = [
        path,
        f"{path}?{expires}",
        f"{path}?{signature}",
        f"{path}?{expires}0&{signature}",
        f"{path}?{expires}&{signature[:-1]}",
        f"{path}?{expires}&{signature}0",
        f"{path}?{expires}&{signature.upper()}",
        f"{path}?{expires}&signature=",
        f"{path}?expires=&{signature}",
        f"{path}?expires=%C3%BC&signature=%FF%00",
        f"{path}?{expires}&signature={'0' * 4_000}",
        f"{other.partition('?')[0]}?{query}",
        f"/media/..%2F..%2Fetc%2Fpasswd?{query}",
        f"/media/%00?{query}",
        f"/media/%FF%C3?{query}",
        build_link(b"x" * 32, path.removeprefix("/media/"), int(NOW) + 60),
        build_link(KEY, path.removeprefix("/media/"), int(NOW)),
        build_link(KEY, f"{'0' * 32}.png", int(NOW) + 60),
    ]
    answers = [await check_not_found(scenario, link) for link in bad]
    assert answers == [answers[0]] * len(bad)
    assert answers[0]["message"].startswith("There is no such file, or its link has expired")


async def test_a_link_expires(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    scenario.clock.now_s += TTL_S
    await check_not_found(scenario, link)
    async with scenario.get(link, If_None_Match="*") as response:
        assert response.status == 404


async def test_what_was_swept_is_not_found(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    await scenario.store.sweep(before_s=0, max_bytes=0)
    await check_not_found(scenario, link)


async def test_what_is_swept_the_moment_before_it_is_sent_is_not_found(tmp_path: Path) -> None:
    """aiohttp would answer with the headers of a picture, to be kept for a day."""

    class Forgetful(MediaFiles):
        async def find(self, media_id: str) -> Any:
            found = await super().find(media_id)
            assert found is not None
            found.path.unlink()
            return found

    async for scenario in open_shop(Forgetful(tmp_path), tmp_path):
        for method in ("GET", "HEAD"):
            async with scenario.get(await scenario.keep(), method) as response:
                assert response.status == 404
                assert response.content_type == "application/json"
                assert "Cache-Control" not in response.headers


@pytest.mark.parametrize("path", ["/media", "/media/", "/media/a/b", "/media/../secret"])
async def test_nothing_else_is_served(scenario: MediaScenario, path: str) -> None:
    answer = split(await talk(scenario.url, f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()))
    assert answer.status == 404
    assert answer.error["code"] == "not_found"


async def test_media_are_read_only(scenario: MediaScenario) -> None:
    link = await scenario.keep()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        async with scenario.get(link, method) as response:
            assert response.status == 405
            assert response.headers["Allow"] == "GET,HEAD"
    async with scenario.get(link) as response:
        assert response.status == 200


# ---- readers


async def test_who_never_reads_is_cut_off_and_holds_neither_file_nor_connection(hasty_shop: MediaScenario) -> None:
    link, port = await hasty_shop.keep(BIG), int(hasty_shop.url.rpartition(":")[2])
    with socket.socket() as deaf, capture_logs() as lines:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", port))
        deaf.sendall(f"GET {link} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        await eventually(lambda: hasty_shop.count_open() == 1)
        await eventually(lambda: hasty_shop.count_open() == hasty_shop.connections == 0 and bool(lines))
    assert [(line["event"], line["status"]) for line in lines] == [("request_served", 499)]


async def test_who_leaves_in_the_middle_holds_no_file(scenario: MediaScenario) -> None:
    link = await scenario.keep(BIG)
    with capture_logs() as lines:
        for _ in range(5):
            reader, writer = await connect(scenario.url)
            writer.write(f"GET {link} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            await reader.readexactly(1000)
            writer.transport.abort()
        await eventually(lambda: len(lines) == 5 and scenario.count_open() == 0)
    assert {(line["event"], line["status"]) for line in lines} == {("request_served", 499)}


async def test_many_may_read_at_once(scenario: MediaScenario) -> None:
    link = await scenario.keep(BIG[:1_000_000])

    async def read() -> bytes:
        async with scenario.get(link) as response:
            return bytes(await response.read())

    assert set(await asyncio.gather(*(read() for _ in range(30)))) == {BIG[:1_000_000]}
    await eventually(lambda: scenario.count_open() == 0)


# ---- the log


async def test_the_log_has_no_link_that_works(scenario: MediaScenario) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger().addHandler(handler)
    link = await scenario.keep()
    path, _, query = link.partition("?")
    signature = query.partition("signature=")[2]
    try:
        with capture_logs() as lines:
            for sent in (link, link + "0", f"{path}?{query}&x=1"):
                async with scenario.get(sent) as response:
                    await response.read()
            await eventually(lambda: len(lines) == 3)
    finally:
        logging.getLogger().removeHandler(handler)
    assert [(line["path"], line["status"]) for line in lines] == [(path, 200), (path, 404), (path, 200)]
    assert signature not in f"{lines}{written.getvalue()}"
    assert "signature" not in f"{lines}{written.getvalue()}"


# ---- what is taken for granted of aiohttp


def test_aiohttp_still_has_the_private_methods_that_the_response_overrides() -> None:
    for name in ("_sendfile", "prepare"):
        assert name in vars(web.FileResponse)
    assert "_prepare_headers" in vars(StreamResponse)
    assert "_prepare_headers" not in vars(web.FileResponse)
    assert {"_sendfile", "_prepare_headers", "prepare"} <= vars(door.FileResponse).keys()


async def test_a_file_is_closed_if_its_client_leaves_while_a_thread_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(draw())
    request = make_mocked_request("GET", "/media/a")
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    go_on = threading.Event()
    busy = asyncio.get_running_loop().run_in_executor(None, go_on.wait, 5)
    response = door.FileResponse(Media("a", "image/png", path.stat().st_size, 0.0, path), {})
    sending = asyncio.create_task(response.prepare(request))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    go_on.set()
    await busy
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)  # behind the thread's work of before
    assert response._opened_file is None or response._opened_file.closed


async def test_a_file_is_closed_if_its_client_leaves_after_a_thread_opened_it(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(draw())
    opened, go_on = threading.Event(), threading.Event()

    class Slow(door.FileResponse):
        def _make_response(self, request: Any, accept_encoding: str) -> Any:
            found = super()._make_response(request, accept_encoding)
            opened.set()
            go_on.wait(5)
            return found

    response = Slow(Media("a", "image/png", path.stat().st_size, 0.0, path), {})
    sending = asyncio.create_task(response.prepare(make_mocked_request("GET", "/media/a")))
    await asyncio.to_thread(opened.wait, 5)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    go_on.set()
    assert response._opened_file is not None
    assert response._opened_file.closed
