"""What an administrator sets on a key, a member of its account neither changes nor gets rid of."""

from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from gateway.auth.declared import declare
from gateway.domain.account_spec import AccountSpec, KeySpec
from gateway.domain.key_lock import LOCKABLE_FIELDS
from gateway.server.admin.prefix import PREFIX
from gateway.server.console.keys import FIELD_WORDS
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE
from tests.support.console import PAGE, add_member, open_session
from tests.support.gateway import RunningGateway, channel
from tests.support.started_gateways import StartGateway

CONFIG: dict[str, Any] = {"channel": [channel("http://127.0.0.1:9/v1")], "account": [{"name": "acme"}], "key": []}
SET: Mapping[str, Any] = {
    "status": "disabled",
    "expires_at": "2031-01-01T00:00:00Z",
    "quota_usd": 5,
    "quota_period": "daily",
    "quota_status": 403,
    "models": ["cheap-*"],
    "allow_ips": ["10.0.0.0/8"],
    "rpm": 5,
    "burst": 2,
    "tpm": 500,
    "max_concurrency": 2,
    "user": "ci",
    "tags": {"team": "web"},
}
OTHERS: Mapping[str, Any] = {
    "status": "active",
    "expires_at": "2035-01-01T00:00:00Z",
    "quota_usd": 500,
    "quota_period": "lifetime",
    "quota_status": 429,
    "models": ["*"],
    "allow_ips": ["0.0.0.0/0"],
    "rpm": 5_000,
    "burst": 3,
    "tpm": 500_000,
    "max_concurrency": 200,
    "user": "me",
    "tags": {"team": "app"},
}


class LockScenario:
    """The admin API, asked by an administrator (the token) and by a member of the account."""

    def __init__(self, gateway: RunningGateway, reference: str) -> None:
        self._url = gateway.url
        self._who = {
            "administrator": {"Authorization": f"Bearer {gateway.admin_token}"},
            "member": {**PAGE, "Cookie": f"{COOKIE}={reference}"},
        }

    async def ask(self, who: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, self._url + PREFIX + path, json=body, headers=self._who[who]) as response,
        ):
            return response.status, await response.json()

    async def make(self, who: str, **fields: Any) -> str:
        status, made = await self.ask(who, "POST", "/keys", {"name": f"by {who}", "account": "acme", **fields})
        assert status == 201, made
        return f"/keys/{made['id']}"

    async def page(self, path: str) -> str:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(f"{self._url}/console{path}", headers=self._who["member"]) as response,
        ):
            assert response.status == 200
            return await response.text()


@pytest.fixture
async def scenario(gateway_with: StartGateway) -> LockScenario:
    gateway = await gateway_with(CONFIG)
    return LockScenario(gateway, await open_session(gateway, await add_member(gateway, "ann", "member")))


def test_everything_that_restricts_a_key_can_be_locked() -> None:
    assert set(LOCKABLE_FIELDS) - {"group"} >= SET.keys() == OTHERS.keys()


@pytest.mark.parametrize("at", ["creation", "edit"])
@pytest.mark.parametrize("name", SET)
async def test_what_an_administrator_set_a_member_cannot_change(scenario: LockScenario, name: str, at: str) -> None:
    reported = {name: SET[name]} if name != "quota_period" else {"quota_usd": 5, "quota_period": "daily"}
    if at == "creation":
        path = await scenario.make("administrator", **reported)
    else:
        path = await scenario.make("administrator")
        assert (await scenario.ask("administrator", "PATCH", path, reported))[0] == 200
    _, before = await scenario.ask("member", "GET", path)
    assert name in before["locked"]
    for value in {str(OTHERS[name]): OTHERS[name], "null": None}.values():
        status, body = await scenario.ask("member", "PATCH", path, {name: value, "name": "renamed"})
        if (status, value) == (400, None):
            continue
        assert (status, body["error"]["code"]) == (403, "forbidden"), body
        assert body["error"]["param"] in before["locked"]
        assert f"An administrator has set {body['error']['param']} of this key" in body["error"]["message"]
    status, body = await scenario.ask("member", "DELETE", path)
    assert (status, body["error"]["code"]) == (403, "forbidden")
    assert (await scenario.ask("member", "GET", path))[1] == before


async def test_what_is_not_locked_stays_the_members_own(scenario: LockScenario) -> None:
    path = await scenario.make("administrator", rpm=5)
    change = {"name": "mine", "tpm": 100, "rpm": 5, "status": "disabled", "webhook_url": None}
    status, changed = await scenario.ask("member", "PATCH", path, change)
    assert (status, changed["name"], changed["tpm"], changed["status"]) == (200, "mine", 100, "disabled")
    assert changed["locked"] == ["rpm"]
    assert (await scenario.ask("member", "PATCH", path, {"tpm": None, "status": "active"}))[0] == 200
    assert (await scenario.ask("member", "POST", f"{path}/rotate", {}))[0] == 200
    assert (await scenario.ask("member", "GET", path))[1]["locked"] == ["rpm"]


async def test_a_members_own_key_is_free_until_an_administrator_sets_something(scenario: LockScenario) -> None:
    path = await scenario.make("member", rpm=7, models=["a"])
    assert (await scenario.ask("member", "PATCH", path, {"rpm": 70}))[1]["locked"] == []
    assert (await scenario.ask("administrator", "PATCH", path, {"status": "disabled"}))[1]["locked"] == ["status"]
    assert (await scenario.ask("member", "PATCH", path, {"status": "active"}))[0] == 403
    assert (await scenario.ask("member", "PATCH", path, {"models": []}))[0] == 200
    assert (await scenario.ask("administrator", "PATCH", path, {"status": "active"}))[1]["locked"] == []
    assert (await scenario.ask("member", "DELETE", path))[0] == 200


async def test_a_field_that_an_administrator_takes_back_is_free_again(scenario: LockScenario) -> None:
    path = await scenario.make("administrator", rpm=5, quota_usd=5)
    assert (await scenario.ask("administrator", "GET", path))[1]["locked"] == ["quota_usd", "quota_period", "rpm"]
    cleared = {"rpm": None, "quota_usd": None, "quota_period": "none"}
    assert (await scenario.ask("administrator", "PATCH", path, cleared))[1]["locked"] == []
    assert (await scenario.ask("member", "PATCH", path, {"rpm": 50, "quota_usd": 50}))[0] == 200


async def test_a_key_that_the_file_no_longer_declares_is_not_a_members_to_enable(gateway_with: StartGateway) -> None:
    gateway = await gateway_with(CONFIG)
    scenario = LockScenario(gateway, await open_session(gateway, await add_member(gateway, "ann", "member")))
    accounts = gateway.app[SERVICES].auth.accounts
    spec = KeySpec(name="declared", account="acme", secret="sk-declared-once-only", rpm=5)
    await declare(accounts, [AccountSpec(name="acme")], [spec])
    await declare(accounts, [AccountSpec(name="acme")], [])
    (key,) = (await scenario.ask("member", "GET", "/keys"))[1]["data"]
    assert (key["status"], key["locked"]) == ("disabled", ["rpm", "status"])
    assert (await scenario.ask("member", "PATCH", f"/keys/{key['id']}", {"status": "active"}))[0] == 403


async def test_the_consoles_page_says_what_is_locked_and_offers_nothing_that_is_refused(scenario: LockScenario) -> None:
    path = await scenario.make("administrator", rpm=5, status="disabled")
    page = await scenario.page(path)
    assert "Set by your administrator: requests per minute, status." in page
    assert "Enable key</button>" not in page
    assert "Delete key</button>" not in page
    free = await scenario.page(await scenario.make("member"))
    assert "Set by your administrator" not in free
    assert "Delete key</button>" in free


def test_every_field_that_can_be_locked_has_words_for_those_who_see_the_lock() -> None:
    assert set(FIELD_WORDS) == set(LOCKABLE_FIELDS)
