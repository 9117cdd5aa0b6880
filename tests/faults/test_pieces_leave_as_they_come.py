"""No event waits for the one after it."""

import asyncio
import statistics

import pytest

from tests.support.fault_scene import UNHURRIED, WAIT_LIMIT_S, audit, call, site
from tests.support.gateway import HELLO, channel
from tests.support.scripted_upstream import (
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
from tests.support.started_gateways import StartGateway

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


async def test_each_event_reaches_the_caller_before_the_provider_says_more(
    standing_with: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Causality instead of time: the provider waits until the caller has the event."""
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    sent: list[float] = []
    arrived: list[float] = []

    async def note(_received: Received) -> None:
        sent.append(loop.time())

    async def wait_for_caller(_received: Received) -> None:
        await asyncio.wait_for(heard.wait(), WAIT_LIMIT_S)
        heard.clear()

    script: list[Step] = [SSE_HEAD, chunk(b"".join(PIECES[:FIRST_EVENT]))]
    for piece in PIECES[FIRST_EVENT:]:
        script += [note, chunk(piece), wait_for_caller]
    async with ScriptedUpstream([*script, LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url, **UNHURRIED)))
        async with gateway.post({**HELLO, "stream": True}) as response:
            raw = b"".join(PIECES[:FIRST_EVENT])
            assert await response.content.readexactly(len(raw)) == raw
            for piece in PIECES[FIRST_EVENT:]:
                assert await asyncio.wait_for(response.content.readexactly(len(piece)), WAIT_LIMIT_S) == piece
                arrived.append(loop.time())
                heard.set()
            assert await response.content.read() == b""
        await audit(gateway, outcome="completed")
    lags = [after - before for before, after in zip(sent, arrived, strict=True)]
    with capsys.disabled():
        print(f"\nmedian lag of an event: {statistics.median(lags) * 1000:.2f} ms")  # noqa: T201


async def test_everything_but_an_unasked_usage_frame_survives(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([SSE_HEAD, *(chunk(piece) for piece in PIECES), LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        assert (await call(gateway, stream=True)).body == b"".join(PIECES)
        await audit(gateway, outcome="completed")
