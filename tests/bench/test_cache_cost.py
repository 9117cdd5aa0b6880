"""What an answer from the cache costs beside one from the provider: CPU time of client, gateway and provider together.

Client and provider are raw sockets, which cost little; a hit needs no provider. ``make bench-parts`` prints the times.
"""

import logging
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from itertools import count, islice, repeat

import orjson
import pytest

from gateway.log import configure_log
from gateway.server.context import SERVICES
from tests.support.gateway import RunningGateway, channel
from tests.support.raw_client import connect, hello, post
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

ROUNDS, REQUESTS = 7, 60
MAX_SHARE = 0.6
END = orjson.dumps(COMPLETION)[-12:]


@pytest.fixture(autouse=True)
def log_as_a_gateway_does(capfd: pytest.CaptureFixture[str]) -> None:
    """A gateway writes a line for each request."""
    configure_log("json", logging.INFO)


async def test_a_hit_costs_at_most_three_fifths_of_a_miss(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        prices = [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}]
        plain = await gateway_with({"channel": [channel(up.base_url)], "price": prices})
        cached = await gateway_with({"channel": [channel(up.base_url)], "price": prices, "cache": {"ttl_s": 3_600}})
        numbers = count()
        to_plain, to_cached = [await connect(gateway.url) for gateway in (plain, cached)]
        sides = [(to_plain, plain, repeat(0)), (to_cached, cached, numbers), (to_cached, cached, repeat(0))]
        times_s = [[await measure(*side) for side in sides] for _ in range(ROUNDS)]
        plain_s, miss_s, hit_s = (min(side) for side in zip(*times_s[1:], strict=True))
        figures = f"without a cache: {plain_s * 1e6:.0f} us, a miss: {miss_s * 1e6:.0f} us, a hit: {hit_s * 1e6:.0f} us"
        print(f"\n{figures}, {hit_s / miss_s:.2f} of a miss", end="")
        assert len(up.received) == REQUESTS * ROUNDS * 2  # the first miss is the question of all hits
        for _, writer in (to_plain, to_cached):
            writer.close()
        await plain.client.close()
        assert hit_s <= miss_s * MAX_SHARE


async def measure(
    connection: tuple[StreamReader, StreamWriter], gateway: RunningGateway, numbers: Iterator[int]
) -> float:
    """The CPU time of a request with a number, in seconds, with all threads and what is done of it later."""
    reader, writer = connection
    started_s = time.process_time()
    for number in islice(numbers, REQUESTS):
        writer.write(post(hello(messages=[{"role": "user", "content": f"question {number}"}])))
        await reader.readuntil(END)
    answers = gateway.app[SERVICES].open_answers.instance
    if answers is not None:
        await answers.store.describe()  # until all is written
    return (time.process_time() - started_s) / REQUESTS
