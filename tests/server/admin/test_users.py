"""Forgetting an end user: rows, sums and keys get one random name, the money stays the same, the audit has no name."""

from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.attribution import build_stored_user
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

SECRETS = {"acme": "sk-test-key-of-the-first-account", "other": "sk-test-key-of-another-account"}
LIMIT = {"name": "users", "of": "user", "usd": 100, "window": "day"}


def make_config(base_url: str, **sections: Any) -> dict[str, Any]:
    price = {"model": "m", "input_usd_per_million": 1_000, "output_usd_per_million": 1_000}
    return {
        "channel": [channel(base_url, models=["m"])],
        "price": [price],
        "account": [{"name": name} for name in SECRETS],
        "key": [{"name": name, "account": name, "secret": secret} for name, secret in SECRETS.items()],
        **sections,
    }


@attrs.frozen
class ForgetScenario:
    """A gateway that serves users and forgets them."""

    gateway: RunningGateway

    async def ask(self, user: str, account: str = "acme") -> None:
        headers = {"Authorization": f"Bearer {SECRETS[account]}"}
        async with self.gateway.post({**HELLO, "model": "m", "user": user}, headers=headers) as response:
            assert response.status == 200, await response.text()

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        url = f"{self.gateway.url}{PREFIX}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json=body, headers=headers) as response,
        ):
            return response.status, await response.json()

    async def list_users(self, **filters: str) -> dict[str, int]:
        query = "".join(f"&{name}={value}" for name, value in filters.items())
        _, report = await self.call("GET", f"/usage?by=user{query}")
        return {line["user"]: line["requests"] for line in report["data"]}

    async def verify(self) -> None:
        _, report = await self.call("GET", "/audit")
        assert report["ok"], report["problems"]


@pytest.mark.parametrize("limits", [[], [LIMIT]])
async def test_a_user_is_forgotten_in_rows_sums_and_keys(
    gateway_with: StartGateway, limits: list[dict[str, Any]]
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        sections = {"limit": limits} if limits else {}
        scenario = ForgetScenario(await gateway_with(make_config(up.base_url, **sections)))
        for user, account in (("ann", "acme"), ("ann", "acme"), ("bob", "acme"), ("ann", "other")):
            await scenario.ask(user, account)
        _, key = await scenario.call("POST", "/keys", {"name": "hers", "account": "acme", "user": "ann"})
        status, forgotten = await scenario.call("POST", "/users/forget", {"user": "ann", "account": "acme"})
        assert (status, forgotten["requests"], forgotten["sums"], forgotten["keys"]) == (200, 2, 1, 1), forgotten
        name = forgotten["name"]
        assert await scenario.list_users() == {name: 2, "bob": 1, "ann": 1}
        assert await scenario.list_users(account="other") == {"ann": 1}
        _, rows = await scenario.call("GET", f"/requests?end_user={name}")
        assert len(rows["data"]) == 2
        assert (await scenario.call("GET", f"/keys/{key['id']}"))[1]["user"] == name
        await scenario.verify()
        await scenario.ask("ann")
        assert (await scenario.list_users())["ann"] == 2
        await scenario.verify()
        _, trail = await scenario.call("GET", "/audit-trail")
        (entry,) = [row for row in trail["data"] if row["action"] == "user.forgotten"]
        assert entry["subject"] == name
        assert "ann" not in str(entry)
        _, again = await scenario.call("POST", "/users/forget", {"user": "ann"})
        assert (again["requests"], again["name"] != name) == (2, True)
        assert "ann" not in await scenario.list_users()
        stored = await scenario.gateway.rows(5)
        assert not any("ann" in row.end_user + row.limit_charges for row in stored)
        await scenario.verify()


async def test_a_hashed_user_is_forgotten_by_name(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        scenario = ForgetScenario(await gateway_with(make_config(up.base_url, attribution={"users": "hash"})))
        await scenario.ask("ann")
        rules = scenario.gateway.app[SERVICES].live_config.attribution
        assert await scenario.list_users() == {build_stored_user("ann", rules): 1}
        _, forgotten = await scenario.call("POST", "/users/forget", {"user": "ann"})
        assert await scenario.list_users() == {forgotten["name"]: 1}


async def test_unknown_users_are_none_and_empty_names_are_refused(gateway_with: StartGateway) -> None:
    scenario = ForgetScenario(await gateway_with(make_config("http://127.0.0.1:9/v1")))
    status, forgotten = await scenario.call("POST", "/users/forget", {"user": "nobody"})
    assert (status, forgotten["requests"], forgotten["sums"], forgotten["keys"]) == (200, 0, 0, 0)
    status, body = await scenario.call("POST", "/users/forget", {"user": " "})
    assert (status, body["error"]["param"]) == (400, "user")
