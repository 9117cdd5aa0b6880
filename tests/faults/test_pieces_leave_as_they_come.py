"""No event waits for the one after it."""

import asyncio
import statistics

import pytest

from tests.conftest import StartGateway
from tests.fakes.gateway import HELLO, channel
from tests.fakes.upstream import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    Step,
    chunk,
    delta,
    event,
)
from tests.faults.scene import PATIENCE_S, UNHURRIED, audit, call, site

INTERVAL_S = 0.1
PIECES = [
    b": the provider thinks\n\n",
    event(delta("a")),
    b"event: message\n" + event(delta("b")),
    b": still here\n\n",
    event(delta("ü").copy() | {"extra": [1]}),
    event(delta("", "tool_calls", usage=None)),
    event(delta("c")).replace(b"\n", b"\r\n"),
    event(delta("", "stop")),
    DONE,
]
FIRST_EVENT = 1
"""Until then nothing is answered: what comes before leaves with it."""


@pytest.mark.slow
async def test_each_event_leaves_before_the_next_one_is_sent(
    standing_with: StartGateway,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop = asyncio.get_running_loop()
    sent: list[float] = []
    arrived: dict[int, float] = {}

    async def note(_received: Received) -> None:
        sent.append(loop.time())

    script: list[Step] = [SSE_HEAD]
    for piece in PIECES:
        script += [INTERVAL_S, note, chunk(piece)]
    async with ScriptedUpstream([*script, LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        body = b""
        async with gateway.post({**HELLO, "stream": True}) as response:
            async for piece in response.content.iter_any():
                body += piece
                for index in range(len(PIECES)):
                    if len(body) >= len(b"".join(PIECES[: index + 1])):
                        arrived.setdefault(index, loop.time())
        assert body == b"".join(PIECES)
        await audit(gateway, ending="completed")
    lags = [arrived[index] - sent[index] for index in range(FIRST_EVENT, len(PIECES))]
    with capsys.disabled():
        print(f"\nmedian lag of an event: {statistics.median(lags) * 1000:.2f} ms")  # noqa: T201
    assert all(arrived[index] < sent[index + 1] for index in range(FIRST_EVENT, len(PIECES) - 1))


async def test_an_event_reaches_the_caller_before_the_provider_says_more(standing_with: StartGateway) -> None:
    """Causality instead of time: the provider waits until the caller has the event."""
    heard = asyncio.Event()

    async def wait_for_caller(_received: Received) -> None:
        await asyncio.wait_for(heard.wait(), PATIENCE_S)
        heard.clear()

    pieces = PIECES[FIRST_EVENT:]
    script: list[Step] = [SSE_HEAD]
    for piece in pieces:
        script += [chunk(piece), wait_for_caller]
    async with ScriptedUpstream([*script, LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url, **UNHURRIED)))
        async with gateway.post({**HELLO, "stream": True}) as response:
            for piece in pieces:
                assert await asyncio.wait_for(response.content.readexactly(len(piece)), PATIENCE_S) == piece
                heard.set()
        await audit(gateway, ending="completed")


async def test_everything_but_an_unasked_usage_frame_survives(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([SSE_HEAD, *(chunk(piece) for piece in PIECES), LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        assert (await call(gateway, stream=True)).body == b"".join(PIECES)
        await audit(gateway, ending="completed")
