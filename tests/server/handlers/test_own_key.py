"""What a key can ask about itself: what is left, until when, and what it has used."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.domain.attribution import build_stored_user
from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.fault_scene import PRICE, site
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.key_tenants import OTHER_KEY, page, spend, tenants
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

OWN_KEY, OWN_USAGE = "/v1/key", "/v1/key/usage"
COST_USD = 0.000019
NOWHERE = channel("http://127.0.0.1:9/v1")


def about(value: float) -> Any:
    return pytest.approx(value, abs=1e-12)


async def find_limit(gateway: RunningGateway) -> dict[str, Any]:
    (limit,) = (await read_filled(gateway))["limits"]
    return dict(limit)


async def read_filled(gateway: RunningGateway) -> dict[str, Any]:
    """Return what the key can see once its limits have counted what was spent before they were there."""
    async with asyncio.timeout(30):
        while True:
            about_key = await page(gateway, OWN_KEY)
            if not any(limit.get("filling") for limit in about_key["limits"]):
                return about_key
            await asyncio.sleep(0.02)


async def test_a_key_without_limits_has_its_name_and_its_models(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **tenants()})
    about_key = await page(gateway, OWN_KEY)
    created_at = datetime.fromisoformat(about_key.pop("created_at"))
    assert abs(created_at - datetime.now(UTC)) < timedelta(days=1)
    assert about_key == {
        "object": "key",
        "name": "first",
        "key": f"sk-…{KEY[-4:]}",
        "status": "active",
        "expires_at": None,
        "models": ["m"],
        "limits": [],
        "rate_limits": [],
        "account_limits": "none",
        "keep_bodies": "none",
    }


async def test_the_models_are_those_of_the_list_that_the_key_gets(standing_with: StartGateway) -> None:
    models = {"models": ["m", "n", "secret-1"]}
    gateway = await standing_with({"channel": [{**NOWHERE, **models}], **tenants(models=["m", "sec*"])})
    about_key = await page(gateway, OWN_KEY)
    listed = await page(gateway, "/v1/models")
    assert about_key["models"] == [model["id"] for model in listed["data"]] == ["m", "secret-1"]


@pytest.mark.parametrize(
    ("period", "window", "days"), [("daily", "day", 1), ("monthly", "month", 31), ("lifetime", "lifetime", None)]
)
async def test_a_quota_is_told_with_what_was_spent_of_it_and_when_it_resets(
    standing_with: StartGateway, period: str, window: str, days: int | None
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url), **tenants(quota_usd=1, quota_period=period)))
        await spend(gateway, KEY, KEY, OTHER_KEY)
        limit = await find_limit(gateway)
        resets_at = limit.pop("resets_at")
        assert limit == {
            "name": "quota",
            "of": "key",
            "window": window,
            "limit_usd": 1,
            "credit_usd": 0,
            "spent_usd": about(2 * COST_USD),
            "reserved_usd": 0,
            "left_usd": about(1 - 2 * COST_USD),
        }
        if days is None:
            assert resets_at is None
        else:
            assert timedelta() < datetime.fromisoformat(resets_at) - datetime.now(UTC) <= timedelta(days=days)


async def test_the_figures_add_up_while_a_request_runs_and_after_a_credit(standing_with: StartGateway) -> None:
    has_arrived, may_answer = asyncio.Event(), asyncio.Event()

    async def wait(_: Received) -> None:
        has_arrived.set()
        await may_answer.wait()

    async with ScriptedUpstream([wait, answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url), **tenants(quota_usd=2)))
        await ask_office(gateway, "POST", "/keys/1/credits", {"amount_usd": 3})
        call = asyncio.create_task(spend(gateway, KEY))
        await has_arrived.wait()
        limit = await find_limit(gateway)
        may_answer.set()
        await call
    assert limit["reserved_usd"] > 0
    assert (limit["limit_usd"], limit["credit_usd"], limit["spent_usd"]) == (2, 3, 0)
    assert limit["left_usd"] == about(5 - limit["reserved_usd"])


async def test_rate_limits_are_told_with_what_remains(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = tenants({"rpm": 7}, rpm=5, tpm=6_000, max_concurrency=3)
        gateway = await standing_with(site(channel(up.base_url), **config))
        await spend(gateway, KEY, KEY)
        about_key = await page(gateway, OWN_KEY)
        rates = {rate["kind"]: rate for rate in about_key["rate_limits"]}
        assert [rate["of"] for rate in about_key["rate_limits"]] == ["key"] * 3
        assert (rates["rpm"]["limit"], rates["rpm"]["remaining"]) == (5, 3)
        assert 0 < rates["rpm"]["reset_s"] <= 24
        assert rates["tpm"]["limit"] == 6_000
        assert 0 < rates["tpm"]["remaining"] < 6_000
        assert rates["max_concurrency"] == {"of": "key", "kind": "max_concurrency", "limit": 3, "remaining": 3}
        again = {rate["kind"]: rate for rate in (await page(gateway, OWN_KEY))["rate_limits"]}
        assert again["rpm"]["remaining"] == 3, "asking takes nothing"


@pytest.mark.parametrize("limits", [{"quota_usd": 7}, {"rpm": 7}])
async def test_of_its_account_a_key_learns_only_that_limits_apply(
    standing_with: StartGateway, limits: dict[str, Any]
) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **tenants(limits)})
    about_key = await page(gateway, OWN_KEY)
    assert (about_key["account_limits"], about_key["limits"], about_key["rate_limits"]) == ("hidden", [], [])
    assert "acme" not in str(about_key)


async def test_a_disabled_or_expired_key_is_told_so_and_no_figure(standing_with: StartGateway) -> None:
    config = tenants(expires_at="2001-01-01")
    config["key"][1]["status"] = "disabled"
    gateway = await standing_with({"channel": [NOWHERE], **config})
    for secret, code in ((KEY, "key_expired"), (OTHER_KEY, "key_disabled"), ("sk-nobody-has-this-key", None)):
        for path in (OWN_KEY, OWN_USAGE):
            headers = {"Authorization": f"Bearer {secret}"}
            async with gateway.client.get(gateway.url + path, headers=headers) as response:
                value = await response.json()
            assert response.status in {401, 403}
            assert list(value) == ["error"]
            assert code is None or value["error"]["code"] == code


async def test_usage_by_day_is_the_keys_own_and_has_every_day(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants()))
        await spend(gateway, KEY, OTHER_KEY, KEY)
        shown = await page(gateway, OWN_USAGE)
        today = datetime.now(UTC).date()
        days = [(today - timedelta(days=back)).isoformat() for back in reversed(range(30))]
        assert (shown["object"], shown["by"], shown["from"], shown["to"]) == ("list", "day", days[0], days[-1])
        assert [line["day"] for line in shown["data"]] == days
        assert shown["data"][-1] == {
            "day": days[-1],
            "requests": 2,
            "prompt_tokens": shown["total"]["prompt_tokens"],
            "completion_tokens": shown["total"]["completion_tokens"],
            "cached_tokens": 0,
            "cost_usd": about(2 * COST_USD),
        }
        assert sum(line["requests"] for line in shown["data"][:-1]) == 0
        assert (shown["total"]["requests"], shown["total"]["cost_usd"]) == (2, about(2 * COST_USD))
        empty = await page(gateway, OWN_USAGE, to=days[-2])
        assert (len(empty["data"]), empty["total"]["requests"]) == (30, 0)


async def test_usage_by_model_has_the_dearest_first(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = site({**channel(up.base_url), "models": ["m", "n"]}, **tenants())
        config["price"] = [PRICE, {**PRICE, "model": "n", "input_usd_per_million": 0.1, "output_usd_per_million": 0.1}]
        gateway = await standing_with(config)
        await spend(gateway, KEY, OTHER_KEY)
        for _ in range(2):
            async with gateway.post({**HELLO, "model": "n"}) as response:
                assert response.status == 200
        await gateway.rows(4)
        shown = await page(gateway, OWN_USAGE, by="model")
        assert [line["model"] for line in shown["data"]] == ["m", "n"]
        assert [line["requests"] for line in shown["data"]] == [1, 2]


@pytest.mark.parametrize("users", ["text", "hash"])
async def test_usage_by_user_is_of_the_keys_own_users(standing_with: StartGateway, users: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        limits = [{"name": "each user", "of": "user", "rpm": 2}]
        sections = {"attribution": {"users": users}, "limit": limits}
        gateway = await standing_with(site(channel(up.base_url), **tenants(), **sections))
        for user, key, status in (
            ("ann", KEY, 200),
            ("ann", KEY, 200),
            ("ann", KEY, 429),
            ("bob", KEY, 200),
            ("", KEY, 200),
            ("cyd", OTHER_KEY, 200),
        ):
            headers = {"Authorization": f"Bearer {key}", "x-gateway-user": user}
            async with gateway.post(headers=headers) as response:
                assert response.status == status
        shown = await page(gateway, OWN_USAGE, by="user")
        rules = gateway.app[SERVICES].live_config.attribution
        ann, bob = (build_stored_user(user, rules) for user in ("ann", "bob"))
        assert [(line["user"], line["requests"]) for line in shown["data"]] == [(ann, 3), (bob, 1)]
        assert [line["cost_usd"] for line in shown["data"]] == [about(2 * COST_USD), about(COST_USD)]
        assert (shown["unattributed"]["requests"], shown["unattributed"]["cost_usd"]) == (1, about(COST_USD))
        assert (shown["total"]["requests"], shown["total"]["cost_usd"]) == (5, about(4 * COST_USD))
        assert (shown["unlisted"]["requests"], shown["other"]["requests"]) == (0, 0)
        for name in {"ann", ann}:
            by_day = await page(gateway, OWN_USAGE, user=name)
            assert (len(by_day["data"]), by_day["data"][-1]["requests"], by_day["total"]["requests"]) == (30, 3, 3)
            alone = await page(gateway, OWN_USAGE, by="user", user=name)
            assert [line["user"] for line in alone["data"]] == [ann]
            assert alone["total"] == by_day["total"]
        assert (await page(gateway, OWN_USAGE, user="cyd"))["total"]["requests"] == 0, "of another key"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"by": "model", "user": "ann"}, "user"),
        ({"by": "account"}, "by"),
        ({"by": "key"}, "by"),
        ({"by": ""}, "by"),
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-02-30"}, "to"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "from"),
        ({"from": "2999-01-01"}, "from"),
        ({"from": "2024-01-01", "to": "2025-01-01"}, "from"),
        ({"from": "2024-01-01", "to": "2024-12-31"}, None),
        ({"from": "1970-01-01", "to": "1970-01-01"}, None),
        ({"to": "1970-01-02"}, None),
        ({"from": "9998-12-31", "to": "9998-12-31"}, None),
    ],
    ids=str,
)
async def test_a_wrong_axis_or_range_is_a_bad_request(
    standing_with: StartGateway, query: dict[str, str], param: str | None
) -> None:
    gateway = await standing_with({"channel": [NOWHERE]})
    async with gateway.client.get(gateway.url + OWN_USAGE, params=query) as response:
        value = await response.json()
        if param is None:
            assert (response.status, value["total"]["requests"]) == (200, 0)
        else:
            assert (response.status, value["error"]["code"], value["error"]["param"]) == (400, "invalid_request", param)


async def test_a_limit_of_keys_is_one_more_entry_with_its_raises(standing_with: StartGateway) -> None:
    limits = [
        {"name": "each key", "of": "key", "usd": 2, "window": "week"},
        {"name": "fair", "raises": "each key", "usd": 3, "until": "2100-01-01"},
        {"name": "other", "of": "key", "usd": 1, "keys": ["second"]},
        {"name": "past", "of": "key", "usd": 1, "until": "2001-01-01"},
    ]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url), **tenants(quota_usd=5), limit=limits))
        await spend(gateway, KEY, KEY, OTHER_KEY)
        about_key = await read_filled(gateway)
        quota, limit = about_key["limits"]
        assert quota["name"] == "quota"
        assert limit.pop("resets_at") is not None
        assert limit == {
            "name": "each key",
            "of": "key",
            "window": "week",
            "limit_usd": 5,
            "credit_usd": 0,
            "spent_usd": about(2 * COST_USD),
            "reserved_usd": 0,
            "left_usd": about(5 - 2 * COST_USD),
        }
        assert about_key["account_limits"] == "none"


async def test_a_key_that_may_see_its_account_sees_the_limits_that_it_shares(standing_with: StartGateway) -> None:
    limits = [
        {"name": "each user", "of": "user", "usd": 1},
        {"name": "all", "of": "account", "usd": 2, "window": "week"},
        {"name": "dear", "of": "model:m*", "usd": 3, "window": "day"},
    ]
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = tenants({"quota_usd": 7, "rpm": 9}, quota_usd=5, rpm=8, show_account=True)
        gateway = await standing_with(site(channel(up.base_url), **config, limit=limits))
        await spend(gateway, KEY, OTHER_KEY)
        about_key = await read_filled(gateway)
        shown = {(limit["of"], limit["name"]): limit["left_usd"] for limit in about_key["limits"]}
        assert shown == {
            ("key", "quota"): about(5 - COST_USD),
            ("account", "quota"): about(7 - 2 * COST_USD),
            ("account", "all"): about(2 - 2 * COST_USD),
            ("model:m*", "dear"): about(3 - 2 * COST_USD),
        }
        rates = [(rate["of"], rate["kind"], rate["limit"], rate["remaining"]) for rate in about_key["rate_limits"]]
        assert rates == [("key", "rpm", 8, 7), ("account", "rpm", 9, 7)]
        assert about_key["account_limits"] == "shown"
        headers = {"Authorization": f"Bearer {OTHER_KEY}"}
        async with gateway.client.get(gateway.url + OWN_KEY, headers=headers) as response:
            other = await response.json()
        assert (other["limits"], other["rate_limits"], other["account_limits"]) == ([], [], "hidden")


async def test_whether_a_key_sees_its_account_is_edited(standing_with: StartGateway) -> None:
    gateway = await standing_with({"channel": [NOWHERE], **tenants({"quota_usd": 7})})
    _, made = await ask_office(gateway, "POST", "/keys", {"account": "acme", "name": "new"})
    assert made["show_account"] is False
    headers = {"Authorization": f"Bearer {made['secret']}"}
    for shows, limits in ((True, 1), (False, 0)):
        _, changed = await ask_office(gateway, "PATCH", f"/keys/{made['id']}", {"show_account": shows})
        assert changed["show_account"] is shows
        async with gateway.client.get(gateway.url + OWN_KEY, headers=headers) as response:
            assert len((await response.json())["limits"]) == limits


async def test_a_limit_that_other_keys_share_is_hidden(standing_with: StartGateway) -> None:
    limits = [{"name": "each user", "of": "user", "usd": 1}]
    gateway = await standing_with({"channel": [NOWHERE], **tenants(), "limit": limits})
    about_key = await page(gateway, OWN_KEY)
    assert (about_key["limits"], about_key["account_limits"]) == ([], "hidden")
