"""``GET /usage/forecast``: which quotas are reached, when, and by what."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import HOUR_MS
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE
from gateway.storage.ledger import LedgerRepository
from tests.support.admin_calls import AdminApi
from tests.support.console import PAGE, add_member, open_session
from tests.support.fault_scene import PRICE, site
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.request_records import charge, read_ms
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

MONDAY_MS = read_ms("2026-11-30 00:00")
NOON_S = MONDAY_MS // 1000 + 43_200
SPENT = 19_000
"""What the one call of the tests costs, in nano-USD."""
CONFIG = {
    "account": [{"name": "acme", "quota_usd": 10, "quota_period": "monthly"}, {"name": "free"}],
    "key": [
        {"name": "app", "account": "acme", "secret": KEY, "quota_usd": 0.5, "quota_period": "daily"},
        {"name": "idle", "account": "free", "secret": f"{KEY}-2", "quota_usd": 5},
        {"name": "other", "account": "free", "secret": f"{KEY}-3"},
    ],
    "price": [PRICE],
}


def charge_hour(weeks_back: int, hour: int, nanos: int) -> RequestRecord:
    """A request of the key ``acme/app`` on a Monday."""
    at_ms = MONDAY_MS - weeks_back * 7 * 24 * HOUR_MS + hour * HOUR_MS
    return attrs.evolve(charge(f"{weeks_back}-{hour}", nanos, at_ms=at_ms, key=1), account_id=1, key_id=1)


@pytest.fixture
async def gateway(gateway_with: StartGateway) -> AsyncIterator[RunningGateway]:
    """At noon on a Monday, after one request of the key ``acme/app``."""
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url), **CONFIG), clock=lambda: NOON_S)
        async with gateway.post(HELLO) as response:
            assert response.status == 200
        yield gateway


async def list_forecasts(gateway: RunningGateway, query: str = "") -> dict[str, Any]:
    report = await AdminApi(gateway)("GET", f"/usage/forecast{query}")
    return {f"{line['owner']} {line['name']}": line for line in report["data"]}


async def test_without_history_a_quota_goes_on_at_the_pace_of_its_period(gateway: RunningGateway) -> None:
    forecasts = await list_forecasts(gateway)
    assert list(forecasts) == ["key acme/app", "account acme", "key free/idle"]
    assert forecasts["key acme/app"] == {
        "owner": "key",
        "name": "acme/app",
        "key_id": 1,
        "limit": None,
        "subject": None,
        "limit_usd": 0.5,
        "spent_usd": 0.000019,
        "starts_at": "2026-11-30T00:00:00Z",
        "ends_at": "2026-12-01T00:00:00Z",
        "reached_at": None,
        "expected_usd": 0.000038,
        "basis": "this_window",
    }
    assert forecasts["account acme"]["starts_at"] == "2026-11-01T00:00:00Z"
    idle = forecasts["key free/idle"]
    assert (idle["ends_at"], idle["reached_at"], idle["expected_usd"]) == (None, None, None)


async def test_with_history_a_monday_goes_on_as_the_mondays_before(gateway: RunningGateway) -> None:
    rows = [charge_hour(weeks_back, 15, 10**9 - 2 * SPENT) for weeks_back in (1, 2)]
    gateway.audited = False  # its balances do not know the weeks before
    await LedgerRepository(gateway.app[SERVICES].storage.database).post(rows)
    forecasts = await list_forecasts(gateway, "?key=1")
    assert list(forecasts) == ["key acme/app", "account acme"]
    key = forecasts["key acme/app"]
    assert (key["basis"], key["expected_usd"], key["reached_at"]) == ("past_weeks", 0.999981, "2026-11-30T15:30:00Z")
    # The account has half of a Monday before it: its quota is a month's, and counts days.
    account = forecasts["account acme"]
    assert (account["basis"], account["expected_usd"], account["reached_at"]) == ("past_weeks", 0.5, None)


async def test_subjects_of_limits_are_forecast(gateway: RunningGateway) -> None:
    limits: list[dict[str, Any]] = [
        {"name": "users", "of": "user", "usd": 1, "window": "day"},
        {"name": "web", "of": "tag:t", "usd": 1, "window": "week", "timezone": "Europe/Berlin"},
        {"name": "models", "of": "model:*", "usd": 2, "window": "month"},
        {"name": "app", "of": "key", "usd": 3, "window": "month"},
        {"name": "rolling", "of": "user", "usd": 1, "window": "rolling:7d"},
        {"name": "for ever", "of": "user", "usd": 1, "window": "lifetime"},
        {"name": "rates", "of": "user", "rpm": 9},
        {"name": "fair", "raises": "web", "usd": 1},
        {"name": "ended", "of": "user", "usd": 1, "until": "2026-01-01"},
    ]
    for limit in limits:
        await AdminApi(gateway)("PUT", f"/limits/{limit['name'].replace(' ', '%20')}", {**limit, "name": None})
    async with gateway.post(HELLO, headers={"x-gateway-user": "u-17", "x-gateway-tags": "t=a"}) as response:
        assert response.status == 200
    await AdminApi(gateway)("PUT", "/limits/users", {"of": "user", "usd": 0.00003, "window": "day"})
    lines = (await AdminApi(gateway)("GET", "/usage/forecast"))["data"]
    named = {line["limit"]: line for line in lines if line["limit"]}
    assert {name: (line["owner"], line["name"], line["subject"]) for name, line in named.items()} == {
        "users": ("account", "acme", "user 'u-17'"),
        "web": ("account", "acme", "tag t=a"),
        "models": ("account", "acme", "models *"),
        "app": ("key", "acme/app", None),
    }
    assert lines[0] == {
        "owner": "account",
        "name": "acme",
        "key_id": None,
        "limit": "users",
        "subject": "user 'u-17'",
        "limit_usd": 0.00003,
        "spent_usd": 0.000019,
        "starts_at": "2026-11-30T00:00:00Z",
        "ends_at": "2026-12-01T00:00:00Z",
        "reached_at": "2026-11-30T18:56:50Z",
        "expected_usd": 0.000038,
        "basis": "this_window",
    }
    assert (named["web"]["starts_at"], named["web"]["ends_at"]) == ("2026-11-29T23:00:00Z", "2026-12-06T23:00:00Z")
    assert (named["web"]["limit_usd"], named["app"]["key_id"]) == (2, 1)
    of_key = (await AdminApi(gateway)("GET", "/usage/forecast?key=1"))["data"]
    assert {line["limit"] for line in of_key} == {None, "app"}
    for account, expected in (("acme", {None, *named}), ("free", {None})):
        of_account = (await AdminApi(gateway)("GET", f"/usage/forecast?account={account}"))["data"]
        assert {line["limit"] for line in of_account} == expected


async def test_a_quota_that_is_used_up_is_reached_now(gateway: RunningGateway) -> None:
    await AdminApi(gateway)("POST", "/keys/1/credits", {"kind": "set", "amount_usd": 0}, 201)
    first, *_ = (await list_forecasts(gateway)).values()
    assert (first["name"], first["reached_at"]) == ("acme/app", "2026-11-30T12:00:00Z")


async def test_a_list_is_of_the_most_used_and_of_what_was_asked_for(gateway: RunningGateway) -> None:
    assert list(await list_forecasts(gateway, "?limit=1")) == ["key acme/app"]
    assert list(await list_forecasts(gateway, "?account=free")) == ["key free/idle"]
    assert list(await list_forecasts(gateway, "?key=3")) == []


async def test_a_viewer_sees_the_quotas_of_the_own_account(gateway: RunningGateway) -> None:
    session = await open_session(gateway, await add_member(gateway, "vera", "viewer", "free"))
    headers = {"Cookie": f"{COOKIE}={session}", **PAGE}
    for query, status in (("", 200), ("?key=1", 404)):
        url = f"{gateway.url}/admin/v1/usage/forecast{query}"
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as client,
            client.get(url, headers=headers) as response,
        ):
            assert response.status == status
            body = await response.json()
        if status == 200:
            assert [line["name"] for line in body["data"]] == ["free/idle"]
