"""What prompt caches have saved: in the rows, in every sum, in the metrics and on the overview, to the nano-USD."""

import random
from typing import Any

import pytest

from gateway.domain.request_log import RequestRecord
from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import call
from tests.support.gateway import RunningGateway
from tests.support.openai_provider import OpenAIProvider
from tests.support.prefix_cache import PrefixCache
from tests.support.providers import Fails, Says
from tests.support.scrapes import find_value, scrape
from tests.support.started_gateways import StartGateway

MODELS = ("first", "second")
PRICES = [
    {"model": "first", "input_usd_per_million": 1.1, "cached_input_usd_per_million": 0.13, "output_usd_per_million": 9},
    {"model": "second", "input_usd_per_million": 0.7, "cached_input_usd_per_million": 0, "output_usd_per_million": 3},
]
INPUT_NANOS = {"first": 1_100, "second": 700}
CACHED_NANOS = {"first": 130, "second": 0}
CONVERSATIONS, TURNS = 6, 5


class CachingProvider(OpenAIProvider):
    """Reports the part of a prompt that it has read before."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()

    def give(self) -> Says | Fails:
        prompt, cached = self.cache.read(message["content"] for message in self.received[-1].json["messages"])
        return Says("So.", prompt=prompt, cached=cached, completion=3, reasoning=0)


async def converse(gateway: RunningGateway) -> None:
    """Let conversations of both models go on in turns that are mixed."""
    order = [number for number in range(CONVERSATIONS) for _ in range(TURNS)]
    random.Random(2).shuffle(order)  # noqa: S311 - turns, not secrets
    histories: dict[int, list[dict[str, Any]]] = {number: [] for number in range(CONVERSATIONS)}
    for number in order:
        history = histories[number]
        text = f"{number} {len(history)}".ljust(400 if history else 8_000, ".")
        history.append({"role": "user", "content": text})
        heard = await call(gateway, model=MODELS[number % 2], messages=history, max_tokens=8, stream=False)
        assert heard.status == 200
        history.append({"role": "assistant", "content": "So."})


async def test_every_sum_is_that_of_the_rows(gateway_with: StartGateway) -> None:
    async with CachingProvider() as one, CachingProvider() as two, CachingProvider() as three:
        ups = {"one": one, "two": two, "three": three}
        channels = [up.channel(name, models=list(MODELS), model_map={}) for name, up in ups.items()]
        gateway = await gateway_with({"channel": channels, "price": PRICES})
        await converse(gateway)
        rows = await gateway.rows(CONVERSATIONS * TURNS)
        for row in rows:
            assert row.saved_nanos == row.cached_tokens * (INPUT_NANOS[row.model] - CACHED_NANOS[row.model])
        saved = sum(row.saved_nanos for row in rows)
        assert saved > 0
        for axis, label in (("day", None), ("hour", None), ("key", None), ("model", "model"), ("channel", "channel")):
            await check_axis(gateway, rows, axis, label)
        families = await scrape(gateway)
        for model in MODELS:
            of_model = sum(row.saved_nanos for row in rows if row.model == model)
            found = find_value(families, "gateway_cache_saved_usd", operation="chat", model=model)
            assert found == pytest.approx(of_model / 10**9, abs=1e-12)


async def test_what_was_saved_is_at_the_price_in_force_at_the_request(gateway_with: StartGateway) -> None:
    """The cached tokens are the same at both prices, and a new price leaves earlier rows and sums as they were."""
    body = {"model": "stored", "messages": [{"role": "user", "content": "x" * 4_000}], "max_tokens": 8}
    async with CachingProvider() as up:
        gateway = await gateway_with({"channel": [up.channel(models=["stored"], model_map={})]})
        admin = AdminApi(gateway)
        for price in (3, 5):
            rates = {"input_usd_per_million": price, "cached_input_usd_per_million": 1, "output_usd_per_million": 1}
            await admin("PUT", "/prices/stored", rates)
            assert (await call(gateway, stream=False, **body)).status == 200
            assert (await call(gateway, stream=False, **body)).status == 200
        rows = await gateway.rows(4)
        assert [row.cached_tokens for row in rows] == [0, 1_000, 1_000, 1_000]
        assert [row.saved_nanos for row in rows] == [0, 2_000_000, 4_000_000, 4_000_000]
        assert (await admin("GET", "/usage?by=model"))["total"]["saved_nanos"] == 10_000_000


async def check_axis(gateway: RunningGateway, rows: list[RequestRecord], axis: str, label: str | None) -> None:
    """The lines along an axis, and their total, are the sums of their rows."""
    usage = await AdminApi(gateway)("GET", f"/usage?by={axis}")
    for line in [*usage["data"], usage["total"]]:
        own = [row for row in rows if label is None or label not in line or getattr(row, label) == line[label]]
        found = line["prompt_tokens"], line["cached_tokens"], line["saved_nanos"], line["cost_nanos"]
        assert found == (
            sum(row.prompt_tokens for row in own),
            sum(row.cached_tokens for row in own),
            sum(row.saved_nanos for row in own),
            sum(row.cost_nanos for row in own),
        )
        assert line["saved_usd"] == line["saved_nanos"] / 10**9
    assert sum(line["saved_nanos"] for line in usage["data"]) == usage["total"]["saved_nanos"]
