"""Accounts and keys for a member: those of the own account; others look like unknown ones."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import attrs
import pytest

from tests.support.admin_calls import Ask, ask_office
from tests.support.console_people import Person, invite, make_administrator
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channels
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

OTHER_KEY = "sk-test-key-of-another-caller"
STRANGER = "video_" + "0" * 32
PEOPLE: dict[str, Any] = {
    "account": [{"name": "acme", "quota_usd": 10}, {"name": "other"}],
    "billing": {"unpriced": "free"},
    "key": [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "theirs", "account": "other", "secret": OTHER_KEY},
    ],
    "videos": {"webhook_hosts": ["hooks.test"]},
}


@pytest.fixture
async def gateway(gateway_with: StartGateway) -> AsyncIterator[RunningGateway]:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        yield await gateway_with({**channels([up]), **PEOPLE})


@pytest.fixture
def ask(gateway: RunningGateway) -> Ask:
    return partial(ask_office, gateway)


@attrs.frozen
class People:
    """An administrator of the first account; a member and a viewer of the second."""

    ada: Person
    mia: Person
    vic: Person


@pytest.fixture
async def people(gateway: RunningGateway) -> AsyncIterator[People]:
    ada = await make_administrator(gateway)
    met = People(ada, await invite(ada, "mia", "member", "other"), await invite(ada, "vic", "viewer", "other"))
    yield met
    for person in (met.ada, met.mia, met.vic):
        await person.session.close()


@pytest.mark.slow
async def test_members_and_viewers_have_what_is_their_accounts_and_nothing_else(people: People, ask: Ask) -> None:
    _, own = await ask("POST", "/keys", {"name": "own", "account": "other"})
    for person in (people.mia, people.vic):
        assert (await person.call("GET", "/account"))[1]["name"] == "other"
        _, listed = await person.call("GET", "/keys")
        assert [key["name"] for key in listed["data"]] == ["theirs", "own"]
        assert await person.call("GET", "/keys?account=other") == (200, listed)
        for path in ("/videos", "/deliveries", f"/keys/{own['id']}/credits"):
            assert await person.call("GET", path) == (200, {"object": "list", "data": []})
        for path in ("/accounts", "/accounts/other", "/accounts/other/credits", "/audit", "/audit-trail", "/channels"):
            assert (await person.call("GET", path))[0] == 403
        for method, path in (("POST", "/accounts"), ("POST", "/keys/1/credits"), ("POST", "/reload")):
            assert (await person.call(method, path))[0] == 403
        for theirs, nothing in (
            ("/keys/1", "/keys/99"),
            ("/keys/1/credits", "/keys/99/credits"),
            ("/keys?account=acme", "/keys?account=none"),
            ("/videos?account=acme", "/videos?account=none"),
            (f"/videos/{STRANGER}", "/videos/1"),
        ):
            answers = [await person.call("GET", path) for path in (theirs, nothing)]
            assert [status for status, _ in answers] == [404, 404]
            assert {(reported["error"]["code"], reported["error"]["param"]) for _, reported in answers} == {
                (answers[0][1]["error"]["code"], answers[0][1]["error"]["param"])
            }
    path = f"/keys/{own['id']}"
    for method, where, body in (
        ("POST", "/keys", {"name": "x"}),
        ("PATCH", path, {"rpm": 5}),
        ("POST", f"{path}/rotate", {}),
        ("DELETE", path, None),
        ("POST", f"/videos/{STRANGER}/cancel", None),
        ("GET", f"{path}/webhook-secret", None),
    ):
        assert (await people.vic.call(method, where, body))[0] == 403, where
    for method, where, body in (
        ("PATCH", "/keys/1", {"rpm": 5}),
        ("POST", "/keys/1/rotate", {}),
        ("DELETE", "/keys/1", None),
        ("POST", "/keys", {"name": "x", "account": "acme"}),
        ("GET", "/keys/1/webhook-secret", None),
        ("POST", f"/videos/{STRANGER}/cancel", None),
    ):
        assert (await people.mia.call(method, where, body))[0] == 404, where
    assert (await people.mia.call("PATCH", path, {"webhook_url": "https://inside.test/"}))[0] == 400
    assert (await people.mia.call("PATCH", path, {"webhook_url": "https://hooks.test/"}))[0] == 200
    status, made = await people.mia.call("POST", "/keys", {"name": "ci"})
    assert (status, made["account"]) == (201, "other")
    assert (await people.mia.call("DELETE", f"/keys/{made['id']}"))[0] == 200
    assert (await people.ada.call("GET", "/account"))[1]["name"] == "acme"
    assert len((await people.ada.call("GET", "/keys"))[1]["data"]) == 3
    _, audit_log = await people.ada.call("GET", "/audit-trail?actor=mia&action=key")
    assert [(row["action"], row["subject"], row["account"], row["actor_kind"]) for row in audit_log["data"]] == [
        ("key.deleted", "other/ci", "other", "member"),
        ("key.created", "other/ci", "other", "member"),
        ("key.edited", "other/own", "other", "member"),
    ]
    assert {row["address"] for row in audit_log["data"]} == {"127.0.0.1"}


async def test_the_bearer_of_the_token_has_no_account_of_its_own(ask: Ask) -> None:
    status, reported = await ask("GET", "/account")
    assert (status, reported["error"]["code"]) == (403, "forbidden")


async def test_a_key_is_rotated_under_its_callers_hands(gateway: RunningGateway, ask: Ask) -> None:
    _, made = await ask("POST", "/keys", {"name": "k", "account": "acme"})
    path = f"/keys/{made['id']}"

    async def call(secret: str) -> tuple[int, str | None]:
        async with gateway.post(HELLO, CHAT, headers={"Authorization": f"Bearer {secret}"}) as response:
            reported = await response.json()
            return response.status, reported.get("error", {}).get("code")

    assert (await ask("GET", path))[1]["last_used_at"] is None
    assert await call(made["secret"]) == (200, None)
    assert (await ask("GET", path))[1]["last_used_at"] >= made["created_at"]
    status, rotated = await ask("POST", f"{path}/rotate")
    assert (status, rotated["id"], rotated["former_until"] > made["created_at"]) == (200, made["id"], True)
    assert [await call(secret) for secret in (made["secret"], rotated["secret"])] == [(200, None)] * 2
    _, again = await ask("POST", f"{path}/rotate", {"overlap_h": 0})
    assert again["former_until"] is None
    secrets = [reported["secret"] for reported in (made, rotated, again)]
    assert [await call(secret) for secret in secrets] == [(401, "invalid_api_key")] * 2 + [(200, None)]
    rows = await gateway.rows(4)
    assert {row.key_id for row in rows} == {made["id"]}
    assert (await ask("GET", path))[1].keys() == again.keys() - {"secret"}
    for body, status, param in (({"overlap_h": 721}, 400, "overlap_h"), ({"hours": 1}, 400, "hours")):
        found, reported = await ask("POST", f"{path}/rotate", body)
        assert (found, reported["error"]["param"]) == (status, param)
    assert (await ask("POST", "/keys/1/rotate"))[0] == 409, "the file declares it"
    assert (await ask("POST", "/keys/99/rotate"))[0] == 404


async def test_the_trail_tells_of_money_keys_channels_and_the_file_and_of_no_secret(ask: Ask) -> None:
    await ask("POST", "/accounts", {"name": "new", "quota_usd": 5})
    _, made = await ask("POST", "/keys", {"name": "k", "account": "new", "quota_usd": 1})
    await ask("POST", "/accounts/new/credits", {"amount_usd": 2, "reference": "pay-1"})
    await ask("POST", "/accounts/new/credits", {"amount_usd": 2, "reference": "pay-1"})
    await ask("POST", f"/keys/{made['id']}/credits", {"amount_usd": 3, "kind": "set", "note": "gift"})
    up = {"name": "more", "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "models": ["n"]}
    await ask("POST", "/channels?check=none", {**up, "api_key": "canary-key", "headers": {"X-Team": "canary-header"}})
    await ask("PATCH", "/channels/more", {"weight": 3, "proxy": "http://u:canary-proxy@127.0.0.1:1"})
    await ask("PATCH", "/channels/more", {"weight": 3})
    await ask("DELETE", "/channels/more")
    await ask("DELETE", "/accounts/new")
    status, audit_log = await ask("GET", "/audit-trail")
    reported = [(row["action"], row["subject"]) for row in reversed(audit_log["data"])]
    assert (status, audit_log["object"]) == (200, "list")
    assert reported == [
        ("account.created", "acme"),
        ("account.created", "other"),
        ("key.created", "acme/test"),
        ("key.created", "other/theirs"),
        ("account.created", "new"),
        ("key.created", "new/k"),
        ("account.credited", "new"),
        ("key.credited", "new/k"),
        ("channel.created", "more"),
        ("channel.edited", "more"),
        ("channel.deleted", "more"),
        ("account.deleted", "new"),
    ]
    details = {row["action"]: row["detail"] for row in audit_log["data"]}
    assert details["account.credited"] == {
        "left_usd": [5.0, 7.0],
        "kind": [None, "top_up"],
        "reference": [None, "pay-1"],
    }
    assert details["key.credited"] == {"left_usd": [1.0, 3.0], "kind": [None, "set"], "note": [None, "gift"]}
    created = details["channel.created"]
    assert (created["provider"], created["api_keys"], created["headers"]) == (["", "custom"], "changed", "changed")
    assert details["channel.edited"] == {"weight": [1, 3], "has_proxy": [False, True], "proxy": "changed"}
    assert "canary" not in str(audit_log)
    assert made["secret"] not in str(audit_log)
    assert {row["actor_kind"] for row in audit_log["data"][-4:]} == {"file"}
    newest = audit_log["data"][0]
    assert (newest["account"], newest["detail"]) == ("3 (deleted)", {"keys": [["k"], []]})

    for query, expected in (
        ("limit=2", reported[-1:-3:-1]),
        (f"before={newest['sequence']}&limit=1", [reported[-2]]),
        ("account=acme", [reported[2], reported[0]]),
        ("action=channel.edited", [reported[9]]),
        ("actor=file&action=key", [reported[3], reported[2]]),
        ("actor=nobody", []),
    ):
        _, found = await ask("GET", f"/audit-trail?{query}")
        assert [(row["action"], row["subject"]) for row in found["data"]] == expected, query
    for query, status, param in (("limit=x", 400, "limit"), ("before=x", 400, "before"), ("account=x", 404, "account")):
        found, refused = await ask("GET", f"/audit-trail?{query}")
        assert (found, refused["error"]["param"]) == (status, param)
