"""The admin API about members: who may ask, links that lead somewhere, and setting up."""

import asyncio
from typing import Any

import aiohttp
import pytest

from gateway.server.admin.prefix import PREFIX
from gateway.server.admin.routes import list_admin_operations
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE
from tests.support.console import FROGS, PAGE, add_member, open_session
from tests.support.gateway import RunningGateway, channel
from tests.support.started_gateways import StartGateway

CONFIG: dict[str, Any] = {"channel": [channel("http://127.0.0.1:9/v1")]}


@pytest.fixture
async def gateway(gateway_with: StartGateway) -> RunningGateway:
    return await gateway_with(CONFIG)


async def ask(
    gateway: RunningGateway, method: str, path: str, body: Any = None, *, reference: str | None = None, **headers: str
) -> tuple[int, Any]:
    """With the admin token, or with a session from a page of ours."""
    who = {"Authorization": f"Bearer {gateway.admin_token}"}
    if reference is not None:
        who = {**PAGE, "Cookie": f"{COOKIE}={reference}"}
    async with (
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, gateway.url + PREFIX + path, json=body, headers={**who, **headers}) as response,
    ):
        return response.status, await response.json()


async def test_the_office_is_for_administrators_and_what_is_ones_own_for_everybody(gateway: RunningGateway) -> None:
    references = {}
    for role in ("viewer", "member", "administrator"):
        references[role] = await open_session(gateway, await add_member(gateway, f"a-{role}", role))
    own = ("/links", "/members", "/session", "/setup")
    for door in (door for door in list_admin_operations() if door.path.startswith(own)):
        if (door.method, door.path) == ("DELETE", "/session") or door.access == "anyone":
            continue
        path = door.path.replace("{id}", "999")
        for role, reference in references.items():
            status, body = await ask(gateway, door.method, path, {}, reference=reference)
            if door.access == "viewer" or role == "administrator":
                assert status != 403, (door.path, role)
            else:
                assert (status, body["error"]["code"]) == (403, "forbidden"), (door.path, role)


async def test_a_link_leads_to_where_the_console_is_and_lets_one_in(gateway: RunningGateway) -> None:
    status, link = await ask(gateway, "POST", "/links", {"account": "acme", "role": "viewer", "hours": 1})
    assert status == 201
    assert link["url"] == f"{gateway.url}/console/join#{link['token']}"
    assert (link["kind"], link["role"], link["created_by"]) == ("invite", "viewer", "token")
    _, listed = await ask(gateway, "GET", "/links")
    assert listed["data"] == [{name: value for name, value in link.items() if name not in {"token", "url"}}]
    status, opened = await ask(gateway, "POST", "/links/open", {"token": link["token"]}, reference="")
    assert (status, opened["kind"], opened["account"], opened["name"]) == (200, "invite", "acme", None)
    body = {"token": link["token"], "name": "Ann", "passphrase": FROGS}
    status, answer = await ask(gateway, "POST", "/links/use", body, reference="")
    assert (status, answer["member"]["name"], answer["member"]["role"]) == (201, "ann", "viewer")
    assert (await ask(gateway, "POST", "/links/use", body, reference=""))[0] == 404
    _, members = await ask(gateway, "GET", "/members?account=acme")
    assert [(one["name"], one["account"], one["status"]) for one in members["data"]] == [("ann", "acme", "active")]
    assert (await ask(gateway, "GET", "/members?account=nowhere"))[0] == 404


async def test_a_link_leads_to_the_address_that_the_gateway_is_known_by(gateway_with: StartGateway) -> None:
    known = await gateway_with({**CONFIG, "server": {"base_url": "https://gw.example.org/"}})
    _, link = await ask(known, "POST", "/links", {"account": "acme"})
    assert link["url"].startswith("https://gw.example.org/console/join#")
    proxied = await gateway_with({**CONFIG, "server": {"trusted_proxies": ["127.0.0.1"]}})
    headers = {"X-Forwarded-Proto": "https", "Host": "ai.example.org"}
    _, link = await ask(proxied, "POST", "/links", {"account": "acme"}, **headers)
    assert link["url"].startswith("https://ai.example.org/console/join#")


async def test_a_member_is_changed_reset_and_deleted(gateway: RunningGateway) -> None:
    ann = await add_member(gateway, "ann")
    path = f"/members/{ann.id}"
    status, changed = await ask(gateway, "PATCH", path, {"role": "viewer", "name": "anna", "second_factor": False})
    assert (status, changed["role"], changed["name"]) == (200, "viewer", "anna")
    assert (await ask(gateway, "PATCH", path, {}))[1] == changed
    for body, param in (({"role": "chief"}, "role"), ({"second_factor": True}, "second_factor"), ({"id": 7}, "id")):
        status, answer = await ask(gateway, "PATCH", path, body)
        assert (status, answer["error"]["param"]) == (400, param)
    status, link = await ask(gateway, "POST", f"{path}/reset", {})
    assert (status, link["kind"], link["name"]) == (201, "reset", "anna")
    assert (await ask(gateway, "DELETE", f"/links/{link['id']}"))[0] == 200
    assert (await ask(gateway, "DELETE", f"/links/{link['id']}"))[0] == 404
    assert await ask(gateway, "DELETE", path) == (200, {"id": ann.id, "name": "anna", "deleted": True})
    for missing in (path, "/members/x", f"/members/{'9' * 40}", "/members/-1"):
        assert (await ask(gateway, "DELETE", missing))[0] == 404


async def test_the_last_administrator_stays(gateway: RunningGateway) -> None:
    chief = await add_member(gateway, "chief", "administrator")
    reference = await open_session(gateway, chief)
    for method, body in (("PATCH", {"role": "member"}), ("PATCH", {"status": "disabled"}), ("DELETE", None)):
        status, answer = await ask(gateway, method, f"/members/{chief.id}", body, reference=reference)
        assert (status, answer["error"]["code"]) == (409, "conflict")
    assert (await ask(gateway, "GET", "/session", reference=reference))[0] == 200


async def test_of_two_administrators_one_stays_however_they_go(gateway: RunningGateway) -> None:
    """One by itself, one with its account, at the same moment."""
    assert (await ask(gateway, "POST", "/accounts", {"name": "other"}))[0] == 201
    here = await add_member(gateway, "here", "administrator")
    await add_member(gateway, "there", "administrator", "other")
    for body in ({"role": "viewer"}, {"status": "disabled"}, None):
        answers = await asyncio.gather(
            ask(gateway, "PATCH", "/accounts/other", {"status": "disabled"}),
            ask(gateway, "PATCH" if body else "DELETE", f"/members/{here.id}", body),
        )
        assert sorted(status for status, _ in answers) == [200, 409]
        assert await gateway.app[SERVICES].auth.sessions._members.is_administered()
        await ask(gateway, "PATCH", "/accounts/other", {"status": "active"})
        await ask(gateway, "PATCH", f"/members/{here.id}", {"role": "administrator", "status": "active"})


async def test_the_first_administrator_is_made_by_the_token_of_the_start_once(gateway: RunningGateway) -> None:
    assert await ask(gateway, "GET", "/setup", reference="") == (200, {"open": True})
    body = {
        "token": await gateway.app[SERVICES].auth.invitations.find_setup_token(),
        "name": "chief",
        "passphrase": FROGS,
    }
    for wrong in ("", "x" * 43, gateway.admin_token):
        assert (await ask(gateway, "POST", "/setup", {**body, "token": wrong}, reference=""))[0] in {400, 404}
    status, answer = await ask(gateway, "POST", "/setup", body, reference="")
    assert (status, answer["member"]["role"], answer["account"]["name"]) == (201, "administrator", "acme")
    assert await ask(gateway, "GET", "/setup", reference="") == (200, {"open": False})
    assert (await ask(gateway, "POST", "/setup", {**body, "name": "second"}, reference=""))[0] == 404
