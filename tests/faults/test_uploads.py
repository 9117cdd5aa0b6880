"""Uploads over everything that can go wrong with them: providers that die, callers that leave, forms that are none."""

import asyncio
import base64
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest

from gateway.server.context import SERVICES
from tests.support.fault_scene import until
from tests.support.gateway import KEY, RunningGateway
from tests.support.kill_runs import roll, telling
from tests.support.multipart_bodies import count_open, form, part
from tests.support.raw_client import RawAnswer
from tests.support.started_gateways import StartGateway
from tests.support.uploads import (
    BLOCK,
    EDITS,
    MB,
    PNG,
    TRANSCRIPTIONS,
    Mode,
    Taken,
    UploadProvider,
    dial,
    edit,
    hear,
    lead,
    list_named,
    send,
    site,
    write_form,
    write_head,
    write_http,
)

SEES_DESCRIPTORS = Path("/proc/self/fd").exists()
SMALL = {"server": {"max_file_mb": 1, "max_upload_mb": 3}}
FILES = (PNG + BLOCK[: 3 * MB // 2 - 8], PNG + BLOCK[MB : 2 * MB - 5])
SOUND = b"RIFF\x24\x00\x00\x00WAVEfmt " + BLOCK[: 2 * MB]
FAILED = {"error": {"message": "no", "type": "server_error", "param": None, "code": None}}


def text(name: str, value: str) -> bytes:
    return part(name, value.encode())


def file(name: str, data: bytes, filename: str = "a.png") -> bytes:
    return part(name, data, "Content-Type: image/png", filename=filename)


TEXTS = text("model", "m") + text("prompt", "a cat") + text("response_format", "b64_json")
IMAGE = file("image", PNG + b"1")


def split_form(taken: Taken) -> tuple[dict[str, str], list[tuple[str, str, bytes]]]:
    """The texts, and the files as field, filename and bytes."""
    assert taken.body is not None
    boundary = taken.headers["content-type"].partition("boundary=")[2].encode()
    first, *parts, last = (b"\r\n" + bytes(taken.body)).split(b"\r\n--" + boundary)
    assert (first, last) == (b"", b"--\r\n")
    texts, files = {}, []
    for head, _, data in (one.removeprefix(b"\r\n").partition(b"\r\n\r\n") for one in parts):
        reported = head.decode().split('"')
        if len(reported) > 3:
            files.append((reported[1], reported[3], data))
        else:
            texts[reported[1]] = data.decode()
    return texts, files


def check_edit(taken: Taken) -> None:
    texts, files = split_form(taken)
    assert texts == {"model": "m", "prompt": "a cat", "response_format": "b64_json", "size": "1024x1024"}
    expected = [("image[]", "a.png", FILES[0]), ("image[]", "b.png", FILES[1]), ("mask", "m.png", PNG + b"m")]
    assert files == expected


def check_question(taken: Taken) -> None:
    assert taken.body is not None
    prompt, *parts = orjson.loads(bytes(taken.body))["contents"][0]["parts"]
    assert prompt == {"text": "a cat"}
    assert [base64.b64decode(one["inlineData"]["data"]) for one in parts] == list(FILES)


def check_sound(taken: Taken) -> None:
    assert split_form(taken) == ({"model": "m", "language": "en"}, [("file", "s.wav", SOUND)])


@attrs.frozen
class ProviderAccess:
    """An upload over one provider's language, and what the provider is to be sent."""

    path: str
    form: bytes
    check: Callable[[Taken], None]
    channel: dict[str, Any] = attrs.Factory(dict)


IMAGES = TEXTS + file("image[]", FILES[0]) + file("image[]", FILES[1], "b.png") + text("size", "1024x1024")
WAYS = {
    "edits": ProviderAccess(EDITS, form(IMAGES, file("mask", PNG + b"m", "m.png")), check_edit),
    "gemini": ProviderAccess(
        EDITS, form(IMAGES), check_question, {"provider": "gemini", "model_map": {"m": "gemini-2.5-flash-image"}}
    ),
    "transcriptions": ProviderAccess(
        TRANSCRIPTIONS, form(file("file", SOUND, "s.wav"), text("model", "m"), text("language", "en")), check_sound
    ),
}
DEATHS = {
    "closes when it has read everything": Mode(then="fin"),
    "resets the connection in the middle": Mode(reads=MB, then="rst"),
    "closes it in the middle": Mode(reads=MB, then="fin"),
    "fails when it has read everything": Mode(then=write_http(500, FAILED)),
    "fails before it has read anything, and closes": Mode(reads=0, then=write_http(503, FAILED)),
    "refuses the key before it has read anything, and closes": Mode(reads=0, then=write_http(401, FAILED)),
}


def lead_way(up: UploadProvider, name: str, access: ProviderAccess, **more: Any) -> dict[str, Any]:
    root = "/v1beta" if access.channel else "/v1"
    return lead(up, name, **{**access.channel, "base_url": f"{up.origin}{root}", **more})


async def post(url: str, body: bytes, *lines: str, path: str = EDITS) -> RawAnswer:
    async with dial(url) as sock:
        await send(sock, [write_head(len(body), *lines, path=path), body])
        return await hear(sock)


async def check_nothing_is_left(gateway: RunningGateway) -> None:
    await until(lambda: gateway.app[SERVICES].media.spool.held_bytes == 0 and gateway.running == 0)
    assert list_named(gateway.folder.path) == set()
    if SEES_DESCRIPTORS:
        await until(lambda: count_open(gateway.folder.path / "uploads") == 0)


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("name", WAYS)
async def test_the_second_channel_is_sent_the_whole_upload_again(
    standing_with: StartGateway, name: str, death: str
) -> None:
    access = WAYS[name]
    async with UploadProvider(DEATHS[death], keeps=True) as bad, UploadProvider(keeps=True) as good:
        gateway = await standing_with(site(lead_way(bad, "bad", access, priority=1), lead_way(good, "good", access)))
        answer = await post(gateway.url, access.form, path=access.path)
        assert answer.status == 200, answer
        assert answer.headers["x-gateway-attempts"] == "2"
        (first,), (second,) = bad.taken, good.taken
        access.check(second)
        assert first.length == second.length == second.size
        assert second.body is not None
        assert second.body.startswith(first.body or b"")
        await check_nothing_is_left(gateway)
        (row,) = await gateway.rows(1)
        assert (row.channel, row.attempts, row.outcome) == ("good", 2, "completed")


@pytest.mark.parametrize("name", WAYS)
async def test_a_refusal_that_comes_before_the_body_was_read_is_heard(standing_with: StartGateway, name: str) -> None:
    """Though the provider closes at once, and its system resets the connection under what is still being sent."""
    access, reported = WAYS[name], {"error": {"message": "Too much of it", "type": "invalid_request_error"}}
    async with UploadProvider(Mode(reads=0, then=write_http(413, reported))) as up:
        gateway = await standing_with(site(lead_way(up, "up", access)))
        for _ in range(10):
            answer = await post(gateway.url, access.form, path=access.path)
            assert (answer.status, answer.headers["x-gateway-attempts"]) == (413, "1")
            assert answer.error["message"].startswith("Too much of it")
        assert {row.cost_nanos for row in await gateway.rows(10)} == {0}
        await check_nothing_is_left(gateway)


@pytest.mark.parametrize("how", ["close", "half close"])
async def test_a_caller_who_leaves_while_its_upload_is_sent_on_breaks_that_off(
    standing_with: StartGateway, how: str
) -> None:
    async with UploadProvider(Mode(reads=MB, then="stall")) as up:
        gateway = await standing_with(site(lead(up)))
        pieces = write_form(1, BLOCK)
        async with dial(gateway.url) as sock:
            await send(sock, [write_head(sum(map(len, pieces))), *pieces])
            await until(lambda: up.taken and up.taken[0].size >= MB)
            assert gateway.app[SERVICES].media.spool.held_bytes > 20 * MB - 1
            if how == "half close":
                sock.shutdown(socket.SHUT_WR)
                await check_nothing_is_left(gateway)
        await check_nothing_is_left(gateway)
        (connection,) = up.connections
        connection.resume_reading()
        await until(lambda: not up.connections)
        assert up.taken[0].size < up.taken[0].length
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.attempts, row.cost_nanos) == ("client_closed", 1, 0)


@pytest.mark.parametrize("how", ["close", "half close"])
async def test_a_caller_who_leaves_in_its_form_leaves_a_row_and_nothing_else(
    standing_with: StartGateway, how: str
) -> None:
    async with UploadProvider() as up:
        gateway = await standing_with(site(lead(up)))
        async with dial(gateway.url) as sock:
            await send(sock, [write_head(20 * MB), *write_form(1, BLOCK[: 2 * MB])[:2]])
            await until(lambda: gateway.app[SERVICES].media.spool.held_bytes > MB)
            if how == "half close":
                sock.shutdown(socket.SHUT_WR)
                await check_nothing_is_left(gateway)
        await check_nothing_is_left(gateway)
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.attempts, row.cost_nanos, row.status) == ("client_closed", 0, 0, 499)
        assert not up.taken


TWO_FILES = form(TEXTS, file("image", FILES[0][: MB // 2]), file("mask", FILES[1][: MB // 8]))
PLACES = (
    TWO_FILES.index(b"a cat") + 2,  # in a text
    TWO_FILES.index(b'form-data; name="image"') + 3,  # in a part's headers
    TWO_FILES.index(PNG) - 2,  # at their end
    TWO_FILES.index(PNG) + 3,
    TWO_FILES.index(PNG) + 64 * 1024,  # where a file moves to the disk
    TWO_FILES.index(b"\r\n--edge", MB // 2) + 3,  # in a boundary between files
    len(TWO_FILES) - len(b"\r\n--edge--\r\n"),  # before the last
    len(TWO_FILES) - len(b"dge--\r\n"),  # in it
    len(TWO_FILES) - 1,
)


@pytest.mark.parametrize("how", ["close", "half close", "reset"])
async def test_a_caller_may_leave_anywhere_in_a_form(standing_with: StartGateway, how: str) -> None:
    """Where something begins or ends, and at any byte; all of them when what they have sent is in the spool."""
    seed, rng = roll()
    places = [0, *PLACES, *(rng.randrange(len(TWO_FILES)) for _ in range(10))]
    kept = sum(place >= PLACES[5] for place in places) * MB // 2
    async with UploadProvider() as up, AsyncExitStack() as stack:
        gateway = await standing_with(site(lead(up)))
        with telling(seed):
            socks = [await stack.enter_async_context(dial(gateway.url)) for _ in places]
            for sock, place in zip(socks, places, strict=True):
                await send(sock, [write_head(len(TWO_FILES), "Expect: 100-continue")])
                assert (await asyncio.get_running_loop().sock_recv(sock, 1000)).startswith(b"HTTP/1.1 100 ")
                await send(sock, [TWO_FILES[:place]])
            await until(lambda: gateway.app[SERVICES].media.spool.held_bytes >= kept)
            for sock in socks:
                vanish(sock, how)
            rows = await gateway.rows(len(places))
            ended = {(row.outcome, row.attempts, row.cost_nanos, row.status) for row in rows}
            assert ended == {("client_closed", 0, 0, 499)}
            await check_nothing_is_left(gateway)
            assert not up.taken
            assert (await post(gateway.url, TWO_FILES)).status == 200


def vanish(sock: socket.socket, how: str) -> None:
    if how == "half close":
        sock.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


REFUSED: dict[str, tuple[bytes, int, str | None, str]] = {
    "a file over the limit": (form(TEXTS, file("image", PNG + bytes(MB))), 413, "image", "1 MB"),
    "a body over the limit": (form(TEXTS, *[file("image", PNG + bytes(MB - 8))] * 3), 413, None, "3 MB"),
    "65 parts": (form(*[text("a", "x")] * 65), 400, None, "64 parts"),
    "15,000 parts": (form(*[text("a", "x")] * 15_000), 400, None, "64 parts"),
    "17 images": (form(TEXTS, *[file("image[]", PNG)] * 17), 400, "image", "at most 16"),
    "two masks": (form(TEXTS, IMAGE, *[file("mask", PNG)] * 2), 400, "mask", "at most 1"),
    "a text for an image": (form(TEXTS, text("image", "x")), 400, "image", "must be a file"),
    "a text beside an image": (form(TEXTS, IMAGE, text("image", "x")), 400, "image", "must be a file"),
    "a file that is no image": (form(TEXTS, file("image", b"hello")), 400, "image", "must be an image"),
    "a mask that is no image": (form(TEXTS, IMAGE, file("mask", b"hello")), 400, "mask", "must be an image"),
    "an empty file": (form(TEXTS, file("image", b"")), 400, "image", "empty file"),
    "no file chosen": (form(TEXTS, file("image", b"", "")), 400, "image", "Missing"),
    "no image": (form(TEXTS), 400, "image", "Missing"),
    "no prompt": (form(text("model", "m"), IMAGE), 400, "prompt", "Missing"),
    "no model": (form(text("prompt", "x"), IMAGE), 400, "model", "Missing"),
    "two prompts": (form(TEXTS, text("prompt", "x"), IMAGE), 400, "prompt", "more than once"),
    "a file for a prompt": (form(text("model", "m"), file("prompt", PNG), IMAGE), 400, "prompt", "takes no file"),
    "a file nobody asked for": (form(TEXTS, IMAGE, file("x", PNG)), 400, "x", "takes no file"),
    "a prompt of 2 MB": (form(text("prompt", "x" * 2 * MB), IMAGE), 413, "prompt", "1 MB"),
    "a prompt that is no text": (form(part("prompt", b"\xff\xfe"), IMAGE), 400, "prompt", "UTF-8"),
    "a number that is none": (form(TEXTS, IMAGE, text("n", "9" * 40)), 400, "n", "integer"),
    "a number with a NUL": (form(TEXTS, IMAGE, text("n", "1\0")), 400, "n", "integer"),
    "nothing": (b"", 400, None, "truncated"),
    "no end": (TEXTS + IMAGE, 400, None, "truncated"),
    "an end in the middle of a file": (TEXTS + IMAGE[:-4], 400, None, "truncated"),
    "another boundary": (form(TEXTS, IMAGE).replace(b"--edge", b"--edgy"), 400, None, "malformed"),
    "a part without a name": (form(TEXTS, IMAGE.replace(b' name="image";', b"")), 400, None, "malformed"),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_forms_that_will_not_do_are_refused_and_the_connection_goes_on(
    standing_with: StartGateway, *, chunked: bool
) -> None:
    """Whether the length of the body was said or not; nobody is asked, and nothing is left."""
    async with UploadProvider() as up:
        gateway = await standing_with(site(lead(up), **SMALL))
        async with dial(gateway.url) as sock:
            for case, (body, status, param, message) in REFUSED.items():
                await send(sock, [frame_chunked(body) if chunked else write_head(len(body)) + body])
                check_refused(await hear(sock), status, param, message, case)
                await check_goes_on(sock)
        await check_nothing_is_left(gateway)
        rows = await gateway.rows(len(REFUSED))
        assert {(row.outcome, row.cost_nanos, row.attempts) for row in rows} == {("refused", 0, 0)}
        assert not up.taken


def frame_chunked(body: bytes) -> bytes:
    head = write_head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    chunks = (body[offset : offset + 50_000] for offset in range(0, len(body), 50_000))
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def check_refused(answer: RawAnswer, status: int, param: str | None, message: str, case: str = "") -> None:
    assert (answer.status, answer.error["param"]) == (status, param), (case, answer)
    assert message in answer.error["message"], (case, answer)


async def check_goes_on(sock: socket.socket) -> None:
    ask = f"GET /v1/models HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    await send(sock, [ask.encode()])
    assert (await hear(sock)).status == 200


NO_FORMS = {
    "application/json": (415, "must be multipart/form-data, not application/json"),
    "application/x-www-form-urlencoded": (415, "must be multipart/form-data"),
    "multipart/mixed; boundary=edge": (415, "must be multipart/form-data"),
    "multipart/form-data": (400, "boundary"),
    "multipart/form-data; boundary=": (400, "boundary"),
    f"multipart/form-data; boundary={'x' * 80}": (400, "boundary"),
    'multipart/form-data; boundary="a\x01b"': (400, "not valid HTTP"),
}


async def test_what_does_not_say_that_it_is_a_form_is_refused(standing_with: StartGateway) -> None:
    async with UploadProvider() as up:
        gateway = await standing_with(site(lead(up)))
        for kind, (status, message) in NO_FORMS.items():
            for body in (form(TEXTS, IMAGE), b'{"model": "m", "prompt": "x"}'):
                head = write_head(len(body)).replace(b"multipart/form-data; boundary=edge", kind.encode())
                async with dial(gateway.url) as sock:
                    await send(sock, [head, body])
                    check_refused(await hear(sock), status, None, message, kind)
        await check_nothing_is_left(gateway)
        assert not up.taken


FILENAMES = {
    "../../../../tmp/x.png": "x.png",
    "/etc/passwd": "passwd",
    "..\\..\\x.png": "x.png",
    "a\0b\x1b.png": "ab.png",
    "..": "..",
    "x" * 3000 + ".png": "x" * 124 + ".png",
    "\u202e.png": ".png",
    "a%0D%0AX-Injected: 1.png": "aX-Injected: 1.png",
}


async def test_a_filename_leads_nowhere(standing_with: StartGateway) -> None:
    async with UploadProvider(keeps=True) as up:
        gateway = await standing_with(site(lead(up)))
        for message, name in FILENAMES.items():
            assert (await post(gateway.url, form(TEXTS, file("image", PNG + b"1", message)))).status == 200
            assert split_form(up.taken[-1])[1] == [("image", name, PNG + b"1")]
        await check_nothing_is_left(gateway)


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_comes(standing_with: StartGateway) -> None:
    async with UploadProvider() as up:
        gateway = await standing_with(site(lead(up), **SMALL))
        async with dial(gateway.url) as sock:
            await send(sock, [write_head(3 * MB + 1)])
            check_refused(await hear(sock), 413, None, "3 MB")
        await gateway.rows(1)


async def test_a_caller_who_asks_before_it_sends_is_told_to_go_on(standing_with: StartGateway) -> None:
    async with UploadProvider() as up:
        gateway = await standing_with(site(lead(up)))
        pieces = write_form(1, BLOCK[:MB])
        async with dial(gateway.url) as sock:
            await send(sock, [write_head(sum(map(len, pieces)), "Expect: 100-continue")])
            assert await asyncio.get_running_loop().sock_recv(sock, 1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
            await send(sock, pieces)
            assert (await hear(sock)).status == 200
            await check_goes_on(sock)


async def test_one_who_fills_the_spool_leaves_as_much_room_for_others(standing_with: StartGateway) -> None:
    """Twelve of a key's uploads stop before their end, each with most of what it may have; another's edit is made."""
    stalled = write_form(1, BLOCK[: MB - 1024])
    other = {"name": "other", "secret": "sk-" + "o" * 32, "account": "other"}
    tables = {"server": {"max_file_mb": 1, "max_upload_mb": 1}}
    async with UploadProvider() as up, AsyncExitStack() as stack:
        config = site(lead(up), **tables)
        config["account"].append({"name": "other", "quota_usd": 1})
        config["key"].append(other)
        gateway = await standing_with(config)
        spool = gateway.app[SERVICES].media.spool
        for _ in range(12):
            sock = await stack.enter_async_context(dial(gateway.url))
            await send(sock, [write_head(sum(map(len, stalled))), *stalled[:2]])
        await until(lambda: spool.held_bytes > 6 * MB)
        async with dial(gateway.url) as sock:
            head = write_head(sum(map(len, stalled))).replace(KEY.encode(), other["secret"].encode())
            await send(sock, [head, *stalled])
            assert (await hear(sock)).status == 200
        assert 6 * MB < spool.held_bytes <= 8 * MB


async def test_edits_go_on_beside_one_that_fails(standing_with: StartGateway) -> None:
    """Of ten at once on one channel every second one is reset; the other channel takes those."""
    modes = [Mode(reads=MB // 2, then="rst"), Mode()] * 5
    async with UploadProvider(*modes) as shaky, UploadProvider() as good:
        gateway = await standing_with(site(lead(shaky, "shaky", priority=1), lead(good, "good")))
        answers = await asyncio.gather(*(edit(gateway.url, number, BLOCK[:MB]) for number in range(10)))
        assert [answer.status for answer in answers] == [200] * 10
        await check_nothing_is_left(gateway)
        assert len(good.taken) == 5
        await gateway.rows(10)
