"""Every page, for everyone who may see it; hostile text in them is text."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from gateway.domain.member import includes_rights
from gateway.server.console.headers import HEADERS
from gateway.server.console.routes import list_pages
from tests.support.console_people import Person, invite, make_administrator, meet
from tests.support.gateway import CHAT
from tests.support.started_gateways import StartGateway

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{7*7}}", "</textarea><script>alert(2)</script>",
    "javascript:alert(1)", "'onfocus='alert(1)", "\u202eabc\u202d", "a" * 200,
)  # fmt: skip
_TAG = re.compile(r"<script>alert|<img src=x|onerror=alert\(1\)>|>49<")


@pytest.fixture
async def people(gateway_with: StartGateway) -> AsyncIterator[dict[str, Person]]:
    """An administrator, and a member and a viewer of the account acme, which has used its key; and nobody."""
    gateway = await gateway_with({})
    async with AsyncExitStack() as stack:
        ada = await make_administrator(gateway)
        everyone = {
            "administrator": ada,
            "member": await invite(ada, "ben", "member", "acme"),
            "viewer": await invite(ada, "eve", "viewer", "acme"),
            "nobody": meet(gateway),
        }
        for person in everyone.values():
            stack.push_async_callback(person.session.close)
        status, _ = await ada.call("PUT", "/routes/fast", {"step": [{"models": ["demo-chat"]}]})
        assert status == 200
        status, _ = await ada.call("PUT", "/limits/daily", {"of": "user", "usd": 1, "window": "day", "soft": 0.8})
        assert status == 200
        chat = {"model": "demo-chat", "messages": [{"role": "user", "content": "hi"}]}
        async with gateway.post(chat, headers={"x-gateway-session": HOSTILE[0]}) as response:
            assert response.status == 200
        async with gateway.post({"model": HOSTILE[0], "messages": [{"role": "user", "content": "hi"}]}) as response:
            assert response.status == 404
        video = {"model": "demo-video-fail", "prompt": HOSTILE[1], "seconds": "4"}
        async with gateway.post(video, "/v1/videos") as response:
            assert response.status == 200
        while (await ada.call("GET", "/videos?live=true"))[1]["data"]:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0.02)
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", HOSTILE[1], filename="lines.jsonl")
        async with gateway.client.post(f"{gateway.url}/v1/files", data=form) as response:
            new = {"input_file_id": (await response.json())["id"], "endpoint": CHAT, "completion_window": "24h"}
        async with gateway.post(new, "/v1/batches") as response:
            assert response.status == 200
        yield everyone


async def _find_addresses(person: Person) -> dict[str, str]:
    """Each page's path -> one that there is."""
    ids = {}
    for noun in ("keys", "requests", "videos", "batches"):
        ids[noun] = str((await person.call("GET", f"/{noun}"))[1]["data"][0]["id"])
    ids["sessions"] = str((await person.call("GET", "/request-sessions"))[1]["data"][0]["id"])
    found = {}
    for page in list_pages():
        noun = page.path.split("/")[1] if page.path else ""
        known = {
            "accounts": "acme",
            "channels": "demo",
            "routes": "fast",
            "limits": "daily",
            "models": "demo-chat",
            **ids,
        }
        found[page.path] = re.sub(r"\{.*\}", quote(known.get(noun, ""), safe=""), page.path)
    return found


async def test_every_page_is_there_for_who_may_see_it_and_for_nobody_else(people: dict[str, Person]) -> None:
    addresses = await _find_addresses(people["administrator"])
    for page in list_pages():
        for role in ("viewer", "member", "administrator"):
            status, text = await people[role].open(addresses[page.path])
            where = f"{page.path} for a {role}"
            if page.needs is None:
                assert status in {200, 303}, where
            elif not includes_rights(role, page.needs):
                assert status == 403, where
                assert "Traceback" not in text
            else:
                assert status == 200, where
                assert text.count("<h1") == 1, where
                assert text.rstrip().endswith("</html>"), where
                assert " style=" not in text, where
                assert "<script>" not in text, where
        status, text = await people["nobody"].open(addresses[page.path])
        if page.needs is not None:
            wanted = {"next": f"/console{addresses[page.path]}"}
            assert (status, dict(URL(text).query)) == (303, wanted), page.path
            assert URL(text).path == "/console/sign-in"


async def test_hostile_text_is_text_wherever_it_is_shown(people: dict[str, Person]) -> None:
    ada = people["administrator"]
    key_id = (await ada.call("GET", "/keys"))[1]["data"][0]["id"]
    await ada.call("PATCH", "/accounts/acme", {"groups": list(HOSTILE), "quota_usd": 5})
    for number, words in enumerate(HOSTILE):
        status, body = await ada.call(
            "POST", "/keys", {"name": f"k{number}", "account": "acme", "models": [words], "group": None}
        )
        assert status in {201, 400}, body
        note = {"amount_usd": 1, "note": words[:200], "reference": f"r{number}"}
        assert (await ada.call("POST", "/accounts/acme/credits", note))[0] in {201, 400, 409}
        await ada.call(
            "POST",
            "/channels",
            {"name": f"c{number}", "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "api_key": "k" * 20,
             "models": [words]},
        )  # fmt: skip
        await ada.call("PUT", "/prices/" + quote(words, safe=""), {"input_usd_per_million": 1})
    assert key_id
    addresses = await _find_addresses(ada)
    for path in (*addresses.values(), *(f"/requests?text={quote(words)}&model={quote(words)}" for words in HOSTILE)):
        for person in (ada, people["viewer"]):
            _, text = await person.open(path)
            assert not _TAG.search(text), path


async def test_every_answer_of_the_console_has_its_headers(people: dict[str, Person]) -> None:
    ada = people["administrator"]
    for path in ("/", "/keys", "/sign-in", "/nothing/here", "/static/console.css", "/static/nothing"):
        url = f"{ada.gateway.url}/console{path}"
        async with ada.session.get(url, headers={"Sec-Fetch-Site": "none"}) as response:
            for name, value in HEADERS.items():
                if name != "Cache-Control":
                    assert response.headers[name] == value, (path, name)


async def test_a_page_of_ours_is_not_shown_to_another_site(people: dict[str, Person]) -> None:
    ada = people["administrator"]
    async with ada.session.get(f"{ada.gateway.url}/console/keys", headers={"Sec-Fetch-Site": "cross-site"}) as response:
        assert response.status == 403
        assert "sk-" not in await response.text()


async def test_where_to_go_after_signing_in_is_a_page_of_ours(people: dict[str, Person]) -> None:
    stranger = people["nobody"]
    for wanted, kept in (
        ("/console/keys?account=x", True), ("/docs", True), ("https://evil.example/", False), ("//evil.example", False),
        ("/\\evil.example", False), ("javascript:alert(1)", False), ("/consolexyz", False), ("/v1/models", False),
    ):  # fmt: skip
        _, text = await stranger.open(f"/sign-in?next={quote(wanted, safe='')}")
        there = re.search(r'data-then="([^"]*)"', text)
        assert there is not None
        assert (there[1].replace("&amp;", "&") == wanted) is kept, wanted
        assert kept or there[1] == "/console/"
