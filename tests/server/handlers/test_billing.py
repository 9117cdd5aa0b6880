"""The convention's old billing pages, as chat apps read them: a limit in dollars, what was used in cents."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.admin_calls import ask_office
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, KEY, channel
from tests.support.key_tenants import OTHER_KEY, page, spend, tenants
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

SUBSCRIPTION, USAGE = "/v1/dashboard/billing/subscription", "/v1/dashboard/billing/usage"
COST_CENTS = 0.0019
"""Of one call: 19,000 nano-USD."""
NO_LIMIT_USD = 100_000_000


@pytest.mark.parametrize(
    ("config", "limit_usd", "until"),
    [
        (tenants(), NO_LIMIT_USD, 0),
        (tenants(expires_at="2100-01-01"), NO_LIMIT_USD, 4_102_444_800),
        (tenants(quota_usd=2.5), 2.5, 0),
        (tenants(quota_usd=2.5, quota_period="daily"), 2.5, 0),
        (tenants(quota_usd=0), 0, 0),
        (tenants(quota_usd=2.5, quota_period="none"), NO_LIMIT_USD, 0),
        (tenants({"quota_usd": 7, "quota_period": "monthly"}), 7, 0),
        (tenants({"quota_usd": 7}, quota_usd=2.5), 2.5, 0),
        (tenants({"quota_usd": 1}, quota_usd=2.5), 1, 0),
        (tenants({"quota_usd": 9_000_000_000}), 9_000_000_000, 0),
    ],
)
async def test_the_subscription_tells_the_stricter_cap_or_a_number_that_stands_for_none(
    standing_with: StartGateway, config: dict[str, Any], limit_usd: float, until: int
) -> None:
    gateway = await standing_with({"channel": [channel("http://127.0.0.1:9/v1")], **config})
    assert await page(gateway, SUBSCRIPTION) == {
        "object": "billing_subscription",
        "has_payment_method": True,
        "soft_limit_usd": limit_usd,
        "hard_limit_usd": limit_usd,
        "system_hard_limit_usd": limit_usd,
        "access_until": until,
    }


async def test_what_was_credited_is_part_of_the_limit(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url), **tenants(quota_usd=2)))
        await ask_office(gateway, "POST", "/keys/1/credits", {"amount_usd": 3})
        await spend(gateway, KEY)
        assert (await page(gateway, SUBSCRIPTION))["hard_limit_usd"] == 5
        await ask_office(gateway, "POST", "/keys/1/credits", {"amount_usd": 1, "kind": "set"})
        limit_usd = (await page(gateway, SUBSCRIPTION))["hard_limit_usd"]
        used_cents = (await page(gateway, USAGE))["total_usage"]
        assert limit_usd - used_cents / 100 == pytest.approx(1, abs=1e-9)


async def test_usage_is_the_cost_of_each_of_the_last_thirty_days_in_cents(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants()))
        await spend(gateway, KEY, OTHER_KEY, KEY)
        shown = await page(gateway, USAGE)
        assert list(shown) == ["object", "total_usage", "daily_costs"]
        assert (shown["object"], shown["total_usage"]) == ("list", 2 * COST_CENTS)
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        days = [today - timedelta(days=back) for back in reversed(range(30))]
        assert [cost["timestamp"] for cost in shown["daily_costs"]] == [int(day.timestamp()) for day in days]
        costs = [cost["line_items"] for cost in shown["daily_costs"]]
        assert costs[:-1] == [[{"name": "Total", "cost": 0}]] * 29
        assert costs[-1] == [{"name": "Total", "cost": 2 * COST_CENTS}]


@pytest.mark.parametrize("period", ["lifetime", "daily", "monthly"])
async def test_with_a_cap_the_total_is_what_was_spent_of_it_whatever_days_are_asked_for(
    standing_with: StartGateway, period: str
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(site(channel(up.base_url), **tenants(quota_usd=1, quota_period=period)))
        await spend(gateway, KEY, KEY, OTHER_KEY)
        shown = await page(gateway, USAGE, start_date="2020-02-28", end_date="2020-03-02")
        assert shown["total_usage"] == 2 * COST_CENTS
        assert [cost["timestamp"] for cost in shown["daily_costs"]] == [
            1_582_848_000 + 86_400 * day for day in range(3)
        ]
        assert sum(cost["line_items"][0]["cost"] for cost in shown["daily_costs"]) == 0
        _, key = await ask_office(gateway, "GET", "/keys/1")
        limit_usd = (await page(gateway, SUBSCRIPTION))["hard_limit_usd"]
        assert limit_usd - shown["total_usage"] / 100 == pytest.approx(key["left_usd"], abs=1e-12)


async def test_where_the_accounts_cap_is_the_stricter_its_spending_is_told(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = tenants({"quota_usd": 1.00001}, quota_usd=1)
        gateway = await standing_with(site(channel(up.base_url), **config))
        await spend(gateway, KEY)
        shown = await page(gateway, USAGE)
        assert (shown["total_usage"], shown["daily_costs"][-1]["line_items"][0]["cost"]) == (COST_CENTS, COST_CENTS)
        async with gateway.post(HELLO, headers={"Authorization": f"Bearer {OTHER_KEY}"}) as response:
            assert response.status == 200
        await gateway.rows(2)
        shown = await page(gateway, USAGE)
        assert (await page(gateway, SUBSCRIPTION))["hard_limit_usd"] == 1.00001
        assert shown["total_usage"] == shown["daily_costs"][-1]["line_items"][0]["cost"] == 2 * COST_CENTS


async def test_the_end_of_the_days_is_exclusive(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), **tenants()))
        await spend(gateway, KEY)
        today = datetime.now(UTC).date()
        for start, end, days, total in (
            (today, today + timedelta(days=1), 1, COST_CENTS),
            (today - timedelta(days=1), today, 1, 0),
            (today - timedelta(days=365), today + timedelta(days=1), 366, COST_CENTS),
            (today - timedelta(days=2), None, 3, COST_CENTS),
            (None, today, 30, 0),
        ):
            query = {"start_date": start and start.isoformat(), "end_date": end and end.isoformat()}
            shown = await page(gateway, USAGE, **{name: text for name, text in query.items() if text})
            assert (len(shown["daily_costs"]), shown["total_usage"]) == (days, total)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start_date": "yesterday"}, "start_date"),
        ({"start_date": ""}, "start_date"),
        ({"start_date": "2026-02-30"}, "start_date"),
        ({"start_date": "1700000000"}, "start_date"),
        ({"start_date": "2026-01-01T00:00:00"}, "start_date"),
        ({"end_date": "2026-1-1"}, "end_date"),
        ({"end_date": "9" * 5_000}, "end_date"),
        ({"start_date": "2026-01-02", "end_date": "2026-01-02"}, "end_date"),
        ({"start_date": "2026-01-02", "end_date": "2026-01-01"}, "end_date"),
        ({"start_date": "2024-01-01", "end_date": "2025-01-02"}, "end_date"),
        ({"start_date": "2999-01-01"}, "end_date"),
        ({"start_date": "0001-01-01"}, "start_date"),
        ({"start_date": "9999-12-31"}, "start_date"),
        ({"end_date": "0001-01-02"}, "end_date"),
        ({"end_date": "9999-12-31"}, "end_date"),
        ({"start_date": "9998-12-31", "end_date": "9999-01-01"}, "end_date"),
        ({"start_date": "1970-01-01", "end_date": "1970-01-02"}, None),
        ({"end_date": "1970-01-02"}, None),
        ({"start_date": "2999-12-30", "end_date": "2999-12-31"}, None),
    ],
    ids=str,
)
async def test_dates_that_are_none_or_too_far_apart_are_bad_requests_and_no_other_date_is(
    standing_with: StartGateway, query: dict[str, str], param: str | None
) -> None:
    gateway = await standing_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    async with gateway.client.get(gateway.url + USAGE, params=query) as response:
        value = await response.json()
        if param is None:
            assert (response.status, value["total_usage"], len(value["daily_costs"])) == (200, 0, 1)
        else:
            assert (response.status, value["error"]["code"]) == (400, "invalid_request")
            assert value["error"]["param"] == param
    await gateway.rows(0)
