"""``explain``: for every channel whether it would serve, and if not the reason that routing has."""

import asyncio
from typing import Any

import pytest

from tests.support.admin_calls import ask_office
from tests.support.capped_calls import stream_until
from tests.support.fault_scene import PRICE, until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, Step, answer
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
GOLD_KEY = "sk-test-key-of-the-gold-group"
KEYS: list[dict[str, Any]] = [
    {"name": "test", "account": "acme", "secret": KEY},
    {"name": "gold", "account": "acme", "secret": GOLD_KEY, "group": "gold", "rpm": 600},
]


async def explain(gateway: RunningGateway, **query: Any) -> dict[str, Any]:
    words = "&".join(f"{name}={value}" for name, value in {"model": "m", **query}.items())
    status, found = await ask_office(gateway, "GET", f"/explain?{words}")
    assert status == 200
    return dict(found)


async def verdicts(gateway: RunningGateway, **query: Any) -> dict[str, tuple[int | None, float, str | None]]:
    """Rank, chance and reason by channel."""
    found = await explain(gateway, **query)
    return {line["channel"]: (line["rank"], line["chance"], line["reason"]) for line in found["channels"]}


async def say(gateway: RunningGateway) -> tuple[int, str | None]:
    """Status and ``Retry-After`` of a small call."""
    async with gateway.post() as response:
        await response.read()
        return response.status, response.headers.get("Retry-After")


async def test_those_that_would_serve_are_ranked_with_their_chance(standing_with: StartGateway) -> None:
    """By weight among the channels of the highest priority; the others wait their turn."""
    config = [
        channel(NOWHERE, "low", priority=-1),
        channel(NOWHERE, "small", weight=1),
        channel(NOWHERE, "big", weight=3),
    ]
    gateway = await standing_with({"channel": config})
    assert await verdicts(gateway) == {"big": (1, 0.75, None), "small": (2, 0.25, None), "low": (3, 0.0, None)}
    assert (await explain(gateway))["served"] is True
    await gateway.rows(0)


async def test_a_channel_that_is_no_option_says_why(standing_with: StartGateway) -> None:
    config = [
        channel(NOWHERE, "off", status="disabled"),
        channel(NOWHERE, "gilded", groups=["gold", "vip"]),
        channel(NOWHERE, "narrow", models=["x"]),
        channel(NOWHERE, "theirs", provider="anthropic"),
    ]
    gateway = await standing_with({"channel": config, "key": KEYS})
    refused = {
        "off": (None, 0.0, "disabled"),
        "gilded": (None, 0.0, "allowed groups: gold, vip"),
        "narrow": (None, 0.0, "does not offer the model"),
        "theirs": (None, 0.0, "does not support embeddings"),
    }
    assert await verdicts(gateway, operation="embeddings") == refused
    assert (await explain(gateway, operation="embeddings"))["served"] is False
    # For a key of the group, and in a language that the provider can be spoken to.
    assert await verdicts(gateway, operation="embeddings", key=2) == {**refused, "gilded": (1, 1.0, None)}
    assert (await verdicts(gateway))["theirs"] == (1, 1.0, None)
    nowhere = await explain(gateway, model="nothing")
    assert {line["reason"] for line in nowhere["channels"]} == {
        "disabled",
        "allowed groups: gold, vip",
        "does not offer the model",
    }


async def test_the_language_and_the_price_of_each_channel_are_told(standing_with: StartGateway) -> None:
    config = [
        channel(NOWHERE, "plain", model_map={"m": "their-m"}, priority=1),
        channel(NOWHERE, "theirs", provider="anthropic", price_multiplier=1.5),
    ]
    gateway = await standing_with({"channel": config, "price": [{**PRICE, "cached_input_usd_per_million": 0.5}]})
    plain, theirs = (await explain(gateway))["channels"]
    assert (plain["upstream_model"], plain["api_format"], plain["translated"]) == ("their-m", "openai_chat", False)
    assert (theirs["upstream_model"], theirs["api_format"], theirs["translated"]) == ("m", "anthropic_messages", True)
    assert (plain["price_multiplier"], theirs["price_multiplier"]) == (1, 1.5)
    assert plain["price"] == {
        "model": "m",
        "input_usd_per_million": 1,
        "cached_input_usd_per_million": 0.5,
        "cache_write_usd_per_million": None,
        "cache_write_long_usd_per_million": None,
        "output_usd_per_million": 2,
        "audio_input_usd_per_million": None,
        "cached_audio_input_usd_per_million": None,
        "audio_output_usd_per_million": None,
        "usd_per_image": 0,
        "usd_per_second": 0,
        "usd_per_million_characters": 0,
        "tiers": 0,
    }
    reported = (await explain(gateway, operation="messages"))["channels"]
    assert [line["translated"] for line in reported] == [True, False]


async def test_a_model_without_a_price_is_not_served_where_it_must_have_one(standing_with: StartGateway) -> None:
    config = [channel(NOWHERE, "priced", provider="openai"), channel(NOWHERE, "free")]
    pricing = {"price": [{**PRICE, "provider": "openai"}], "billing": {"unpriced": "refuse"}}
    gateway = await standing_with({"channel": config, **pricing})
    assert await verdicts(gateway) == {
        "priced": (1, 1.0, None),
        "free": (None, 0.0, 'has no price for this request (billing.unpriced is "refuse")'),
    }


async def test_a_channel_whose_models_are_not_known_yet_says_so_and_stands_behind_those_that_are(
    standing_with: StartGateway,
) -> None:
    config = [channel(NOWHERE, "unsure", models=[], sync=True, priority=9), channel(NOWHERE, "sure")]
    gateway = await standing_with({"channel": config})
    assert await verdicts(gateway) == {
        "sure": (1, 1.0, None),
        "unsure": (2, 0.0, "untested: its list of models is not known yet"),
    }


DOWN = answer(b"down", 503, retry_after="30")
DENIED = answer({"error": {"message": "no"}}, 401)
LIMITED = answer({"error": {"message": "slow down"}}, 429, retry_after="20")
COOLING = "cooling down after failures (Provider returned 503 Service Unavailable for /chat/completions)"
KEYLESS = "the keys of the channel are rate-limited for this model"


@pytest.mark.parametrize(
    ("more", "script", "reason", "waits"),
    [
        ({}, LIMITED, KEYLESS, (8, 20)),
        ({"rpm": 2}, answer(COMPLETION), "at its maximum number of requests per minute", (10, 31)),
    ],
    ids=["keys limited", "rate"],
)
async def test_a_channel_that_cannot_take_a_call_now_says_why_and_for_how_long(
    standing_with: StartGateway, more: dict[str, Any], script: bytes, reason: str, waits: tuple[float, float]
) -> None:
    """And a call that is made all the same is told to wait as long."""
    async with ScriptedUpstream([script]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, **more)], "routing": {}})
        await say(gateway)
        found = await explain(gateway)
        (line,) = found["channels"]
        assert (found["served"], line["rank"], line["chance"], line["reason"]) == (False, None, 0.0, reason)
        assert waits[0] <= line["wait_s"] <= waits[1]
        status, retry_after = await say(gateway)
        assert status == 429
        assert -8 <= int(retry_after or 0) - line["wait_s"] <= 1
        assert len(up.received) == 1
        _, shown = await ask_office(gateway, "GET", "/channels/up")
        assert (shown["state"], line["state"]) == ("closed", "closed")


@pytest.mark.parametrize(
    ("script", "reason", "waits", "state"),
    [(DOWN, COOLING, (10, 30), "open"), (DENIED, "failing: the provider refused its keys", (0.3, 1.2), "closed")],
    ids=["cooling_down", "keys refused"],
)
async def test_a_channel_that_alone_serves_a_model_is_tried_after_failures_and_says_so(
    standing_with: StartGateway, script: bytes, reason: str, waits: tuple[float, float], state: str
) -> None:
    async with ScriptedUpstream([script]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)], "routing": {}})
        await say(gateway)
        found = await explain(gateway)
        (line,) = found["channels"]
        all_the_same = "a few requests are sent all the same, because no other channel serves the model"
        assert (found["served"], line["rank"], line["chance"]) == (True, None, 0.0)
        assert line["reason"] == f"{reason}; {all_the_same}"
        assert waits[0] <= line["wait_s"] <= waits[1]
        assert (await say(gateway))[0] == 502
        assert len(up.received) == 2
        _, shown = await ask_office(gateway, "GET", "/channels/up")
        assert (shown["state"], line["state"]) == (state, state)
        circuits = shown["circuits"] or shown["keys"][0]["circuits"]
        assert [(one["model"], one["account"], one["state"]) for one in circuits] == [("m", 1, "open")]


@pytest.mark.parametrize(
    ("script", "state", "limited"), [(DENIED, "open", []), (LIMITED, "closed", ["m"])], ids=["refused", "limited"]
)
async def test_a_key_that_may_not_be_used_is_told_apart_from_one_that_may(
    standing_with: StartGateway, script: bytes, state: str, limited: list[str]
) -> None:
    keys = ["provider-key-number-0001", "provider-key-number-0002"]
    async with ScriptedUpstream([script], [answer(COMPLETION)]) as up:
        one = channel(up.base_url, api_keys=keys)
        del one["api_key"]
        gateway = await standing_with({"channel": [one], "routing": {}})
        assert (await say(gateway))[0] == 200  # the second key took it
        assert await verdicts(gateway) == {"up": (1, 1.0, None)}
        _, shown = await ask_office(gateway, "GET", "/channels/up")
        first, second = shown["keys"]
        assert (first["last4"], first["state"], first["limited_models"]) == ("0001", state, limited)
        assert (second["last4"], second["state"], second["limited_models"]) == ("0002", "closed", [])
        assert (first["cooldown_s"] > 0, second["cooldown_s"]) == (state == "open", 0)
        assert shown["state"] == "closed"


async def test_a_channel_with_as_many_calls_as_it_may_have_is_full(standing_with: StartGateway) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        gateway = await standing_with({"channel": [channel(up.base_url, max_concurrency=1)]})
        async with gateway.post({**HELLO, "stream": True}) as response:
            assert await verdicts(gateway) == {"up": (None, 0.0, "at its maximum number of concurrent requests")}
            assert await say(gateway) == (503, "1")
            go.set()
            await response.read()
        await until(lambda: not gateway.running)
        assert await verdicts(gateway) == {"up": (1, 1.0, None)}


async def test_a_channel_that_one_call_is_trying_again_says_so(standing_with: StartGateway) -> None:
    go = asyncio.Event()

    async def wait(_received: object) -> None:
        await go.wait()

    scripts: list[list[Step]] = [[answer(b"down", 500)], [answer(b"down", 500)], [wait, answer(COMPLETION)]]
    async with ScriptedUpstream(*scripts) as up:
        routing = {"trip_failures": 1, "cooldown_s": 0.01, "max_cooldown_s": 0.01}
        gateway = await standing_with({"channel": [channel(up.base_url)], "routing": routing})
        await say(gateway)
        await asyncio.sleep(0.02)
        trial = asyncio.create_task(say(gateway))
        await until(lambda: len(up.received) == 3)
        ((rank, _, reason),) = (await verdicts(gateway)).values()
        assert rank is None
        assert (reason or "").startswith("recovering: one request is testing it")
        go.set()
        assert (await trial)[0] == 200


@pytest.mark.parametrize(
    ("restriction", "code"), [({"models": ["x*"]}, "model_not_allowed"), ({"group": "gold"}, "group_not_allowed")]
)
async def test_what_a_key_may_not_is_told_with_the_channels_that_would_have_served(
    standing_with: StartGateway, restriction: dict[str, Any], code: str
) -> None:
    key = {"name": "test", "account": "acme", "secret": KEY, **restriction}
    account = {"name": "acme", "groups": ["silver"]}
    gateway = await standing_with({"channel": [channel(NOWHERE)], "key": [key], "account": [account]})
    found = await explain(gateway, key=1)
    assert (found["served"], found["refused"]["code"]) == (False, code)
    assert found["key"] == {"id": 1, "name": "test", "account": "acme"}
    assert [line["rank"] for line in found["channels"]] == [1]
    assert (await explain(gateway))["refused"] is None


async def test_what_a_key_and_its_account_have_left_is_told(standing_with: StartGateway) -> None:
    key: dict[str, Any] = {**KEYS[0], "rpm": 9}
    account = {"name": "acme", "quota_usd": 2.5, "quota_period": "lifetime", "tpm": 1_000}
    gateway = await standing_with({"channel": [channel(NOWHERE)], "key": [key], "account": [account]})
    room = (await explain(gateway, key=1))["room"]
    assert (room["key"]["rpm"], room["key"]["left_usd"]) == (9, None)
    assert (room["account"]["tpm"], room["account"]["left_usd"], room["account"]["held_usd"]) == (1_000, 2.5, 0)
    assert (await explain(gateway))["room"] is None


async def test_nothing_is_changed_by_looking(standing_with: StartGateway) -> None:
    """No turn is taken, no money held, and no channel tried: not even one whose cooldown is over."""
    scripts = [[answer(b"down", 501)], [answer(COMPLETION)]]
    async with ScriptedUpstream(*scripts) as up:
        routing = {"trip_failures": 1, "cooldown_s": 0.01, "max_cooldown_s": 0.01}
        gateway = await standing_with({"channel": [channel(up.base_url, rpm=20)], "routing": routing})
        await say(gateway)
        await asyncio.sleep(0.02)
        for _ in range(50):
            await explain(gateway, key=1)
        assert len(up.received) == 1
        assert (await say(gateway))[0] == 200
        await gateway.rows(2)
