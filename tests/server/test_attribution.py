"""For whom a request was made: what its row, its filters and its refusals say."""

from typing import Any

import pytest

from gateway.domain.request_log import RequestRecord
from gateway.server.context import SERVICES
from tests.support.console_people import make_administrator
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

SESSION = "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"
CLAUDE_CODE = {
    "model": "m",
    "max_tokens": 8,
    "messages": HELLO["messages"],
    "metadata": {"user_id": f'{{"device_id":"d1","account_uuid":"","session_id":"{SESSION}"}}'},
}


async def send(
    gateway: RunningGateway,
    body: dict[str, Any],
    headers: dict[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> tuple[int, Any]:
    async with gateway.post(body, path, headers=headers or {}) as response:
        is_json = response.content_type == "application/json"
        return response.status, await response.json() if is_json else await response.text()


def read(row: RequestRecord) -> tuple[str, str, str]:
    return row.end_user, row.session, row.tags


async def test_rows_say_for_whom_requests_were_made(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        await send(gateway, HELLO)
        await send(gateway, {**HELLO, "user": "u1"}, {"x-gateway-tags": "team=web, feature=search"})
        await send(gateway, HELLO, {"X-OpenWebUI-User-Id": "w1", "X-OpenWebUI-Chat-Id": "c1"})
        await send(gateway, CLAUDE_CODE, path="/v1/messages")
        await send(gateway, {**HELLO, "stream": True, "user": "u2"})
        assert [read(row) for row in await gateway.rows(5)] == [
            ("", "", ""),
            ("u1", "", "feature=search,team=web"),
            ("w1", "c1", ""),
            ("d1", SESSION, ""),
            ("u2", "", ""),
        ]
        assert not any("x-gateway" in name.lower() for request in up.received for name in request.headers)


async def test_a_refused_request_has_its_user_and_malformed_tags_call_no_provider(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        assert (await send(gateway, {**HELLO, "model": "unknown", "user": "u1"}))[0] == 404
        status, body = await send(gateway, HELLO, {"x-gateway-tags": "web"})
        assert (status, body["error"]["param"]) == (400, "x-gateway-tags")
        unknown, malformed = await gateway.rows(2)
        assert (unknown.end_user, malformed.error_code) == ("u1", body["error"]["code"])
        assert not up.received


@pytest.mark.parametrize(("users", "stored"), [("hash", "hmac:"), ("off", "")])
async def test_users_are_stored_as_the_setting_says(standing_with: StartGateway, users: str, stored: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)], "attribution": {"users": users}})
        for user in ("u1", "u1", "u2"):
            await send(gateway, {**HELLO, "user": user}, {"session_id": "s1"})
        names = [row.end_user for row in await gateway.rows(3)]
        assert [name[: len(stored)] for name in names] == [stored] * 3
        assert (names[0] == names[1], names[1] != names[2]) == (True, users == "hash")
        assert not any("u1" in name for name in names)
        assert up.received[0].json["user"] == "u1", "the provider gets the body as it came"


async def test_the_console_leads_from_a_request_to_all_of_its_user(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        await send(gateway, {**HELLO, "user": "<u&1>"}, {"x-gateway-tags": "team=web", "session_id": "s 1"})
        await send(gateway, {**HELLO, "user": "u2"})
        first, second = await gateway.rows(2)
        ada = await make_administrator(gateway)
        _, page = await ada.open(f"/requests/{first.id}")
        session = f"/sessions/{first.account_id}%3As%201"
        for link in ("/requests?end_user=%3Cu%261%3E", session, "/requests?tag=team%3Dweb"):
            assert link in page
            _, listing = await ada.open(link)
            assert first.id in listing, link
            assert second.id not in listing, link
        assert "<u&1>" not in page
        await ada.session.close()


async def test_what_a_key_says_is_not_overridden_by_its_caller(gateway_with: StartGateway) -> None:
    key = {
        "name": "ci", "account": "acme", "secret": "sk-test-key-of-the-only-caller", "user": "ci",
        "tags": {"team": "web", "env": "test"},
    }  # fmt: skip
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = {"channel": [channel(up.base_url)], "account": [{"name": "acme"}], "key": [key]}
        gateway = await gateway_with(config)
        caller = {"Authorization": f"Bearer {key['secret']}"}
        await send(gateway, HELLO, caller)
        await send(gateway, {**HELLO, "user": "u1"}, {**caller, "x-gateway-user": "u2", "session_id": "s1"})
        await send(gateway, HELLO, {**caller, "x-gateway-tags": "team=app,feature=search"})
        names = ",".join(f"t{number}=x" for number in range(8))
        await send(gateway, HELLO, {**caller, "x-gateway-tags": names})
        assert [read(row) for row in await gateway.rows(4)] == [
            ("ci", "", "env=test,team=web"),
            ("ci", "s1", "env=test,team=web"),
            ("ci", "", "env=test,feature=search,team=web"),
            ("ci", "", "env=test,t0=x,t1=x,t2=x,t3=x,t4=x,t5=x,team=web"),
        ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"user": ""}, "user"), ({"user": "x" * 129}, "user"), ({"tags": {"a b": "c"}}, "tags"),
     ({"tags": {"a": "c,d"}}, "tags"), ({"tags": {f"t{number}": "x" for number in range(9)}}, "tags")],
)  # fmt: skip
async def test_a_users_name_and_tags_of_a_key_are_checked(
    standing_with: StartGateway, fields: dict[str, Any], param: str
) -> None:
    gateway = await standing_with({})
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    account = gateway.app[SERVICES].auth.accounts
    (name,) = (await account.name_accounts()).values()
    status, body = await send(gateway, {"name": "ci", "account": name, **fields}, headers, "/admin/v1/keys")
    assert (status, body["error"]["param"]) == (400, param), body
