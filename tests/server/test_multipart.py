"""Forms: read in any order and at any cut, refused with the name of what is wrong, and never kept in memory or left."""

import asyncio
import base64
import gzip
import hashlib
import io
import os
import random
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import psutil
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway.domain.upload import HEAD_BYTES
from gateway.errors import ClientDisconnected, GatewayError, InvalidRequest, RequestTimeout
from gateway.server.multipart import PIECE_BYTES, FormLimits, MultipartReader
from gateway.storage.upload_spool import MAX_UPLOADS, UploadSpool
from tests.support.forked_commands import Forked
from tests.support.gateway import check_tasks
from tests.support.multipart_bodies import MB, TYPE, count_open, form, part, watch_memory

LIMITS = FormLimits(max_body_bytes=8 * MB, max_file_bytes=4 * MB)
PNG = b"\x89PNG\r\n\x1a\n"
MAX_TURN_S = 0.05


def data_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - bytes that differ, not secrets


@attrs.define
class FormServer:
    """A real server at which forms are read, and what became of each.

    Attributes:
        seen: texts, and files as field, filename, type and bytes.
        ended: the fault of each form that was not read, by its class.
    """

    spool: UploadSpool
    limits: FormLimits
    url: str = ""
    seen: list[Any] = attrs.Factory(list)
    ended: list[str] = attrs.Factory(list)

    async def post(self, request: web.Request) -> web.Response:
        reader = MultipartReader(request, self.spool, self.limits, account_id=1)
        try:
            received = await reader.read()
            files = [
                (file.field, file.filename, file.media_type, await file.spooled.read(0, file.size))
                for file in received.files
            ]
            assert [file.head for file in received.files] == [data[:HEAD_BYTES] for *_, data in files]
            self.seen.append((received.fields, files))
            return web.json_response({})
        except GatewayError as fault:
            self.ended.append(type(fault).__name__)
            error = {"code": fault.code, "message": fault.message, "param": fault.param}
            return web.json_response(error, status=fault.status)
        except (ClientDisconnected, asyncio.CancelledError) as gone:
            self.ended.append(type(gone).__name__)
            raise ConnectionResetError from None
        finally:
            reader.close()


OpenBooth = Callable[..., Awaitable[FormServer]]


@pytest.fixture
async def open_booth(tmp_path: Path) -> AsyncIterator[OpenBooth]:
    runners = []

    async def start(limits: FormLimits = LIMITS, *, cancels: bool = True, limit_bytes: int = 1 << 30) -> FormServer:
        booth = FormServer(UploadSpool(tmp_path / "uploads", limit_bytes=limit_bytes), limits)
        app = web.Application()
        app.router.add_post("/", booth.post)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=cancels, read_bufsize=64 * 1024)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        booth.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        return booth

    yield start
    for runner in runners:
        await runner.cleanup()
    await until(lambda: count_open(tmp_path / "uploads") == 0)
    assert not (tmp_path / "uploads").exists() or list((tmp_path / "uploads").iterdir()) == []


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)


async def send(booth: FormServer, body: Any, content_type: str = TYPE, **headers: str) -> tuple[int, Any]:
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with (
        aiohttp.ClientSession() as session,
        session.post(booth.url, data=data, headers={"Content-Type": content_type, **headers}) as answer,
    ):
        return answer.status, await answer.json()


async def refuse(booth: FormServer, body: Any, content_type: str = TYPE, **headers: str) -> tuple[int, str | None]:
    """Status and param of the fault; nothing of the form may be held."""
    status, error = await send(booth, body, content_type, **headers)
    assert error["message"]
    assert len(error["message"]) < 300
    assert booth.spool.held_bytes == 0
    return status, error["param"]


@attrs.define
class Cut:
    """A request whose body comes in given pieces: what FormReader knows of one."""

    pieces: list[bytes]
    headers: dict[str, str] = attrs.Factory(lambda: {"Content-Type": TYPE})
    content_type: str = "multipart/form-data"
    content_length: int | None = None
    transport: object = True

    @property
    def content(self) -> "Cut":
        return self

    async def read(self, _size: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def read_cut(body: bytes, marks: list[int], limits: FormLimits = LIMITS) -> Any:
    """The form that ``body``, cut at ``marks``, is; None where it is refused as it must be."""
    places = sorted({mark % (len(body) + 1) for mark in marks} - {0})
    pieces = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]

    async def read() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            spool = UploadSpool(Path(folder), limit_bytes=1 << 30)
            request: Any = Cut([piece for piece in pieces if piece])
            reader = MultipartReader(request, spool, limits, account_id=1)
            try:
                received = await reader.read()
                files = [(file.field, file.filename, await file.spooled.read(0, file.size)) for file in received.files]
            except InvalidRequest:
                assert spool.held_bytes == 0
                return None
            reader.close()
            assert spool.held_bytes == 0
            return received.fields, files

    return asyncio.run(read())


TRICKY = st.lists(
    st.sampled_from([b"\r\n--edge", b"\r\n", b"\r", b"\n--edge--", b"--edg", b"e", b"-", b"x", b"\x00", b"\r\n--edg"]),
    max_size=8,
).map(b"".join)
DATA = TRICKY.filter(lambda data: b"\r\n--edge" not in b"\r\n" + data)


@given(st.lists(st.tuples(st.booleans(), DATA), max_size=4), st.lists(st.integers(0, 2000), max_size=6))
def test_a_form_is_the_same_at_any_cut(parts: list[tuple[bool, bytes]], marks: list[int]) -> None:
    body = form(*(part("f", data, filename="n" if is_file else None) for is_file, data in parts))
    expected = (
        tuple(("f", data.decode()) for is_file, data in parts if not is_file),
        [("f", "n", data) for is_file, data in parts if is_file],
    )
    assert read_cut(body, marks) == expected
    assert read_cut(body + b"epilogue\r\n--edge\r\n", marks) == expected


def test_a_form_is_the_same_in_single_bytes() -> None:
    body = form(part("a", b"1"), part("f", PNG + b"\r\n--edg", filename="n"), part("b", "é".encode()))
    assert read_cut(body, list(range(len(body)))) == ((("a", "1"), ("b", "é")), [("f", "n", PNG + b"\r\n--edg")])


@given(st.binary(max_size=200) | TRICKY, st.lists(st.integers(0, 2000), max_size=4), st.integers(0, 300))
def test_garbage_is_an_invalid_request_or_a_form(junk: bytes, marks: list[int], place: int) -> None:
    whole = form(part("f", b"2", filename="n"), part("a", b"1"))
    place = min(place, len(whole))
    read_cut(junk, marks)
    read_cut(whole[:place] + junk + whole[place:], marks)


def test_a_form_that_is_cut_short_anywhere_is_refused() -> None:
    whole = form(part("f", b"2", filename="n"), part("a", b"1"))
    assert [read_cut(whole[:end], []) for end in range(len(whole) - 2)] == [None] * (len(whole) - 2)


async def test_texts_and_files_are_told_apart_in_any_order(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    large = data_of(PIECE_BYTES + 100_000)
    body = form(
        part("mask", large, "Content-Type: image/PNG; x=y", filename="m.png"),
        part("prompt", "ein Kätzchen\r\n".encode()),
        part("image[]", PNG + b"1", "Content-Type: text/plain", filename="a.bin"),
        part("image[]", b"2", filename="b.bin"),
        part("n", b"2"),
        part("prompt", b"", "Content-Type: text/plain; charset=utf-8", "Content-Transfer-Encoding: 8bit"),
    )
    assert await send(booth, body) == (200, {})
    assert booth.seen == [
        (
            (("prompt", "ein Kätzchen\r\n"), ("n", "2"), ("prompt", "")),
            [
                ("mask", "m.png", "image/png", large),
                ("image", "a.bin", "image/png", PNG + b"1"),
                ("image", "b.bin", "application/octet-stream", b"2"),
            ],
        )
    ]
    assert booth.spool.held_bytes == 0


async def test_the_forms_of_an_ordinary_client_are_read(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    data = aiohttp.FormData({"model": "m", "n": "1"}, quote_fields=False)
    data.add_field("image", b"one", filename="größe 1.png", content_type="image/png")
    async with aiohttp.ClientSession() as session, session.post(booth.url, data=data) as answer:
        assert answer.status == 200
    assert booth.seen == [((("model", "m"), ("n", "1")), [("image", "größe 1.png", "image/png", b"one")])]


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ('filename="a.png"', "a.png"),
        ("filename=a.png", "a.png"),
        ('filename="/etc/passwd"', "passwd"),
        ('filename="..\\..\\a.png"', "a.png"),
        ('filename="C:\\a\\b.png"', "b.png"),
        ('filename="a\x00\x1b\u202eb.png"', "ab.png"),
        ('filename="a%22b%0D%0A.png"', 'a"b.png'),
        ('filename=".."', ".."),
        ('filename="dir/"', "file"),
        ('filename=""', "file"),
        (f'filename="{"x" * 300}.png"', "x" * 124 + ".png"),
        ("filename*=UTF-8''na%C3%AFve%2Fa%20b.png", "a b.png"),
        ("filename=\"_.png\"; filename*=utf-8''%E2%82%AC.png", "€.png"),
        ("filename*=UTF-8''%FF.png", "\ufffd.png"),
    ],
)
async def test_a_filename_is_one_name_without_a_folder(open_booth: OpenBooth, message: str, name: str) -> None:
    booth = await open_booth()
    body = f'--edge\r\nContent-Disposition: form-data; name="f"; {message}\r\n\r\nx\r\n--edge--\r\n'
    assert await send(booth, body.encode()) == (200, {})
    assert [file[1] for file in booth.seen[0][1]] == [name]


async def test_a_text_whose_name_speaks_of_a_filename_is_a_text(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    assert await send(booth, form(part("x; filename*=utf-8''y", b"1"))) == (200, {})
    assert booth.seen == [((("x; filename*=utf-8''y", "1"),), [])]


async def test_the_file_that_a_browser_sends_where_none_was_chosen_is_none(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    body = form(part("image", b"x", filename="a"), part("mask", b"", filename=""), part("other", b"", filename="b"))
    assert await send(booth, body) == (200, {})
    assert [file[:2] for file in booth.seen[0][1]] == [("image", "a"), ("other", "b")]


@pytest.mark.parametrize(
    ("data", "declared", "found"),
    [
        (PNG, "audio/mpeg", "image/png"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", None, "audio/wav"),
        (b"RIFF\x24\x00\x00\x00WEBPVP8 ", None, "image/webp"),
        (b"ID3\x04", None, "audio/mpeg"),
        (b"\xff\xfb\x90", None, "audio/mpeg"),
        (b"OggS\x00", "application/ogg", "audio/ogg"),
        (b"fLaC\x00", None, "audio/flac"),
        (b"\x00\x00\x00\x20ftypM4A ", "video/mp4", "audio/mp4"),
        (b"\x00\x00\x00\x20ftypisom", "video/mp4", "video/mp4"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x82\x84webm", "audio/webm;codecs=opus", "audio/webm"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x82\x84webm", "video/webm", "video/webm"),
        (b"hello", "Text/Plain; charset=utf-8", "text/plain"),
        (b"hello", None, "application/octet-stream"),
        (b"hello", "no type", "application/octet-stream"),
        (b"hello", "a/" + "b" * 200, "application/octet-stream"),
    ],
)
async def test_a_file_is_what_its_first_bytes_say(
    open_booth: OpenBooth, data: bytes, declared: str | None, found: str
) -> None:
    booth = await open_booth()
    more = [f"Content-Type: {declared}"] if declared else []
    assert await send(booth, form(part("f", data, *more, filename="n"))) == (200, {})
    assert booth.seen[0][1][0][2] == found


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 415),
        ("multipart/mixed; boundary=edge", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        ('multipart/form-data; boundary=""', 400),
        (f"multipart/form-data; boundary={'x' * 71}", 400),
        ('multipart/form-data; boundary="a\tb"', 400),
        ("multipart/form-data; boundary=other", 400),
    ],
)
async def test_what_is_no_form_is_refused(open_booth: OpenBooth, kind: str, status: int) -> None:
    booth = await open_booth()
    assert await refuse(booth, form(part("a", b"1")), kind) == (status, None)


@pytest.mark.parametrize("kind", ['multipart/form-data; boundary="edge"', "Multipart/Form-Data; x=y; Boundary=edge"])
async def test_a_boundary_is_found_however_it_is_written(open_booth: OpenBooth, kind: str) -> None:
    booth = await open_booth()
    assert await send(booth, form(part("a", b"1")), kind) == (200, {})


async def test_a_form_is_not_unpacked(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    body = form(part("a", b"1"))
    for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("x", body)):
        status, error = await send(booth, packed, **{"Content-Encoding": encoding})
        assert (status, error["code"]) == (415, "unsupported_media_type")
    assert await send(booth, body, **{"Content-Encoding": "identity"}) == (200, {})


REFUSED: dict[str, tuple[bytes, int, str | None]] = {
    "nothing": (b"", 400, None),
    "a preamble alone": (b"hello\r\n" * 40, 400, None),
    "a part without a name": (b"--edge\r\nContent-Disposition: form-data\r\n\r\nx\r\n--edge--\r\n", 400, None),
    "an empty name": (form(part("", b"x")), 400, None),
    "a part without a disposition": (b"--edge\r\nContent-Type: text/plain\r\n\r\nx\r\n--edge--\r\n", 400, None),
    "another disposition": (b'--edge\r\nContent-Disposition: inline; name="a"\r\n\r\nx\r\n--edge--\r\n', 400, None),
    "a header that is none": (form(part("a", b"x", "nonsense")), 400, None),
    "a folded header": (form(part("a", b"x", "X: y", " z")), 400, None),
    "a length that is not true": (form(part("a", b"x", "Content-Length: 7")), 400, None),
    "a name that is not UTF-8": (b'--edge\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n', 400, None),
    "base64 in a part": (form(part("a", b"eA==", "Content-Transfer-Encoding: base64")), 400, "a"),
    "a text that is not UTF-8": (form(part("a", b"x"), part("prompt", b"\xff\xfe")), 400, "prompt"),
    "no end": (part("a", b"x", filename="f"), 400, None),
    "a header without end": (b"--edge\r\nX: " + b"x" * 100_000, 400, None),
    "a long header": (form(part("a", b"x", "X: " + "x" * 5000)), 400, None),
    "many headers": (form(part("a", b"x", *["X: y"] * 10)), 400, None),
    "65 parts": (form(*[part("a", b"x")] * 65), 400, None),
    "15,000 parts": (form(*[part("a", b"x")] * 15_000), 400, None),
    "33 files": (form(*[part("a", b"x", filename="f")] * 33), 400, None),
    "a long text": (form(part("a", b"x"), part("prompt", b"x" * MB)), 413, "prompt"),
    "long texts together": (form(*(part(f"t{number}", b"x" * 200_000) for number in range(6))), 413, "t5"),
    "a long text in one piece with a long name": (form(part("p" * 200, b"x" * (MB + 1))), 413, "p" * 64),
    "a large file": (form(part("image[]", bytes(4 * MB + 1), filename="f")), 413, "image"),
    "a large body": (form(*(part("f", bytes(3 * MB), filename="f") for _ in range(3))), 413, None),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("case", REFUSED)
async def test_a_bad_form_is_refused_by_name(open_booth: OpenBooth, case: str, *, chunked: bool) -> None:
    body, status, param = REFUSED[case]
    booth = await open_booth()

    async def chunks() -> AsyncIterator[bytes]:
        for offset in range(0, len(body), 100_000):
            yield body[offset : offset + 100_000]

    assert await refuse(booth, chunks() if chunked else body) == (status, param)


async def test_limits_are_what_may_be_had(open_booth: OpenBooth) -> None:
    body = form(*[part("t", b"x" * 10)] * 10, *[part("f", b"y" * 100_000, filename="f")] * 3)
    limits = FormLimits(max_body_bytes=len(body), max_file_bytes=100_000, max_parts=13, max_text_bytes=100, max_files=3)
    booth = await open_booth(limits)
    assert await send(booth, body) == (200, {})
    for name, value in (("max_body_bytes", 413), ("max_file_bytes", 413), ("max_text_bytes", 413)):
        booth.limits = attrs.evolve(limits, **{name: getattr(limits, name) - 1})
        assert (await refuse(booth, body))[0] == value, name
    for name in ("max_parts", "max_files"):
        booth.limits = attrs.evolve(limits, **{name: getattr(limits, name) - 1})
        assert (await refuse(booth, body))[0] == 400, name


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    reader, writer = await connect(booth, 9 * MB)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    error = orjson.loads(await reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])))
    assert "8 MB" in error["message"]
    writer.close()


async def test_uploads_beyond_the_accounts_room_are_asked_to_wait(open_booth: OpenBooth) -> None:
    booth = await open_booth(limit_bytes=MB)
    status, error = await send(booth, form(part("f", bytes(2 * MB), filename="f")))
    assert (status, error["code"]) == (429, "rate_limit_exceeded")
    assert booth.spool.held_bytes == 0


async def test_a_form_waits_for_its_turn_among_those_of_its_account_and_not_for_ever(open_booth: OpenBooth) -> None:
    booth = await open_booth(attrs.evolve(LIMITS, idle_s=0.05))
    async with AsyncExitStack() as places:
        for _ in range(MAX_UPLOADS):
            await places.enter_async_context(booth.spool.find_share(1).hold_slot(0))
        status, error = await send(booth, form(part("a", b"1")))
        assert (status, error["code"]) == (429, "rate_limit_exceeded")
        booth.limits = LIMITS
        asking = asyncio.create_task(send(booth, form(part("a", b"1"))))
        await asyncio.sleep(0.05)
        assert not asking.done()
    assert await asking == (200, {})


async def test_the_files_of_a_form_take_one_descriptor_together(tmp_path: Path) -> None:
    request: Any = Cut([form(*[part("f", data_of(100_000), filename="n")] * 20)])
    reader = MultipartReader(request, UploadSpool(tmp_path, limit_bytes=8 * MB), LIMITS, account_id=1)
    received = await reader.read()
    assert count_open(tmp_path) == 1
    assert [await file.spooled.read(0, file.size) for file in received.files] == [data_of(100_000)] * 20
    reader.close()
    await until(lambda: count_open(tmp_path) == 0)


async def connect(booth: FormServer, length: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a form of ``length`` bytes has been announced."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(booth.url.rpartition(":")[2].strip("/")))
    writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\nContent-Length: {length}\r\n\r\n".encode())
    return reader, writer


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("after", [0, 30, 200_000, 3 * MB])
async def test_of_a_caller_who_vanishes_half_way_nothing_is_kept(
    open_booth: OpenBooth, after: int, *, cancels: bool
) -> None:
    booth = await open_booth(cancels=cancels)
    _, writer = await connect(booth, 5 * MB)
    writer.write((part("image", b"", filename="f")[:-2] + bytes(4 * MB))[:after])
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.transport.abort()
    await until(lambda: booth.ended)
    assert booth.ended[0] in ({"CancelledError"} if cancels else {"ClientDisconnected"})
    assert booth.spool.held_bytes == 0


async def test_a_silent_caller_and_a_slow_one_are_timed_out(open_booth: OpenBooth) -> None:
    limits = attrs.evolve(LIMITS, idle_s=0.08, total_s=10)
    booth = await open_booth(limits)
    body = part("image", bytes(200_000), filename="f")
    for idle_s, total_s, reported in ((0.08, 10, b"for 0.08 s"), (10, 0.15, b"within 0.15 s")):
        booth.limits = attrs.evolve(LIMITS, idle_s=idle_s, total_s=total_s)
        reader, writer = await connect(booth, 5 * MB)
        writer.write(body)
        dripping = asyncio.create_task(drip(writer if total_s < 1 else None))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert reported in await reader.readuntil(b"}")
        dripping.cancel()
        writer.transport.abort()
        await until(lambda: booth.spool.held_bytes == 0)
    assert booth.ended == ["RequestTimeout"] * 2


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test sets: a busy machine makes no client slow."""

    now = 0.0

    @override
    def time(self) -> float:
        return self.now


class Slow(Cut):
    """A piece comes every 5 ms of the loop's clock."""

    @override
    async def read(self, _size: int) -> bytes:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        loop.now += 0.005
        return await super().read(_size)


async def read_slow(folder: Path, body: bytes, slow: int) -> None:
    """Reads ``body``, which comes in bytes at first and then in thousands; of two thousand a second it is too slow."""
    pieces = [
        *(body[at : at + 1] for at in range(slow)),
        *(body[at : at + 1000] for at in range(slow, len(body), 1000)),
    ]
    limits = attrs.evolve(LIMITS, min_rate=2000, pace_s=0.05)
    request: Any = Slow(pieces)
    reader = MultipartReader(request, UploadSpool(folder, limit_bytes=MB), limits, account_id=1)
    await reader.read()
    reader.close()


def test_a_form_that_is_just_kept_open_is_ended_and_one_that_is_slow_at_first_is_not(tmp_path: Path) -> None:
    body = form(part("image", bytes(30_000), filename="f"))
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        runner.run(read_slow(tmp_path, body, slow=10))
        with pytest.raises(RequestTimeout, match="less than 2000 bytes a second"):
            runner.run(read_slow(tmp_path, body, slow=500))


async def test_a_connection_that_died_of_silence_is_no_slow_caller(tmp_path: Path) -> None:
    class Dead(Cut):
        async def read(self, _size: int) -> bytes:
            raise TimeoutError(110, "Connection timed out")

    request: Any = Dead([], transport=None)
    with pytest.raises(ClientDisconnected):
        await MultipartReader(request, UploadSpool(tmp_path, limit_bytes=MB), LIMITS, account_id=1).read()


@pytest.mark.parametrize("body", [b"hello\r\n" * 20, b"--edge\r\nnonsense\r\n", part("a", b"x") * 65])
async def test_a_form_is_refused_as_soon_as_it_is_wrong(open_booth: OpenBooth, body: bytes) -> None:
    booth = await open_booth()
    reader, writer = await connect(booth, 5 * MB)
    writer.write(body)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400 ")
    writer.transport.abort()


async def drip(writer: asyncio.StreamWriter | None) -> None:
    while writer is not None:
        writer.write(b"x")
        await asyncio.sleep(0.01)


async def test_the_connection_of_a_form_that_was_read_is_used_again(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    body = form(part("a", b"1")) + b"epilogue"
    reader, writer = await connect(booth, len(body))
    for _ in range(3):
        writer.write(body)
        assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 ")
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
    writer.close()
    assert len(booth.seen) == 3


HEAVY: dict[str, bytes] = {
    "15,000 parts": form(*[part("a", b"x")] * 15_000),
    "boundaries that are none": part("f", b"\r\n--edg" * MB, filename="f"),
    "line ends": part("f", b"\r\n" * (3 * MB), filename="f"),
    "carriage returns": part("f", b"\r" * (3 * MB), filename="f"),
    "a preamble": b"\r\n--edg" * MB,
    "a header bomb": b"--edge\r\n" + b"X: y\r\n" * MB,
    "a header without end": b"--edge\r\nX: " + b"x" * (4 * MB),
    "a header of quotes": b'--edge\r\nContent-Disposition: form-data; name="' + b'\\"' * 2000 + b"\r\n\r\n",
    "a header of options": b"--edge\r\nContent-Disposition: form-data" + b"; a*=" * 800 + b'; name="a"\r\n\r\n',
    "a header of spaces": b"--edge\r\nContent-Disposition: form-data;" + b" " * 4000 + b'x"\r\n\r\n',
    "text in lines": part("a", b"a\n" * (512 * 1024)),
    "a name of one letter": form(*[part("n" * 4000, b"x")] * 64),
    "a large file": form(part("f", bytes(3 * MB), filename="f")),
}


@pytest.mark.parametrize("case", HEAVY)
async def test_whoever_sends_nonsense_waits_for_it_alone(open_booth: OpenBooth, case: str) -> None:
    booth = await open_booth()
    _, writer = await connect(booth, len(HEAVY[case]))
    async with watch_turns() as longest:
        with suppress(ConnectionError):
            for offset in range(0, len(HEAVY[case]), 65_536):
                writer.write(HEAVY[case][offset : offset + 65_536])
                await writer.drain()
        writer.close()
        await until(lambda: booth.seen or booth.ended)
    assert longest[0] < MAX_TURN_S


@asynccontextmanager
async def watch_turns() -> AsyncIterator[list[float]]:
    """What the longest turn of the loop cost its thread, as the one item of the list, when the block has ended."""
    longest = [0.0]

    async def tick() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[0] = max(longest[0], now - before)
            before = now

    ticking = asyncio.create_task(tick())
    try:
        yield longest
    finally:
        ticking.cancel()


async def test_single_bytes_in_chunks_of_their_own_are_read(open_booth: OpenBooth) -> None:
    booth = await open_booth()
    body = form(part("a", b"1"), part("f", data_of(3000), filename="f"))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(booth.url.rpartition(":")[2].strip("/")))
    writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    writer.write(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 ")
    assert booth.seen == [((("a", "1"),), [("f", "f", "application/octet-stream", data_of(3000))])]
    writer.close()


async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the length and the digest of what came."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            digest, reported = hashlib.sha256(), left
            while left:
                data = await reader.read(min(left, MB))
                digest.update(data)
                left -= len(data)
            body = f"{reported} {digest.hexdigest()}".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    writer.close()


@asynccontextmanager
async def through(folder: Path) -> AsyncIterator[tuple[str, psutil.Process]]:
    """The address of a process that sends forms on to a sink, and the process."""
    before = asyncio.all_tasks()
    server = await asyncio.start_server(sink, "127.0.0.1", 0)
    target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    out, err = folder.with_suffix(".out"), folder.with_suffix(".err")
    process = Forked(
        ["tests.support.multipart_process", str(folder), target], cwd=folder, env=os.environ, out=out, err=err
    )
    try:
        while process.poll() is None and not out.read_text().endswith("\n"):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)
        assert process.poll() is None, err.read_text()
        yield f"http://127.0.0.1:{int(out.read_text())}", psutil.Process(process.pid)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        await check_tasks(before)  # the sink has heard of it
        server.close()


def big_form(data: bytes) -> bytes:
    return form(part("model", b"m"), part("image", data, "Content-Type: image/png", filename="a.png"))


def expect(way: str, data: bytes) -> str:
    """What the sink says of a big form with ``data``."""
    if way == "json":
        body = b'{"model":"m","images":["data:image/png;base64,' + base64.b64encode(data) + b'"]}'
    else:
        body = big_form(data).replace(b"--edge", b"--gateway-0123456789abcdef")
    return f"{len(body)} {hashlib.sha256(body).hexdigest()}"


async def pass_through(session: aiohttp.ClientSession, url: str, data: bytes) -> str:
    headers = {"Content-Type": TYPE}
    async with session.post(url, data=io.BytesIO(big_form(data)), headers=headers) as answer:
        return await answer.text()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["form", "json"])
async def test_50_mb_move_through_in_less_than_8_mb_of_memory(tmp_path: Path, way: str) -> None:
    data = PNG + data_of(50 * MB)
    async with through(tmp_path) as (url, process), aiohttp.ClientSession() as session:
        for _ in range(3):  # what a first request needs for ever is not this one's
            await pass_through(session, f"{url}/{way}", PNG + bytes(300_000))
        with watch_memory(process) as risen:
            assert await pass_through(session, f"{url}/{way}", data) == expect(way, data)
        print(f"50 MB as {way}: resident memory up by {risen[0]:.1f} MB")  # noqa: T201 - the figure is what it is for
        assert risen[0] < 8
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_20_times_20_mb_at_once_move_through_in_bounded_memory_though_more_callers_leave(tmp_path: Path) -> None:
    data = PNG + data_of(20 * MB)
    async with through(tmp_path) as (url, process), aiohttp.ClientSession() as session:
        await pass_through(session, f"{url}/form", PNG + bytes(300_000))
        with watch_memory(process) as risen:
            asking = [asyncio.create_task(pass_through(session, f"{url}/form", data)) for _ in range(30)]
            await asyncio.sleep(0.2)
            for task in asking[20:]:
                task.cancel()
            assert await asyncio.gather(*asking[:20]) == [expect("form", data)] * 20
        print(f"20 times 20 MB at once: resident memory up by {risen[0]:.1f} MB")  # noqa: T201 - the figure is what it is for
        assert risen[0] < 64
        assert list(tmp_path.iterdir()) == []
        await until(lambda: count_open(tmp_path, process.pid) == 0)
