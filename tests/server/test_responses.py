"""How long a caller is waited for: as long as it reads on, however slowly; and no longer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import HttpVersion
from aiohttp.test_utils import make_mocked_request

from gateway.request_context import RequestContext
from gateway.server.context import CONTEXT
from gateway.server.responses import WRITE_TIMEOUT_S, BufferedResponse, RawResponse, await_reader
from tests.support.skip_rules import run_skipping
from tests.support.table_rows import table_rows


class Buffer(asyncio.Transport):
    """What is left in it shrinks by ``pace`` a second, from when it was made."""

    def __init__(self, size: int, pace: float) -> None:
        super().__init__()
        self.size = size
        self.pace = pace
        self.aborted = False
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()

    def get_write_buffer_size(self) -> int:
        return max(0, self.size - int((self.loop.time() - self.began) * self.pace))

    def abort(self) -> None:
        self.aborted = True

    async def drain(self) -> None:
        while self.get_write_buffer_size():  # noqa: ASYNC110 - what a transport does has no event
            await asyncio.sleep(1)


@table_rows(("asked", "raw"), [((1, 0), b"HTTP/1.0 200 "), ((1, 1), b"HTTP/1.1 200 "), ((2, 0), b"HTTP/1.1 200 ")])
def test_an_answer_is_of_the_version_that_was_asked_in_and_of_none_that_is_not_spoken(
    asked: tuple[int, int], raw: bytes
) -> None:
    request = make_mocked_request("POST", "/", version=HttpVersion(*asked))
    assert RawResponse().build_head(request, {}).startswith(raw)


def test_a_reader_who_reads_on_is_waited_for_for_hours() -> None:
    async def scene() -> None:
        buffer = Buffer(size=20_000_000, pace=2_000)
        await await_reader(buffer.drain, buffer)
        assert asyncio.get_running_loop().time() >= 10_000
        assert not buffer.aborted

    run_skipping(scene())


def test_a_reader_who_stopped_is_cut_off() -> None:
    async def scene() -> None:
        buffer = Buffer(size=20_000_000, pace=0)
        with pytest.raises(ConnectionResetError):
            await await_reader(buffer.drain, buffer)
        assert buffer.aborted
        assert asyncio.get_running_loop().time() == WRITE_TIMEOUT_S

    run_skipping(scene())


def test_a_reader_who_left_is_known_at_once() -> None:
    async def gone() -> None:
        raise ConnectionResetError

    async def scene() -> None:
        with pytest.raises(ConnectionResetError):
            await await_reader(gone, Buffer(size=1, pace=0))
        assert asyncio.get_running_loop().time() == 0

    run_skipping(scene())


def test_whoever_stops_waiting_leaves_nobody_waiting() -> None:
    async def scene() -> None:
        buffer = Buffer(size=1_000, pace=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await await_reader(buffer.drain, buffer)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        assert not buffer.aborted

    run_skipping(scene())


def test_who_sends_request_after_request_and_reads_no_answer_is_cut_off() -> None:
    async def scene() -> None:
        buffer = Buffer(size=20_000_000, pace=0)
        written: list[bytes] = []
        buffer.write = written.append  # type: ignore[method-assign,assignment]
        buffer.is_closing = lambda: buffer.aborted  # type: ignore[method-assign]
        writer = SimpleNamespace(output_size=0, drain=buffer.drain)
        protocol = SimpleNamespace(writing_paused=True)
        request: Any = make_mocked_request("POST", "/v1/chat/completions")
        request[CONTEXT] = RequestContext("req_1")
        answer = BufferedResponse(request, b"{}", {})
        answer._request = SimpleNamespace(transport=buffer, writer=writer, protocol=protocol)  # type: ignore[assignment]
        with pytest.raises(ConnectionResetError):
            await answer.write_eof()
        assert written
        assert buffer.aborted

    run_skipping(scene())
