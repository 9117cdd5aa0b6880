"""Compressed bodies: nothing is unpacked for nobody; for a caller in steps, within bounds, and by a thread if large."""

import gzip
import threading
import zlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.large_work import MAX_ON_LOOP
from gateway.upstream.decompress import STEP_BYTES
from tests.support.compressed_runs import compress_run
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channels
from tests.support.raw_client import RawAnswer, connect, hello, post, read_answer
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

MB = 2**20
GZIP = "Content-Encoding: gzip"


def write_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACK: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip of two members": ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", write_raw),
}


class Unpacked:
    """Everything that zlib unpacks in this process: how much, and in which threads."""

    def __init__(self) -> None:
        self.total = 0
        self.most = 0
        self.by_thread: dict[int, int] = {}

    def note(self, data: bytes) -> None:
        self.total += len(data)
        self.most = max(self.most, len(data))
        thread = threading.get_ident()
        self.by_thread[thread] = self.by_thread.get(thread, 0) + len(data)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Unpacked:
    seen, make = Unpacked(), zlib.decompressobj

    class Watched:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._made = make(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._made, name)

        def decompress(self, data: bytes, *most: int) -> bytes:
            piece = self._made.decompress(data, *most)
            seen.note(piece)
            return piece

    monkeypatch.setattr(zlib, "decompressobj", Watched)
    return seen


async def exchange(gateway: RunningGateway, raw: bytes) -> RawAnswer:
    reader, writer = await connect(gateway.url)
    try:
        writer.write(raw)
        return await read_answer(reader)
    finally:
        writer.close()


def long_body(size: int) -> bytes:
    return orjson.dumps({**HELLO, "user": "u" * size})


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("POST /v1/chat/completions", 401),
        ("POST /v1/images/edits", 401),
        ("GET /v1/models", 401),
        ("POST /v1/messages", 401),
        ("POST /admin/v1/accounts", 401),
        ("POST /admin/v1/session", 415),
        ("POST /console/", 405),
        ("GET /healthz", 200),
        ("POST /nothing", 404),
    ],
)
async def test_nothing_is_unpacked_for_who_shows_no_key(
    standing_with: StartGateway, unpacked: Unpacked, target: str, status: int
) -> None:
    gateway, bomb = await standing_with({}), gzip.compress(b" " * (4 * MB))
    raw = post(bomb, GZIP, "X-Gateway-Console: 1", key="sk-unknown-key-of-a-stranger")
    raw = raw.replace(b"POST " + CHAT.encode(), target.encode(), 1)
    if b"/admin/v1/session" in raw:
        raw = raw.replace(b"Authorization: ", b"X-Nothing: ", 1)
    assert (await exchange(gateway, raw)).status == status
    assert unpacked.total == 0


@pytest.mark.parametrize("form", sorted(PACK))
@pytest.mark.parametrize("size", [10, 3 * MB])
async def test_every_encoding_is_read_whatever_its_size(standing_with: StartGateway, form: str, size: int) -> None:
    encoding, pack = PACK[form]
    body = long_body(size)
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        found = await exchange(gateway, post(pack(body), f"Content-Encoding: {encoding}"))
        assert found.status == 200
        assert up.received[0].json == orjson.loads(body)


async def test_a_compressed_body_in_pieces_is_read(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        reader, writer = await connect(gateway.url)
        raw = post(gzip.compress(hello()), GZIP)
        for start in range(0, len(raw), 11):
            writer.write(raw[start : start + 11])
            await writer.drain()
        assert (await read_answer(reader)).status == 200
        writer.close()


async def test_a_bomb_is_unpacked_to_the_limit_and_no_further(standing_with: StartGateway, unpacked: Unpacked) -> None:
    gateway = await standing_with({"server": {"max_body_mb": 2}})
    found = await exchange(gateway, post(compress_run(b" ", 64), GZIP))
    assert (found.status, found.error["code"]) == (413, "request_too_large")
    assert "2 MB" in found.error["message"]
    assert 2 * MB < unpacked.total <= 2 * MB + STEP_BYTES
    assert unpacked.most <= STEP_BYTES


async def test_what_is_much_is_unpacked_and_parsed_aside(
    standing_with: StartGateway, unpacked: Unpacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[tuple[int, int]] = []
    loads = orjson.loads

    def note(raw: bytes) -> Any:
        parsed.append((len(raw), threading.get_ident()))
        return loads(raw)

    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway, here = await standing_with(channels([up])), threading.get_ident()
        monkeypatch.setattr("gateway.formats.wire.json_values.orjson.loads", note)
        assert (await exchange(gateway, post(gzip.compress(long_body(4 * MB)), GZIP))).status == 200
        monkeypatch.undo()
    large = [thread for size, thread in parsed if size > MAX_ON_LOOP]
    assert large
    assert here not in large
    assert unpacked.by_thread[here] <= MAX_ON_LOOP + STEP_BYTES


@pytest.mark.parametrize("form", sorted(PACK))
@pytest.mark.parametrize("size", [10, 3 * MB])
@pytest.mark.parametrize("spoil", ["cut", "longer", "broken", "cut at its first byte"])
async def test_what_is_not_as_its_encoding_says_is_a_400(
    standing_with: StartGateway, form: str, size: int, spoil: str
) -> None:
    encoding, pack = PACK[form]
    packed = pack(long_body(size))
    spoiled = {
        "cut": packed[:-4],
        "longer": packed + b"more",
        "broken": packed[:12] + b"\xff\xff\xff\xff\xff\xff" + packed[18:],
        "cut at its first byte": packed[:1],
    }[spoil]
    gateway = await standing_with({})
    found = await exchange(gateway, post(spoiled, f"Content-Encoding: {encoding}"))
    assert (found.status, found.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("lines", [("Content-Encoding: gzip", "Content-Encoding: gzip"), ("Content-Encoding: br",)])
async def test_an_encoding_on_top_of_another_is_a_415(standing_with: StartGateway, lines: tuple[str, ...]) -> None:
    gateway = await standing_with({})
    found = await exchange(gateway, post(gzip.compress(hello()), *lines))
    assert (found.status, found.error["code"]) == (415, "unsupported_media_type")


async def test_a_compressed_form_is_refused_unopened(standing_with: StartGateway, unpacked: Unpacked) -> None:
    gateway = await standing_with({})
    head = (
        f"POST /v1/images/edits HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n{GZIP}\r\n"
        "Content-Type: multipart/form-data; boundary=edge\r\nContent-Length: "
    )
    packed = gzip.compress(b"--edge\r\n" + b" " * (4 * MB))
    found = await exchange(gateway, f"{head}{len(packed)}\r\n\r\n".encode() + packed)
    assert (found.status, found.error["code"]) == (415, "unsupported_media_type")
    assert unpacked.total == 0


async def test_an_administrator_may_send_compressed_changes(standing_with: StartGateway, unpacked: Unpacked) -> None:
    gateway = await standing_with({})
    path, token = "/admin/v1/accounts", gateway.admin_token
    body = gzip.compress(orjson.dumps({"name": "x" * 100}))
    found = await exchange(gateway, post(body, GZIP, path=path, key=token))
    assert found.status in {201, 400, 409}
    assert unpacked.total > 0
    bomb = compress_run(b" ", 16)
    assert (await exchange(gateway, post(bomb, GZIP, path=path, key=token))).status == 413
    assert unpacked.total <= 2 * (MB + STEP_BYTES)


async def test_the_rest_of_a_refused_body_is_dropped_and_the_connection_goes_on(standing_with: StartGateway) -> None:
    gateway = await standing_with({"server": {"max_body_mb": 1}})
    reader, writer = await connect(gateway.url)
    writer.write(post(b"x" * (3 * MB)))
    found = await read_answer(reader)
    assert (found.status, found.error["code"]) == (413, "request_too_large")
    await writer.drain()
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await read_answer(reader)).status == 200
    writer.close()
