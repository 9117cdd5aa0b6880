"""K4, K5: ``kill -9`` while streams are kept and read: whoever comes back gets one error event, never a gap.

``make soak ARGS=tests/faults/test_kill_streams.py`` kills two hundred times.
"""

import asyncio
import random
from pathlib import Path

import aiohttp
import pytest

from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, open_caller
from tests.support.resumed_streams import CutStream, find_text, list_events, strip_ids
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, ScriptedUpstream, Step, chat_events, chunk

WORDS = [f"w{number} " for number in range(40)]
PAUSE_S = 0.01


def paced_script() -> list[Step]:
    script: list[Step] = [SSE_HEAD]
    for event in chat_events(*WORDS):
        script += [chunk(event), PAUSE_S]
    return [*script, LAST_CHUNK]


async def read_rest(caller: aiohttp.ClientSession, url: str, stream_id: str, after: int) -> list[bytes]:
    """What comes after event ``after``, whole events only, until the end or the death of the gateway."""
    raw = b""
    try:
        async with caller.get(f"{url}/v1/streams/{stream_id}?after={after}") as response:
            assert response.status == 200, await response.text()
            async for data in response.content.iter_any():
                raw += data
    except aiohttp.ClientError:
        pass
    return list_events(raw)


async def live_and_die(gateway: GatewayProcess, caller: aiohttp.ClientSession, rng: random.Random) -> None:
    """One stream, cut and taken up until a kill, and taken up again at the next gateway."""
    whole = chat_events(*WORDS, usage=False)
    stream = await CutStream.open(gateway.url)
    await stream.read_events(rng.randint(1, 5))
    stream.cut()
    received = list_events(stream.received)
    reading = asyncio.create_task(read_rest(caller, gateway.url, stream.id, len(received)))
    await asyncio.sleep(rng.uniform(0, PAUSE_S * len(whole) * 1.2))
    await gateway.kill()
    numbers, events = strip_ids(await reading)
    received += events
    assert numbers == list(range(len(received) - len(numbers) + 1, len(received) + 1))
    assert received == whole[: len(received)]
    await gateway.start()
    async with caller.get(f"{gateway.url}/v1/streams/{stream.id}?after={len(received)}") as response:
        raw = await response.read()
        if response.status == 404:  # it had come to its end, and is not kept over a start
            async with caller.get(f"{gateway.url}/v1/streams/{stream.id}") as described:
                assert described.status == 404
        else:
            assert response.status == 200
            (error,) = list_events(raw)
            assert b"stream_interrupted" in error
            assert f"after event {len(received)};".encode() in error
            assert find_text(received) == "".join(WORDS)[: len(find_text(received))]


async def kill(tmp_path: Path, times: int) -> None:
    rng = random.Random(5)  # noqa: S311 - when to kill
    async with ScriptedUpstream(paced_script()) as up:
        tables = {
            "channel": [channel(up.base_url)],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
            "price": [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 1}],
        }
        async with GatewayProcess(tmp_path / "data", tables) as gateway, open_caller() as caller:
            for _ in range(times):
                await live_and_die(gateway, caller, rng)
            assert len(up.received) == times
            rows, _ = await gateway.read_rows()
            assert len(rows) == times
            assert {row.outcome for row in rows} <= {"completed", "interrupted"}
            await gateway.check_books()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_kill_ends_a_stream_with_one_error_event(tmp_path: Path) -> None:
    await kill(tmp_path, 3)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_two_hundred_kills_leave_no_gap(tmp_path: Path) -> None:
    await kill(tmp_path, 200)
