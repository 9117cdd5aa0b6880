"""Quotes: what a request may cost, held until the request comes."""

import asyncio
import random
from typing import Any

import aiohttp
import pytest

from gateway.billing.balances import Balances
from gateway.billing.quotes import MAX_HOLDS
from gateway.domain.balance import Balance
from gateway.domain.price import NANOS_PER_USD
from gateway.server.context import SERVICES
from gateway.server.sessions import KEY_HEADER
from tests.support.admin_calls import AdminApi
from tests.support.console_people import make_administrator
from tests.support.endpoint_bodies import BODIES, FORMS, MESSAGES, PNG, WAV
from tests.support.gateway import CHAT, KEY, RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

QUOTE = "/v1/quote"
PRICE = {"model": "m", "input_usd_per_million": 10, "output_usd_per_million": 20}
REQUEST: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hello " * 40}]}
OTHER_KEY = "sk-test-key-of-another-caller"


def complete(prompt: int, completion: int, **more: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}
    message = {"role": "assistant", "content": "ok"}
    choices = [{"index": 0, "message": message, "text": "ok", "finish_reason": "stop"}]
    return answer(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    )


async def ask(gateway: RunningGateway, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    async with gateway.post(
        body, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    ) as r:
        return r.status, await r.json()


async def quote(gateway: RunningGateway, body: Any, query: str = "", **headers: str) -> Any:
    status, quoted = await ask(gateway, QUOTE + query, body, **headers)
    assert status == 200, quoted
    return quoted


def config(up: ScriptedUpstream, quota_usd: float | None = None, **more: Any) -> dict[str, Any]:
    quota = {} if quota_usd is None else {"quota_usd": quota_usd, "quota_period": "lifetime"}
    keys = [
        {"name": "test", "account": "acme", "secret": KEY, **quota},
        {"name": "other", "account": "acme", "secret": OTHER_KEY},
    ]
    return {"channel": [channel(up.base_url)], "price": [PRICE], "key": keys, **more}


def find_balance(gateway: RunningGateway) -> Balance:
    balances: Balances = gateway.app[SERVICES].billing.balances
    return max((balance for _, balance in balances.list_balances("key")), key=lambda balance: balance.quota.capped)


def make_request(rng: random.Random, model: str) -> tuple[str, dict[str, Any], bytes]:
    """A random request: its path, its body, and an answer with a usage that the request allows."""
    path = rng.choice([CHAT, "/v1/messages", "/v1/completions", "/v1/embeddings", "/v1/responses"])
    text = "word " * rng.randint(1, 200)
    limit, choices = rng.choice([1, 17, 500, 8_000]), rng.choice([1, 1, 3])
    body: dict[str, Any] = {"model": model}
    if path == "/v1/embeddings":
        prompt_tokens = rng.randint(1, len(text))
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return path, {**body, "input": text}, answer({"object": "list", "data": data, "model": "m", "usage": usage})
    if path == "/v1/completions":
        body |= {"prompt": text, "max_tokens": limit, "n": choices}
    elif path == "/v1/responses":
        body, choices = {**body, "input": text, "max_output_tokens": limit}, 1
    elif path == "/v1/messages":
        body, choices = {**body, "messages": [{"role": "user", "content": text}], "max_tokens": limit}, 1
    else:
        body |= {"messages": [{"role": "user", "content": text}], "n": choices}
        if rng.random() < 0.7:
            body["max_tokens"] = limit
        else:
            limit = 60_000
    prompt_tokens = rng.randint(1, len(text))
    if path == "/v1/responses":
        usage = {"input_tokens": prompt_tokens, "output_tokens": rng.randint(0, limit)}
        content = [{"type": "output_text", "text": "ok", "annotations": []}]
        output = [{"type": "message", "id": "msg", "role": "assistant", "status": "completed", "content": content}]
        fields = {"id": "resp", "object": "response", "created_at": 1, "status": "completed", "model": "m"}
        return path, body, answer({**fields, "output": output, "usage": usage})
    details = {"prompt_tokens_details": {"cached_tokens": rng.randint(0, prompt_tokens)}}
    return path, body, complete(prompt_tokens, rng.randint(0, limit * choices), **details)


def make_price(rng: random.Random, model: str) -> dict[str, Any]:
    fresh, output = rng.uniform(0, 50), rng.uniform(0, 200)
    price: dict[str, Any] = {"model": model, "input_usd_per_million": fresh, "output_usd_per_million": output}
    if rng.random() < 0.5:
        price["cached_input_usd_per_million"] = fresh * rng.random()
    if rng.random() < 0.3:
        price["usd_per_call"] = rng.random()
    if rng.random() < 0.3:
        tier = {"above_tokens": 100, "input_usd_per_million": 2 * fresh, "output_usd_per_million": 2 * output}
        price["tiers"] = [tier]
    return price


async def test_the_bill_of_500_random_requests_is_never_above_their_quotes(gateway_with: StartGateway) -> None:
    rng = random.Random(37)  # noqa: S311 - the requests, no secret
    models = [f"model-{number}" for number in range(25)]
    requests = [make_request(rng, rng.choice(models)) for _ in range(500)]
    async with ScriptedUpstream(*([sent] for _, _, sent in requests)) as up:
        channels = [channel(up.base_url, models=models, price_multiplier=1.7)]
        gateway = await gateway_with({**config(up), "channel": channels, "price": [make_price(rng, m) for m in models]})
        charged = 0.0
        for path, body, _ in requests:
            quoted = await quote(gateway, body, f"?endpoint={path}")
            async with gateway.post(body, path) as response:
                assert response.status == 200, await response.text()
                cost_usd = float(response.headers["x-gateway-cost-usd"])
            assert cost_usd <= quoted["max_usd"], (path, body)
            assert quoted["targets"][0]["likely_usd"] <= quoted["max_usd"]
            charged += cost_usd
        assert charged > 0
        assert len(up.received) == 500


async def test_a_hold_serves_its_request_after_another_caller_has_spent_the_rest(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(10, 100)]) as up:
        gateway = await gateway_with(config(up, 0.05))
        held = await quote(gateway, REQUEST, "?hold_s=60")
        assert held["quote_id"] is not None
        assert find_balance(gateway).held_nanos == round(held["max_usd"] * NANOS_PER_USD)
        statuses = []
        while (status := (await ask(gateway, CHAT, REQUEST))[0]) == 200:
            statuses.append(status)
        assert status == 403
        assert statuses
        poor = await quote(gateway, REQUEST)
        assert [obstacle["code"] for obstacle in poor["targets"][0]["obstacles"]] == ["insufficient_quota"]
        status, _ = await ask(gateway, CHAT, REQUEST, x_gateway_quote=held["quote_id"])
        assert status == 200
        assert all("x-gateway-quote" not in request.headers for request in up.received)
        rows = await gateway.rows(len(statuses) + 2)
        assert rows[-1].reserved_nanos == round(held["max_usd"] * NANOS_PER_USD)
        assert sum(row.cost_nanos for row in rows) <= 0.05 * NANOS_PER_USD
        assert find_balance(gateway).held_nanos == 0


async def test_an_unused_hold_is_released_and_its_quote_is_refused(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(10, 100)]) as up:
        gateway = await gateway_with(config(up, 0.05))
        held = await quote(gateway, REQUEST, "?hold_s=1")
        holds = gateway.app[SERVICES].billing.open_holds()
        assert len(holds) == 1
        async with asyncio.timeout(20):
            while len(holds):  # noqa: ASYNC110 - a timer ends the hold
                await asyncio.sleep(0.05)
        assert find_balance(gateway).held_nanos == 0
        status, body = await ask(gateway, CHAT, REQUEST, x_gateway_quote=held["quote_id"])
        assert (status, body["error"]["code"]) == (409, "quote_not_valid")
        assert not up.received
        assert (await gateway.rows(1))[0].cost_nanos == 0


async def test_the_price_is_that_of_the_quote_although_it_was_raised(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(100, 100)]) as up:
        gateway = await gateway_with({**config(up), "price": []})
        path, office = "/prices/m", AdminApi(gateway)
        rates = {"input_usd_per_million": 10, "output_usd_per_million": 20}
        await office("PUT", path, rates)
        held = await quote(gateway, REQUEST, "?hold_s=60")
        await office("PUT", path, {name: 50 * rate for name, rate in rates.items()})
        raised = await quote(gateway, REQUEST)
        assert raised["max_usd"] == pytest.approx(50 * held["max_usd"])
        for headers in ({"x_gateway_quote": held["quote_id"]}, {}):
            assert (await ask(gateway, CHAT, REQUEST, **headers))[0] == 200
        quoted_row, plain_row = await gateway.rows(2)
        assert plain_row.cost_nanos == 50 * quoted_row.cost_nanos
        assert quoted_row.cost_nanos <= held["max_usd"] * NANOS_PER_USD


async def test_no_more_is_charged_than_is_held_whatever_the_provider_counts(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(30_000, 100)]) as up:
        gateway = await gateway_with(config(up, 1))
        held = await quote(gateway, REQUEST, "?hold_s=60")
        assert (await ask(gateway, CHAT, REQUEST, x_gateway_quote=held["quote_id"]))[0] == 200
        (row,) = await gateway.rows(1)
        assert row.cost_nanos == round(held["max_usd"] * NANOS_PER_USD)
        assert row.overrun_nanos == 0


async def test_a_quote_serves_one_request_of_its_key_model_and_size(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([complete(10, 10)]) as up:
        models = [{**PRICE, "model": name} for name in ("m", "m2")]
        settings = {**config(up, 0.5), "channel": [channel(up.base_url, models=["m", "m2"])], "price": models}
        gateway = await gateway_with(settings)
        quote_id = (await quote(gateway, REQUEST, "?hold_s=60"))["quote_id"]
        other = {"Authorization": f"Bearer {OTHER_KEY}"}
        refusals = [
            await ask(gateway, CHAT, {**REQUEST, "max_tokens": 1_000}, x_gateway_quote=quote_id),
            await ask(gateway, CHAT, {**REQUEST, "model": "m2"}, x_gateway_quote=quote_id),
            await ask(gateway, "/v1/completions", {"model": "m", "prompt": "a"}, x_gateway_quote=quote_id),
            await ask(gateway, CHAT, REQUEST, x_gateway_quote="quote_0123456789abcdef_00"),
            await ask(gateway, CHAT, REQUEST, x_gateway_quote=quote_id, **other),
        ]
        assert {(status, body["error"]["code"], body["error"]["param"]) for status, body in refusals} == {
            (409, "quote_not_valid", "x-gateway-quote")
        }
        assert "another node of the cluster, '0123456789abcdef'" in refusals[3][1]["error"]["message"]
        assert not up.received
        assert (await ask(gateway, CHAT, {**REQUEST, "max_tokens": 50}, x_gateway_quote=quote_id))[0] == 200
        status, body = await ask(gateway, CHAT, REQUEST, x_gateway_quote=quote_id)
        assert (status, body["error"]["code"]) == (409, "quote_not_valid")
        assert len(up.received) == 1
        assert find_balance(gateway).held_nanos == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "unknown", "messages": MESSAGES}),
        (CHAT, {"model": "m"}),
        (CHAT, {"model": "m", "messages": MESSAGES, "max_tokens": -1}),
        ("/v1/messages", {"model": "m", "messages": MESSAGES}),
        ("/v1beta/models/m:generateContent", {"contents": 1}),
        ("/v1/videos", {"model": "m"}),
    ],
)
async def test_a_wrong_request_gets_its_own_error(standing_with: StartGateway, path: str, body: dict[str, Any]) -> None:
    async with ScriptedUpstream([]) as up:
        gateway = await standing_with(config(up))
        errors = []
        for place in (path, f"{QUOTE}?endpoint={path}"):
            async with gateway.post(body, place) as response:
                error = (await response.json())["error"]
                errors.append((response.status, error["message"].partition(" (request id")[0]))
        assert errors[0] == errors[1]
        assert errors[0][0] >= 400
        assert not up.received


async def test_an_administrator_sees_the_channels_in_their_order(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([]) as up:
        channels = [channel(up.base_url, name, priority=-number) for number, name in enumerate(["best", "spare"])]
        gateway = await standing_with({**config(up), "channel": channels})
        ada = await make_administrator(gateway)
        _, created = await ada.call("POST", "/keys", {"account": "acme", "name": "ada"})
        own = created["key"] if isinstance(created.get("key"), dict) else created
        url, headers = f"{gateway.url}{QUOTE}", {KEY_HEADER: str(own["id"]), "Sec-Fetch-Site": "same-origin"}
        async with ada.session.post(url, json=REQUEST, headers=headers) as response:
            body = await response.json()
            assert response.status == 200, body
        assert [target.get("channel") for target in body["targets"]] == ["best", "spare"]
        assert ["channel" in target for target in (await quote(gateway, REQUEST))["targets"]] == [False, False]
        await ada.session.close()


async def test_a_video_cannot_use_a_quote(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([]) as up:
        gateway = await standing_with(config(up))
        body = {"model": "m", "prompt": "a cat"}
        status, answered = await ask(gateway, "/v1/videos", body, x_gateway_quote="quote_gateway_00")
        assert (status, answered["error"]["param"]) == (400, "x-gateway-quote")
        assert not up.received


async def test_the_query_is_checked(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([]) as up:
        gateway = await standing_with(config(up))
        for query, param in (
            ("?hold_s=61", "hold_s"),
            ("?hold_s=-1", "hold_s"),
            ("?hold_s=1.5", "hold_s"),
            ("?endpoint=/v1/models", "endpoint"),
            ("?endpoint=/v1/realtime", "endpoint"),
            ("?endpoint=/v1/videos&hold_s=5", "hold_s"),
            ("?endpoint=/v1beta/models/m:tune", "endpoint"),
        ):
            status, body = await ask(gateway, QUOTE + query, REQUEST)
            assert (status, body["error"]["param"]) == (400, param), query


async def test_every_endpoint_can_be_quoted_and_nothing_is_sent_or_recorded(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([]) as up:
        price = {
            **PRICE,
            "usd_per_image": 0.1,
            "usd_per_second": 0.1,
            "usd_per_million_characters": 5,
            "usd_per_search": 0.01,
        }
        channels = [channel(up.base_url, slug, provider=slug, models=["m"]) for slug in ("custom", "openai")]
        gateway = await standing_with({**config(up), "channel": channels, "price": [price]})
        for path, fields in BODIES.items():
            status, quoted = await ask(gateway, f"{QUOTE}?endpoint={path}", {"model": "m", **fields})
            assert status == 200, (path, quoted)
            assert quoted["targets"][0]["max_usd"] == quoted["max_usd"] or len(quoted["targets"]) > 1, path
            assert "channel" not in quoted["targets"][0], path
        for path, (name, more) in FORMS.items():
            form = aiohttp.FormData({"model": "m", **more})
            form.add_field(name, PNG if name == "image" else WAV, filename="a.png" if name == "image" else "a.wav")
            async with gateway.client.post(f"{gateway.url}{QUOTE}?endpoint={path}", data=form) as response:
                assert response.status == 200, await response.text()
        google = await quote(
            gateway, {"contents": [{"parts": [{"text": "hi"}]}]}, "?endpoint=/v1/models/m:generateContent"
        )
        assert (google["model"], google["quote_id"], google["max_usd"] > 0) == ("m", None, True)
        assert not up.received
        await gateway.rows(0)


async def test_a_key_holds_a_bounded_number_of_quotes(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([]) as up:
        gateway = await standing_with(config(up))
        for _ in range(MAX_HOLDS):
            await quote(gateway, REQUEST, "?hold_s=60")
        status, body = await ask(gateway, f"{QUOTE}?hold_s=60", REQUEST)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert (await ask(gateway, QUOTE, REQUEST))[0] == 200
        gateway.app[SERVICES].billing.open_holds().close()
        assert find_balance(gateway).held_nanos == 0
