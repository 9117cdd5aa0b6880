"""The walk of a call, as a caller sees it, and the money that is held for it on the way."""

import asyncio
from typing import Any

import pytest

from gateway.server.context import SERVICES
from tests.support.fault_scene import PRICE, site, until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel, channels
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, Step, answer, chat_events, chat_script
from tests.support.started_gateways import StartGateway

PROMPT_BOUND = 18
"""Tokens of ``HELLO`` at the most: two of text, eight around the message and eight around the prompt."""
STREAM = {**HELLO, "stream": True}
COST = 5 * 1_000 + 7 * 2_000
OTHER_KEY = "sk-test-key-of-a-poorer-caller"


async def test_a_json_call_is_answered_with_the_providers_bytes(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([up]))
        async with gateway.post() as response:
            assert response.status == 200
            assert await response.json() == COMPLETION
            assert response.headers["X-Request-Id"].startswith("req_")
            assert "Server" not in response.headers
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.status, row.prompt_tokens, row.completion_tokens) == ("completed", 200, 5, 7)


async def test_a_stream_arrives_byte_for_byte_without_the_usage_frame(standing_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a", "b", "c")) as up:
        gateway = await standing_with(channels([up]))
        async with gateway.post(STREAM) as response:
            body = await response.read()
        events = chat_events("a", "b", "c")
        assert body == b"".join(events[:-2] + events[-1:])
        assert up.received[0].json["stream_options"] == {"include_usage": True}
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.prompt_tokens, row.usage_source) == ("completed", 5, "upstream")


@pytest.mark.parametrize(
    ("more", "nanos"),
    [
        ({}, PROMPT_BOUND * 1_000 + 4_096 * 2_000),
        ({"max_tokens": 10}, PROMPT_BOUND * 1_000 + 10 * 2_000),
        ({"max_completion_tokens": 10, "n": 3}, PROMPT_BOUND * 1_000 + 30 * 2_000),
        ({"max_tokens": 10, "max_completion_tokens": 20}, PROMPT_BOUND * 1_000 + 20 * 2_000),
        ({"max_tokens": 1_000_000}, PROMPT_BOUND * 1_000 + 4_096 * 2_000),
        ({"max_tokens": None, "n": 2}, PROMPT_BOUND * 1_000 + 8_192 * 2_000),
        ({"messages": [{"role": "user", "content": "ü" * 50}], "max_tokens": 1}, (100 + 16) * 1_000 + 2_000),
    ],
    ids=["nothing said", "max_tokens", "three choices", "both", "too much", "null", "two bytes a letter"],
)
async def test_what_is_held_for_a_call_is_what_it_may_come_to(
    gateway_with: StartGateway, more: dict[str, Any], nanos: int
) -> None:
    """A cap of exactly that admits the call, and one of a nano-dollar less refuses it before any provider is asked."""
    keys = [
        {"name": "just", "account": "acme", "secret": KEY, "quota_usd": nanos / 10**9},
        {"name": "short", "account": "acme", "secret": OTHER_KEY, "quota_usd": (nanos - 1) / 10**9},
    ]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), key=keys))
        for secret, status in ((KEY, 200), (OTHER_KEY, 403)):
            async with gateway.post({**HELLO, **more}, headers={"Authorization": f"Bearer {secret}"}) as response:
                assert response.status == status
        assert [row.reserved_nanos for row in await gateway.rows(2)] == [nanos, 0]
        assert len(up.received) == 1


async def test_an_embedding_is_held_by_its_bytes_and_costs_its_tokens(standing_with: StartGateway) -> None:
    """A text is its bytes and the mark at its end."""
    vectors = [{"object": "embedding", "index": index, "embedding": [0.5]} for index in range(2)]
    body = {"object": "list", "data": vectors, "model": "m", "usage": {"prompt_tokens": 4, "total_tokens": 4}}
    async with ScriptedUpstream([answer(body)]) as up:
        account = {"name": "acme", "quota_usd": 0.000009}
        gateway = await standing_with(site(channel(up.base_url), account=[account]))
        statuses = []
        for text in ("there", "there!", "ab"):
            call = {"model": "m", "input": ["hi", text]}
            async with gateway.post(call, path="/v1/embeddings") as response:
                statuses.append(response.status)
        assert statuses == [200, 403, 403]
        rows = await gateway.rows(3)
        assert [(row.reserved_nanos, row.cost_nanos) for row in rows] == [(9_000, 4_000), (0, 0), (0, 0)]


async def test_a_json_answer_says_what_it_cost(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        async with gateway.post() as response:
            assert response.headers["x-gateway-cost-usd"] == "0.000019"
            assert float(response.headers["x-gateway-overhead-ms"]) >= 0
        (row,) = await gateway.rows(1)
        assert (row.cost_nanos, row.overrun_nanos, row.account_id, row.key_id) == (COST, 0, 1, 1)
        assert row.started_ms <= row.settled_ms <= row.started_ms + row.total_ms + 2


def held_in(gateway: RunningGateway) -> set[tuple[int, int]]:
    """What key and account hold, and how many holds there are."""
    balances = gateway.app[SERVICES].billing.quota._balances
    return {(balances.find_balance(owner, 1).held_nanos, len(balances.reservations)) for owner in ("key", "account")}


@pytest.mark.parametrize("stream", [False, True])
async def test_one_hold_lasts_through_every_attempt_and_the_channel_that_answered_sets_the_price(
    standing_with: StartGateway, stream: bool
) -> None:
    """Held is the highest cost among the channels that may be tried."""
    held: list[set[tuple[int, int]]] = []
    go = asyncio.Event()

    async def look(_received: object) -> None:
        held.append(held_in(gateway))

    async def wait(_received: object) -> None:
        held.append(held_in(gateway))
        await go.wait()

    bad: list[Step] = [look, answer(b"down", 503)]
    good: list[Step] = [wait, *(chat_script("a") if stream else [answer(COMPLETION)])]
    async with ScriptedUpstream(bad) as first, ScriptedUpstream(bad) as second, ScriptedUpstream(good) as third:
        gateway = await standing_with(
            site(
                channel(first.base_url, "cheap", price_multiplier=0.5, priority=2),
                channel(second.base_url, "dear", price_multiplier=3, priority=1),
                channel(third.base_url, "fair", price_multiplier=1.5),
            )
        )
        task = asyncio.create_task(post(gateway, stream=stream))
        await until(lambda: third.received)
        go.set()
        assert await task == 200
        reserve = 3 * (PROMPT_BOUND * 1_000 + 4_096 * 2_000)
        assert held == [{(reserve, 1)}] * 3
        assert held_in(gateway) == {(0, 0)}
        (row,) = await gateway.rows(1)
        assert (row.channel, row.attempts, row.outcome) == ("fair", 3, "completed")
        assert (row.reserved_nanos, row.cost_nanos) == (reserve, COST * 3 // 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_every_channel_failed_costs_nothing_and_holds_nothing(
    standing_with: StartGateway, stream: bool
) -> None:
    async with ScriptedUpstream([answer(b"down", 503)]) as first, ScriptedUpstream([answer(b"down", 500)]) as second:
        gateway = await standing_with(
            site(channel(first.base_url, "a", price_multiplier=2), channel(second.base_url, "b"))
        )
        assert await post(gateway, stream=stream) == 502
        assert held_in(gateway) == {(0, 0)}
        (row,) = await gateway.rows(1)
        assert (row.attempts, row.cost_nanos, row.outcome) == (3, 0, "failed")  # the last one twice
        assert row.reserved_nanos > 0


async def test_a_group_pays_its_own_multiple_of_the_channels_price(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = site(channel(up.base_url, price_multiplier=1.5), group=[{"name": "gold", "price_multiplier": 0.1}])
        key = {"name": "test", "account": "acme", "secret": KEY, "group": "gold"}
        gateway = await standing_with({**config, "key": [key]})
        assert await post(gateway, stream=False) == 200
        (row,) = await gateway.rows(1)
        assert row.cost_nanos == COST * 15 // 100


@pytest.mark.parametrize(
    ("unpriced", "capped", "served"),
    [
        ("refuse_limited", False, True),
        ("refuse_limited", True, False),
        ("free", True, True),
        ("refuse", False, False),
        ("refuse", True, False),
    ],
)
async def test_a_model_without_a_price_is_free_or_is_not_served(
    standing_with: StartGateway, unpriced: str, capped: bool, served: bool
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = {**channels([up]), "price": [{**PRICE, "model": "another"}]}
        quota = {"quota_usd": 1, "quota_period": "lifetime"} if capped else {}
        config["key"] = [{"name": "test", "account": "acme", "secret": KEY, **quota}]
        gateway = await standing_with({**config, "billing": {"unpriced": unpriced}})
        async with gateway.post(HELLO) as response:
            assert response.status == (200 if served else 403)
            assert "x-gateway-cost-usd" not in response.headers
        (row,) = await gateway.rows(1)
        assert row.unpriced == served
        assert (row.cost_nanos, row.reserved_nanos) == (0, 0)
        assert row.error_code == (None if served else "model_not_priced")
        assert len(up.received) == (1 if served else 0)


async def post(gateway: RunningGateway, *, stream: bool) -> int:
    async with gateway.post(STREAM if stream else HELLO) as response:
        await response.read()
        return int(response.status)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("broken_first", [True, False])
async def test_that_one_language_has_no_words_for_it_is_no_answer_where_another_channel_failed(
    standing_with: StartGateway, broken_first: bool, stream: bool
) -> None:
    async with ScriptedUpstream([answer({}, 500)]) as bad, ScriptedUpstream([answer({}, 500)]) as mute:
        gateway = await standing_with(
            site(
                channel(bad.base_url, "bad", priority=int(broken_first)),
                channel(mute.base_url, "mute", provider="anthropic", priority=int(not broken_first)),
            )
        )
        async with gateway.post({**HELLO, "logit_bias": {"1": 1}, "stream": stream}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (502, "upstream_error")
        assert (len(bad.received), mute.received) == (1 if broken_first else 2, [])  # the last one twice


async def test_tokens_of_audio_in_a_chat_have_their_own_price(gateway_with: StartGateway) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "total_tokens": 150,
        "prompt_tokens_details": {"audio_tokens": 40, "cached_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 30, "reasoning_tokens": 0},
    }
    prices = {"input_usd_per_million": 1, "output_usd_per_million": 2}
    prices |= {"audio_input_usd_per_million": 10, "audio_output_usd_per_million": 20}
    async with ScriptedUpstream([answer({**COMPLETION, "usage": usage})]) as upstream:
        gateway = await gateway_with({**channels([upstream]), "price": [{"model": "m", **prices}]})
        body = {**HELLO, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
        async with gateway.post(body) as reply:
            assert reply.status == 200
        (row,) = await gateway.rows(1)
        assert row.cost_nanos == 60 * 1_000 + 40 * 10_000 + 20 * 2_000 + 30 * 20_000
        assert row.reserved_nanos > 4_096 * 20_000
