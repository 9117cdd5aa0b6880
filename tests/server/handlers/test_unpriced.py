"""A key with a spending limit and a model without a price, at every endpoint: no provider is called."""

import asyncio
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.server.routes import list_inference_routes
from tests.support.endpoint_bodies import BODIES, FORMS, PNG, WAV
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.started_gateways import StartGateway

STREAMED = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")


@pytest.mark.parametrize("model", ["mystery", "openai/mystery-20260101", "alias"])
async def test_no_endpoint_calls_a_provider_for_a_model_without_a_price(
    standing_with: StartGateway, model: str
) -> None:
    async with ScriptedUpstream([]) as up:
        names = {"models": [model], "model_map": {"alias": "theirs"}}
        channels = [channel(up.base_url, slug, provider=slug, **names) for slug in ("custom", "openai", "anthropic")]
        key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 5, "quota_period": "lifetime"}
        gateway = await standing_with({"channel": channels, "key": [key]})
        codes = {}
        for path, fields in BODIES.items():
            async with gateway.client.post(gateway.url + path, json={"model": model, **fields}) as response:
                codes[path] = (response.status, "model_not_priced" in await response.text())
        for path, (name, more) in FORMS.items():
            form = aiohttp.FormData({"model": model, **more})
            form.add_field(name, PNG if name == "image" else WAV, filename="a.png" if name == "image" else "a.wav")
            async with gateway.client.post(gateway.url + path, data=form) as response:
                codes[path] = (response.status, "model_not_priced" in await response.text())
        assert codes == dict.fromkeys((*BODIES, *FORMS), (403, True))
        assert not up.received
        await gateway.rows(len(codes))


SPELLINGS = st.tuples(
    st.sampled_from(["", "openai/", "models/", "vendor/openai/", "anthropic."]),
    st.text("bcdfghjkqvwxz", min_size=4, max_size=12),
    st.sampled_from(["", "-2026-01-01", "-20260101", "@latest", ":free", "-4.5", "-4-5", "-MINI", "-image", "-tts"]),
).map("".join)
"""Names without vowels, which no price in the list has, spelled in the usual ways."""
CALLS = st.lists(st.tuples(st.sampled_from([*BODIES, *FORMS]), SPELLINGS, st.booleans()), min_size=1, max_size=6)


async def send(gateway: RunningGateway, path: str, model: str, *, stream: bool) -> tuple[int, str]:
    data: Any = None
    if path in FORMS:
        name, more = FORMS[path]
        data = aiohttp.FormData({"model": model, **more})
        data.add_field(name, PNG if name == "image" else WAV, filename="a.png" if name == "image" else "a.wav")
    streams = {"stream": True} if stream and path in STREAMED else {}
    body = None if data else {"model": model, **BODIES[path], **streams}
    async with gateway.client.post(gateway.url + path, json=body, data=data) as response:
        return response.status, await response.text()


async def test_no_spelling_of_a_model_without_a_price_reaches_a_provider(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([]) as up:
        channels = [channel(up.base_url, slug, provider=slug, models=["*"]) for slug in ("custom", "openai")]
        key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 5, "quota_period": "lifetime"}
        gateway = await standing_with({"channel": channels, "key": [key]})
        runner = asyncio.get_running_loop()
        sent = 0

        @given(CALLS)
        @settings(max_examples=40)
        def check(calls: list[tuple[str, str, bool]]) -> None:
            nonlocal sent
            for path, model, stream in calls:
                asked = asyncio.run_coroutine_threadsafe(send(gateway, path, model, stream=stream), runner)
                status, text = asked.result(30)
                sent += 1
                assert (status, "model_not_priced" in text) == (403, True), (path, model)
                assert not up.received

        await asyncio.to_thread(check)
        await gateway.rows(sent)


def test_every_route_that_calls_a_provider_is_tried() -> None:
    free = {"/messages/count_tokens"}
    served = {path for path, _ in list_inference_routes()} | {"/videos"}
    assert {f"/v1{path}" for path in served - free} == {*BODIES, *FORMS}
