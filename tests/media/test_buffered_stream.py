"""A painting as a stream's reply: it begins at once, is pushed in one piece, and is given up with the reply.

How it is relayed to a caller, and what a long one looks like, is in ``test_images.py``.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import ImageBlocked, ProviderBadResponse, ProviderTimeout, ShuttingDown, StoreUnavailable
from gateway.media.buffered_stream import BufferedPassthrough, BufferedStream
from gateway.upstream.interface import PumpResult

USED = Usage(7, 9, images=2)


@attrs.define
class SlowGeneration:
    """A painting that takes as long as the test wants, and says what became of it."""

    done: asyncio.Event = attrs.Factory(asyncio.Event)
    cleaned: asyncio.Event = attrs.Factory(asyncio.Event)
    begun: bool = False
    ending: str = ""

    async def paint(self, fault: Exception | None = None) -> tuple[bytes, Usage]:
        self.begun = True
        try:
            await self.done.wait()
        except asyncio.CancelledError:
            await self.cleaned.wait()
            self.ending = "given up"
            raise
        self.ending = "done"
        if fault is not None:
            raise fault
        return b"events", USED


def reply_of(work: Coroutine[Any, Any, tuple[bytes, Usage]]) -> tuple[BufferedStream, list[bytes]]:
    return BufferedStream(work), []


async def turn() -> None:
    """Let everybody who can do so go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_is_painted_before_anybody_asks_for_it() -> None:
    easel = SlowGeneration()
    response, heard = reply_of(easel.paint())
    await turn()
    assert easel.begun
    easel.done.set()
    await turn()
    assert (easel.ending, response.usage) == ("done", NO_USAGE)  # what it used is told with what it is
    assert await response.pump(lambda data, _raw: bool(heard.append(data))) is PumpResult.ENDED  # type: ignore[func-returns-value]
    assert (heard, response.usage) == ([b"events"], USED)


async def test_a_sink_that_has_enough_pauses_it_and_nothing_is_left_to_push() -> None:
    easel = SlowGeneration()
    easel.done.set()
    response, heard = reply_of(easel.paint())
    assert await response.pump(lambda data, _raw: heard.append(data) is None) is PumpResult.PAUSED  # type: ignore[func-returns-value]
    assert await response.pump(lambda data, _raw: heard.append(data) is None) is PumpResult.ENDED  # type: ignore[func-returns-value]
    assert await response.read(100) == b""
    assert heard == [b"events"]


@pytest.mark.parametrize("fault", [ProviderBadResponse("broke"), ImageBlocked("no"), StoreUnavailable("full")])
async def test_whatever_it_ends_in_is_raised_however_often_it_is_asked_for(fault: Exception) -> None:
    easel = SlowGeneration()
    easel.done.set()
    response, heard = reply_of(easel.paint(fault))
    for ask in (response.pump(lambda data, _raw: bool(heard.append(data))), response.read(100)):  # type: ignore[func-returns-value]
        with pytest.raises(type(fault)) as met:
            await ask
        assert met.value is fault
    assert (heard, response.usage) == ([], NO_USAGE)


async def test_whoever_breaks_it_off_before_it_began_is_heard() -> None:
    easel, error = SlowGeneration(), ProviderTimeout("slow")
    response, _ = reply_of(easel.paint())
    response.abort(error)
    with pytest.raises(ProviderTimeout) as met:
        await response.read(100)
    assert met.value is error
    assert (easel.begun, response.usage) == (False, NO_USAGE)


async def test_whoever_breaks_it_off_is_heard_though_it_was_done_and_not_yet_pushed() -> None:
    easel, fault = SlowGeneration(), ShuttingDown("stopped")
    easel.done.set()
    response, heard = reply_of(easel.paint())
    await turn()
    response.abort(fault)
    with pytest.raises(ShuttingDown):
        await response.pump(lambda data, _raw: bool(heard.append(data)))  # type: ignore[func-returns-value]
    assert (heard, response.usage) == ([], NO_USAGE)


async def test_who_breaks_it_off_hears_of_it_when_it_has_tidied_up() -> None:
    easel = SlowGeneration()
    response, _ = reply_of(easel.paint())
    reading = asyncio.create_task(response.read(100))
    await turn()
    response.abort(ShuttingDown("stopped"))
    await turn()
    assert not reading.done()
    easel.cleaned.set()
    with pytest.raises(ShuttingDown):
        await reading
    assert easel.ending == "given up"


async def test_a_caller_who_is_gone_leaves_it_running_until_the_reply_is_closed() -> None:
    easel = SlowGeneration()
    easel.cleaned.set()
    response, _ = reply_of(easel.paint())
    reading = asyncio.create_task(response.read(100))
    await turn()
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    assert not response.task.done()
    response.close()
    await turn()
    assert (easel.ending, response.task.cancelled()) == ("given up", True)


async def test_closing_what_is_done_takes_nothing_away() -> None:
    easel = SlowGeneration()
    easel.done.set()
    response, heard = reply_of(easel.paint())
    await turn()
    response.finish()
    response.close()
    await response.pump(lambda data, _raw: bool(heard.append(data)))  # type: ignore[func-returns-value]
    assert (heard, easel.ending) == ([b"events"], "done")


@pytest.mark.parametrize(("limit", "passes"), [(6, True), (5, False), (0, False)])
async def test_read_gives_as_many_bytes_as_are_allowed_or_refuses(limit: int, *, passes: bool) -> None:
    easel = SlowGeneration()
    easel.done.set()
    response, _ = reply_of(easel.paint())
    if passes:
        assert await response.read(limit) == b"events"
        return
    with pytest.raises(ProviderBadResponse) as met:
        await response.read(limit)
    assert met.value.phase == "body"


# Its gate


@given(st.binary())
def test_whatever_is_painted_leaves_as_it_is_and_is_the_end(data: bytes) -> None:
    transform = BufferedPassthrough(Finished())
    assert (transform.events, transform.closed, transform.error) == (0, False, None)
    assert transform.feed(data) == data
    assert (transform.events, transform.closed, transform.ended, transform.error) == (1, True, True, None)
    assert transform.finish() == b""
    assert transform.parse_usage() == USED


class Finished(BufferedStream):
    """A stream that was pushed."""

    def __init__(self) -> None:
        self.usage = USED
