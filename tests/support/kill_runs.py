"""A gateway process under load that is killed and started again."""

import asyncio
import contextlib
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from tests.support.fault_scene import PRICE
from tests.support.forked_commands import Forked
from tests.support.gateway import HELLO, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, open_caller
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    answer,
    chunk,
    delta,
    event,
    usage_frame,
)

KEYS = {"sk-free-of-any-cap": "open", "sk-of-a-capped-account": "tight", "sk-capped-twice-over": "tight"}

KILL_COUNTS = [
    2,
    pytest.param(
        int(os.environ.get("GATEWAY_TEST_KILLS") or 300), marks=[pytest.mark.soak, pytest.mark.timeout(0)], id="many"
    ),
]
"""How often a gateway is killed: by ``make test``, and by ``make soak``."""
PATIENCE = 6.0
"""The factor of the time that a gateway may take: hundreds of kills last so long that some of them meet a busy disk."""

REFILL = {"accounts/tight/credits": 0.0015, "keys/3/credits": 0.0006}
"""What is left to the capped purses before each round, in dollars: soon used up."""


ANSWER_COST, STREAM_COST, RESERVED = 19_000, 25_000, 38_000
"""Nano-USD. A stream reports more than it was allowed (``max_tokens``), which is what is charged then."""


@attrs.define
class Memory:
    """What the test knows of every call it made, by the call's mark; each mark is used once."""

    reached: Counter[str] = attrs.Factory(Counter)
    whole: dict[str, bool] = attrs.Factory(dict)
    """Calls whose callers have the whole answer; the value says whether it was a stream."""
    refused: set[str] = attrs.Factory(set)
    rows: dict[str, RequestRecord] = attrs.Factory(dict)
    last: int = 0


def open_up(memory: Memory, rng: random.Random, *, stream: bool) -> ScriptedUpstream:
    """A provider that takes its time, and tells ``memory`` what reached it."""

    async def note(received: Received) -> None:
        memory.reached[received.json["user"]] += 1
        await asyncio.sleep(rng.uniform(0, 0.03))

    async def pause(_received: Received) -> None:
        await asyncio.sleep(rng.uniform(0, 0.03))

    if not stream:
        return ScriptedUpstream([note, answer(COMPLETION)])
    events = [event(delta(word)) for word in ("a", "b", "c")]
    last = event(delta("", "stop")) + event(usage_frame(5, 40)) + DONE
    return ScriptedUpstream([note, SSE_HEAD, *map(chunk, events), pause, chunk(last), LAST_CHUNK])


def site(up: ScriptedUpstream, streaming: ScriptedUpstream, on_crash: str) -> dict[str, Any]:
    """Two models, so that each provider has one script; three keys, one of them uncapped."""
    return {
        "ledger": {"on_crash": on_crash},
        "channel": [channel(up.base_url, "whole"), channel(streaming.base_url, "streams", models=["s"])],
        "price": [PRICE, {**PRICE, "model": "s"}],
        "account": [{"name": "open"}, {"name": "tight", "quota_usd": 0.0, "quota_period": "lifetime"}],
        "key": [
            {
                "name": f"key{number}",
                "secret": secret,
                "account": account,
                **({"quota_usd": 0.0} if number == 2 else {}),
            }
            for number, (secret, account) in enumerate(KEYS.items())
        ],
    }


async def keep_calling(url: str, secret: str, name: str, memory: Memory, rng: random.Random) -> None:
    """Call after call, every other one a stream and some of them left half-way, until the gateway is gone."""
    async with open_caller(secret) as caller:
        for number in range(10_000):
            mark = f"{name}-{number}"
            stream = rng.random() < 0.5
            body = {**HELLO, "model": "s" if stream else "m", "stream": stream, "user": mark, "max_tokens": 10}
            try:
                async with ask_chat(caller, url, body, mark) as response:
                    if response.status != 200:
                        memory.refused.add(mark)
                        await asyncio.sleep(0.02)
                    elif rng.random() < 0.9:
                        await hear(response, mark, memory, stream=stream)
            except aiohttp.ClientError:
                return


async def hear(response: aiohttp.ClientResponse, mark: str, memory: Memory, *, stream: bool) -> None:
    """Read an answer. A stream is whole with its end mark: no client waits for anything after it."""
    raw = b""
    async for piece in response.content.iter_any():
        raw += piece
        if stream and raw.endswith(DONE):
            memory.whole[mark] = stream
    if not stream:
        memory.whole[mark] = stream


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds; fail if it does not within a minute and a half."""
    async with asyncio.timeout(15 * PATIENCE):
        while not condition():  # noqa: ASYNC110 - what another process does has no event to tend
            await asyncio.sleep(0.005)


def roll() -> tuple[int, random.Random]:
    """Dice for moments and lengths, other ones each time, and the seed that makes them fall the same way again."""
    seed = int(os.environ.get("GATEWAY_TEST_SEED") or secrets.randbelow(2**32))
    return seed, random.Random(seed)  # noqa: S311 - moments, not secrets


@contextlib.contextmanager
def telling(seed: int) -> Iterator[None]:
    """Whatever fails says which dice were thrown."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"the dice: GATEWAY_TEST_SEED={seed}")
        raise


def check_offline(gateway: GatewayProcess) -> None:
    """The command says the same of the folder that a killed gateway has left."""
    words = ["gateway", "audit", "--data", str(gateway.data), "--config", str(gateway.config)]
    out, err = gateway.data.with_suffix(".audit"), gateway.data.with_suffix(".trouble")
    done = Forked(words, cwd=gateway.data.parent, env=os.environ, out=out, err=err).wait(15 * PATIENCE)
    assert done == 0, out.read_text() + err.read_text()
