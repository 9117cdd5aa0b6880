"""The admin API: every operation once, its refusals, and that a change is in force when it returns."""

import re
from functools import partial
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from gateway.server.admin.prefix import PREFIX
from gateway.server.admin.routes import list_admin_operations
from tests.support.admin_calls import Ask, ask_office, expire_key
from tests.support.gateway import CHAT, KEY, RunningGateway, channel, channels
from tests.support.raw_client import connect, hello, post, read_answer
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
PART = re.compile(r"\{[^}]*\}")
OPERATIONS = tuple(
    (door.method, PART.sub("1", door.path)) for door in list_admin_operations() if door.access != "anyone"
)
"""Every operation but those by which people come in."""


@pytest.fixture
async def gateway(gateway_with: StartGateway) -> RunningGateway:
    return await gateway_with({"channel": [channel(NOWHERE, models=["m", "other"])]})


@pytest.fixture
def ask(gateway: RunningGateway) -> Ask:
    """``status, value = await ask("GET", "/keys")`` with the admin token."""
    return partial(ask_office, gateway)


@pytest.mark.parametrize("token", [None, "", "wrong", KEY, "sk-"])
async def test_no_operation_is_open_without_the_token(gateway: RunningGateway, token: str | None) -> None:
    assert len(OPERATIONS) > 60
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    some = OPERATIONS if token in {None, KEY} else OPERATIONS[::9]
    async with aiohttp.ClientSession(headers=headers) as session:
        for method, path in (*some, ("GET", "/nothing"), ("PUT", "/keys")):
            async with session.request(method, f"{gateway.url}{PREFIX}{path}", json={}) as response:
                assert response.status == 401, path
                error = (await response.json())["error"]
                assert error["code"] == ("signed_out" if token is None else "invalid_api_key")
                assert gateway.admin_token not in error["message"]


async def test_the_admin_token_is_no_key_of_the_public_api(gateway: RunningGateway) -> None:
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{gateway.url}/v1/models") as response:
        assert response.status == 401


async def test_an_account_lives_from_its_making_to_its_end(ask: Ask) -> None:
    status, made = await ask("POST", "/accounts", {"name": "new", "quota_usd": 5, "rpm": 10})
    assert (status, made["name"], made["status"], made["declared"]) == (201, "new", "active", False)
    assert (made["quota_usd"], made["quota_period"], made["rpm"]) == (5.0, "lifetime", 10)
    status, shown = await ask("GET", "/accounts/new")
    assert (status, shown) == (200, made)
    status, changed = await ask("PATCH", "/accounts/new", {"rpm": None, "tpm": 9, "status": "disabled"})
    assert (status, changed) == (200, {**made, "rpm": None, "tpm": 9, "status": "disabled"})
    status, listed = await ask("GET", "/accounts")
    assert (status, [account["name"] for account in listed["data"]]) == (200, ["acme", "new"])
    assert listed["data"][1] == {**changed, "keys": 0, "members": 0}
    assert await ask("DELETE", "/accounts/new") == (200, {"name": "new", "deleted": True})
    assert (await ask("GET", "/accounts/new"))[0] == 404


@pytest.mark.parametrize("name", ["a/b", "a b", "a.b@c.example", "a"])
async def test_an_account_is_found_under_any_name_it_may_have(ask: Ask, name: str) -> None:
    path = f"/accounts/{quote(name, safe='')}"
    assert (await ask("POST", "/accounts", {"name": name}))[0] == 201
    assert (await ask("GET", path))[1]["name"] == name
    assert (await ask("PATCH", path, {"rpm": 1}))[1]["rpm"] == 1
    assert await ask("DELETE", path) == (200, {"name": name, "deleted": True})


async def test_a_key_shows_its_secret_once_and_never_again(ask: Ask) -> None:
    await ask("POST", "/accounts", {"name": "new"})
    status, made = await ask("POST", "/keys", {"name": "k", "account": "new", "models": ["m*"], "rpm": 3})
    secret = made.pop("secret")
    assert (status, made["name"], made["account"], made["models"]) == (201, "k", "new", ["m*"])
    assert secret.startswith("sk-")
    assert len(secret) == 51
    assert made["key"] == f"sk-…{secret[-4:]}"
    answers = [
        await ask("GET", f"/keys/{made['id']}"),
        await ask("GET", "/keys"),
        await ask("PATCH", f"/keys/{made['id']}", {"rpm": 4}),
    ]
    assert [status for status, _ in answers] == [200, 200, 200]
    assert answers[0][1] == made
    assert answers[1][1]["data"][-1] == made
    assert answers[2][1] == {**made, "rpm": 4}
    assert secret not in str(answers)
    assert (await ask("DELETE", f"/keys/{made['id']}"))[0] == 200
    assert (await ask("GET", f"/keys/{made['id']}"))[0] == 404


async def test_deleting_an_account_deletes_its_keys(ask: Ask) -> None:
    await ask("POST", "/accounts", {"name": "new"})
    _, made = await ask("POST", "/keys", {"name": "k", "account": "new"})
    await ask("DELETE", "/accounts/new")
    assert (await ask("GET", f"/keys/{made['id']}"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "param"),
    [
        ("GET", "/accounts/nobody", None, 404, "not_found", "account"),
        ("PATCH", "/accounts/nobody", {}, 404, "not_found", "account"),
        ("DELETE", "/accounts/nobody", None, 404, "not_found", "account"),
        ("GET", "/keys/999", None, 404, "not_found", None),
        ("PATCH", "/keys/999", {}, 404, "not_found", None),
        ("DELETE", "/keys/999", None, 404, "not_found", None),
        ("GET", "/keys/../../etc", None, 404, "not_found", None),
        ("GET", "/keys/x", None, 404, "not_found", None),
        ("GET", "/keys/-1", None, 404, "not_found", None),
        ("GET", f"/keys/{'9' * 40}", None, 404, "not_found", None),
        ("GET", "/channels/nobody", None, 404, "not_found", None),
        ("POST", "/channels/nobody/test", None, 404, "not_found", None),
        ("GET", "/nothing", None, 404, "not_found", None),
        ("PUT", "/keys", None, 405, "method_not_allowed", None),
        ("POST", "/accounts", {"name": "acme"}, 409, "conflict", "name"),
        ("POST", "/accounts", {}, 400, "invalid_request", "name"),
        ("POST", "/accounts", {"name": ""}, 400, "invalid_request", "name"),
        ("POST", "/accounts", {"name": "a\nb"}, 400, "invalid_request", "name"),
        ("POST", "/accounts", {"name": "n", "rpm": 0}, 400, "invalid_request", "rpm"),
        ("POST", "/accounts", {"name": "n", "rpm": True}, 400, "invalid_request", "rpm"),
        ("POST", "/accounts", {"name": "n", "rpm": 2**70}, 400, "invalid_request", "rpm"),
        ("POST", "/accounts", {"name": "n", "quota_usd": -1}, 400, "invalid_request", "quota_usd"),
        ("POST", "/accounts", {"name": "n", "quota_usd": 1e300}, 400, "invalid_request", "quota_usd"),
        ("POST", "/accounts", {"name": "n", "quota_usd": "5"}, 400, "invalid_request", "quota_usd"),
        ("POST", "/accounts", {"name": "n", "nmae": 1}, 400, "invalid_request", "nmae"),
        ("POST", "/accounts", {"name": "n", "groups": "a"}, 400, "invalid_request", "groups"),
        ("POST", "/accounts", {"name": "n", "groups": [1]}, 400, "invalid_request", "groups[0]"),
        ("POST", "/accounts", {"name": "n", "status": ["active"]}, 400, "invalid_request", "status"),
        ("POST", "/accounts", {"name": "n", "declared": True}, 400, "invalid_request", "declared"),
        ("POST", "/accounts", {"name": "n", "id": 7}, 400, "invalid_request", "id"),
        ("POST", "/keys", {"name": "k"}, 400, "invalid_request", "account"),
        ("POST", "/keys", {"name": "k", "account": "nobody"}, 404, "not_found", "account"),
        ("POST", "/keys", {"name": "test", "account": "acme"}, 409, "conflict", "name"),
        ("POST", "/keys", {"name": "k", "account": "acme", "secret": KEY}, 409, "conflict", "secret"),
        ("POST", "/keys", {"name": "k", "account": "acme", "secret": "short"}, 400, "invalid_request", "secret"),
        ("POST", "/keys", {"name": "k", "account": "acme", "expires_at": "soon"}, 400, "invalid_request", "expires_at"),
        ("POST", "/keys", {"name": "k", "account": "acme", "allow_ips": ["x"]}, 400, "invalid_request", "allow_ips"),
        (
            "POST",
            "/keys",
            {"name": "k", "account": "acme", "quota_status": 402},
            400,
            "invalid_request",
            "quota_status",
        ),
        ("GET", "/requests?limit=x", None, 400, "invalid_request", "limit"),
        ("GET", "/requests?limit=-1", None, 400, "invalid_request", "limit"),
        ("GET", "/requests?after=1.5", None, 400, "invalid_request", "after"),
        ("GET", f"/requests?key={'9' * 30}", None, 400, "invalid_request", "key"),
    ],
)
async def test_a_refusal_says_what_is_wrong(  # noqa: PLR0917 - a table
    standing_with: StartGateway, method: str, path: str, body: Any, status: int, code: str, param: str | None
) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE, models=["m", "other"])]})
    found, value = await ask_office(gateway, method, path, body)
    assert (found, value["error"]["code"], value["error"]["param"]) == (status, code, param)


async def test_what_the_file_declares_is_read_only(ask: Ask) -> None:
    for method, path, body in (
        ("PATCH", "/accounts/acme", {"rpm": 5}),
        ("DELETE", "/accounts/acme", None),
        ("PATCH", "/keys/1", {"status": "disabled"}),
        ("DELETE", "/keys/1", None),
    ):
        status, value = await ask(method, path, body)
        assert (status, value["error"]["code"]) == (409, "conflict")
        assert "configuration file" in value["error"]["message"]
    assert (await ask("GET", "/keys/1"))[1]["declared"] is True


async def test_a_key_keeps_its_account_and_its_secret(ask: Ask) -> None:
    await ask("POST", "/accounts", {"name": "new"})
    _, made = await ask("POST", "/keys", {"name": "k", "account": "new"})
    for change in ({"account": "acme"}, {"secret": "sk-another-secret-here"}):
        status, value = await ask("PATCH", f"/keys/{made['id']}", change)
        assert (status, value["error"]["code"]) == (400, "invalid_request")


async def test_channels_and_models_are_shown_without_their_secrets(ask: Ask) -> None:
    _, status = await ask("GET", "/status")
    assert (status["channels"], status["models"]) == (1, 2)
    _, listed = await ask("GET", "/channels")
    _, shown = await ask("GET", "/channels/up")
    assert shown["offered"] == ["m", "other"]
    assert shown["key_count"] == 1
    assert {**listed["data"][0], "offered": shown["offered"]} == shown
    assert "provider-key" not in str((listed, shown))
    _, models = await ask("GET", "/models")
    assert [(model["id"], model["channels"]) for model in models["data"]] == [("m", ["up"]), ("other", ["up"])]


async def test_a_channel_that_cannot_be_reached_says_so(ask: Ask) -> None:
    status, value = await ask("POST", "/channels/up/test")
    assert (status, value["ok"], value["models"]) == (200, False, None)
    assert value["error"]


async def test_a_new_key_works_at_once_and_a_changed_one_changes_at_once(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        headers = {"Authorization": f"Bearer {gateway.admin_token}"}
        async with aiohttp.ClientSession(f"{gateway.url}{PREFIX}/", headers=headers) as admin:
            await admin.post("accounts", json={"name": "new"})
            async with admin.post("keys", json={"name": "k", "account": "new"}) as response:
                made = await response.json()
            # One connection from beginning to end: no answer may come from what it knew before.
            reader, writer = await connect(gateway.url)

            async def call() -> tuple[int, str | None]:
                writer.write(post(hello(), path=CHAT, key=made["secret"]))
                found = await read_answer(reader)
                return found.status, None if found.status == 200 else found.error["code"]

            async def change(path: str, **fields: Any) -> tuple[int, str | None]:
                await admin.patch(path, json=fields)
                return await call()

            key = f"keys/{made['id']}"
            assert await call() == (200, None)
            assert await change(key, status="disabled") == (401, "key_disabled")
            assert await change(key, status="active") == (200, None)
            assert await change(key, models=["other"]) == (403, "model_not_allowed")
            assert await change(key, models=["m"]) == (200, None)
            async with admin.patch(key, json={"expires_at": "2020-01-01"}) as response:
                assert (response.status, (await response.json())["error"]["param"]) == (400, "expires_at")
            await expire_key(gateway, made["id"])
            assert await call() == (401, "key_expired")
            async with admin.get(key) as response:
                assert (await response.json())["status"] == "expired"
            assert await change(key, expires_at=None) == (200, None)
            assert await change("accounts/new", status="disabled") == (401, "key_disabled")
            assert await change("accounts/new", status="active") == (200, None)
            await admin.delete(key)
            assert await call() == (401, "invalid_api_key")
            writer.close()


async def test_requests_are_listed_and_filtered(gateway: RunningGateway, ask: Ask) -> None:
    for model in ("nope", "nope", "neither"):
        async with gateway.post({"model": model, "messages": [{"role": "user", "content": "hi"}]}) as response:
            assert response.status == 404
    await gateway.rows(3)
    _, everything = await ask("GET", "/requests")
    assert [row["model"] for row in everything["data"]] == ["neither", "nope", "nope"]
    assert {(row["status"], row["error_code"], row["cost_usd"]) for row in everything["data"]} == {
        (404, "model_not_found", 0)
    }
    last = everything["data"][0]
    for query, expected in (
        ("limit=1", ["neither"]),
        ("model=nope", ["nope", "nope"]),
        ("status=200", []),
        ("status=404&model=neither", ["neither"]),
        (f"after={last['sequence'] - 1}", ["neither"]),
        ("key=1", ["neither", "nope", "nope"]),
        ("after=0", ["nope", "nope", "neither"]),
        ("key=2", []),
    ):
        _, found = await ask("GET", f"/requests?{query}")
        assert [row["model"] for row in found["data"]] == expected, query


async def test_the_only_account_is_deleted_only_by_its_name(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [channel(NOWHERE)], "account": [], "key": []})
    ask = partial(ask_office, gateway)
    status, refused = await ask("DELETE", "/accounts/local")
    assert (status, refused["error"]["param"]) == (400, "confirm")
    assert "only account" in refused["error"]["message"]
    assert (await ask("DELETE", "/accounts/local?confirm=other"))[0] == 400
    await ask("POST", "/accounts", {"name": "other"})
    assert (await ask("DELETE", "/accounts/other"))[0] == 200, "it is not the only one"
    assert (await ask("DELETE", "/accounts/local?confirm=local"))[0] == 200


async def test_a_group_that_neither_a_price_nor_a_channel_has_is_refused(ask: Ask) -> None:
    key, account = {"name": "k", "account": "acme", "group": "nope"}, {"name": "new", "groups": ["nope"]}
    for path, body, param in (("/keys", key, "group"), ("/accounts", account, "groups")):
        status, refused = await ask("POST", path, body)
        assert (status, refused["error"]["param"]) == (400, param)
        assert "No channel or price group is called 'nope'" in refused["error"]["message"]
    assert (await ask("PUT", "/groups/nope", {"price_multiplier": 1}))[0] == 200
    assert (await ask("POST", "/keys", key))[0] == 201
    assert (await ask("DELETE", "/groups/nope"))[0] == 200
