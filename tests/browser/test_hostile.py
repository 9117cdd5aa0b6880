"""Whatever people, models and providers say is text on every page: nothing of it runs, and nothing leaves its box."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import expect

from gateway.auth.sessions import ClientInfo as AtTheDoor
from gateway.domain.member import Credential
from gateway.server.context import SERVICES
from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.hostile import ALL_AT_ONCE, ANY, NAME, PRINTABLE, SEEN, TAGS
from tests.browser.provider import Provider
from tests.browser.user import DESK, PHONE, Enter, Visitor
from tests.support.gateway import CHAT, KEY
from tests.support.openai_videos import OpenAiVideos, Play

pytestmark = BROWSER

CONFIG = {
    "account": [{"name": "acme", "groups": list(PRINTABLE)}],
    "key": [{"name": "test", "account": "acme", "secret": KEY}],
    "videos": {"webhook_hosts": list(TAGS)},
    "routing": {"trip_failures": 1000},
}
ENDLESS = f"endless {TAGS[0]}"
_FOREIGN = """
document.querySelectorAll(["main img[src='x']", "main svg[onload]", "iframe", "main script", "main style", "base",
  "main b", "[onerror]", "[onmouseover]", "[href^='javascript:']", "[src^='javascript:']"].join()).length
"""
PLAIN_PATHS = (
    "", "/keys", "/requests", "/sessions", "/videos", "/batches", "/models", "/channels", "/accounts", "/members",
    "/channel-weights", "/new-channel",
    "/prices",
    "/audit",
    "/settings", "/limits", "/files", "/end-users", "/tags",
    "/connect", "/playground", "/playground?mode=images", "/playground?mode=video", "/playground?mode=speech",
    "/playground?mode=transcription", "/account", "/live", "/health",
)  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    films = OpenAiVideos(Play(polls=("failed",), more={"error": {"code": TAGS[0], "message": ALL_AT_ONCE}}))
    provider = Provider(models=[*ANY, "m", "broken"], says=tuple(ANY), fault=ALL_AT_ONCE)
    async with provider, films:
        config = {**CONFIG, "channel": [{**films.channel("films"), "models": ["film"]}]}
        async with open_site(guests, tmp_path_factory.mktemp("hostile"), template_path, config) as opened:
            opened.known["provider"] = provider
            await furnish(opened, provider)
            await use(opened)
            yield opened


async def furnish(site: VisitedGateway, provider: Provider) -> None:
    """Every field of the admin API that takes more than a name, with everything; names as long as they may be."""
    words = list(PRINTABLE)
    channel = provider.channel("listed", models=[], groups=words)
    await site.operate("POST", "/channels?check=none", channel)
    served = {
        "models": ["m", "broken", ENDLESS, *words],
        "model_map": {ENDLESS: "endless"} | {one: one for one in words},
    }
    await site.operate("POST", "/channels?check=none", provider.channel(NAME, sync=False, **served))
    account = {"name": NAME, "quota_usd": 5, "groups": words}
    await site.operate("POST", "/accounts", account)
    key = {"name": NAME, "account": NAME, "models": words, "quota_usd": 1}
    hook = {"webhook_url": "http://127.0.0.1:9/?'\"><img/src=x/onerror=window.__hit='hook'>"}
    site.known["key"] = (await site.operate("POST", "/keys", key | hook))["id"]
    for number, text in enumerate(PRINTABLE):
        credit = {"amount_usd": 0.01, "note": text, "reference": f"{number} {text}"[:64]}
        await site.operate("POST", f"/accounts/{quote(NAME, safe='')}/credits", credit)
        await site.operate("POST", f"/keys/{site.known['key']}/credits", {"amount_usd": 0.01, "note": text})
        if "{" not in text:  # no path has any
            price = {"input_usd_per_million": 1, "output_usd_per_million": 1}
            await site.operate("PUT", f"/prices/{quote(text[:120], safe='')}", price)
    await site.operate("PUT", f"/groups/{quote(NAME, safe='')}", {"price_multiplier": 2})
    ada = await site.know("ada", "administrator", "acme")
    for agent in ANY:
        at = AtTheDoor("203.0.113.9", agent)
        await site.gateway.app[SERVICES].auth.sessions.open(ada, Credential(ada.passphrase, is_known=True), at)


async def use(site: VisitedGateway) -> None:
    """Every field of the public API that is kept."""
    asked = 0
    for text in ANY:
        body = {"model": text, "messages": [{"role": "user", "content": text}], "user": text}
        with suppress(aiohttp.ClientError, ValueError):
            await site.call(CHAT, body, None, **{"User-Agent": "x", "X-Request-Id": quote(text)[:100]})
            asked += 1
    await site.call(CHAT, {"model": "broken", "messages": [{"role": "user", "content": "x"}]})
    rows = await site.wait_for_rows(asked + 1)
    site.known["rows"] = [row["id"] for row in rows]
    answer = await site.call("/v1/videos", {"model": "film", "prompt": ALL_AT_ONCE})
    site.known["video"] = (await answer.json())["id"]
    await site.wait_for_video(site.known["video"], "failed")


def list_paths(known: dict[str, Any]) -> list[str]:
    """Every page on which something of it stands, and addresses that say it themselves."""
    script, attribute = quote(TAGS[0], safe=""), quote(TAGS[1], safe="")
    of_things = (
        f"/keys/{known['key']}", f"/accounts/{quote(NAME, safe='')}", f"/channels/{quote(NAME, safe='')}",
        "/channels/listed", f"/videos/{known['video']}", *(f"/requests/{one}" for one in known["rows"][:2]),
    )  # fmt: skip
    asked = (
        f"/requests?text={attribute}&model={script}", f"/models?search={attribute}", f"/prices?search={attribute}",
        f"/playground?model={attribute}", f"?span={attribute}", f"/account?changed={script}",
    )  # fmt: skip
    return [*PLAIN_PATHS, *of_things, *asked]


async def look(visitor: Visitor, path: str) -> tuple[str, list[str]]:
    """What a page says, also where it is folded away; and what is wrong with it."""
    page = visitor.page
    await visitor.go(path)
    await page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    wrong = [f"{path}: {one}" for one in await visitor.find_slips()]
    await page.set_viewport_size(PHONE)
    wrong += [f"{path} on a phone: {one}" for one in await visitor.find_slips()]
    if await page.evaluate(_FOREIGN):
        wrong.append(f"{path}: something of what is shown has become a part of the page")
    await page.set_viewport_size(DESK)
    body = await page.evaluate(
        "document.body.textContent + [...document.querySelectorAll('input')].map((o) => o.value)"
    )
    return str(body), wrong


async def test_what_is_stored_is_text_on_every_page(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    reported = ""
    wrong: list[str] = []
    for path in list_paths(site.known):
        text, found = await look(ada, path)
        reported, wrong = reported + text, wrong + found
    for name in ("requests", "channels", "audit"):
        await ada.go(f"/{name}")
        await ada.shoot(f"hostile-{name}")
    assert not wrong, "\n".join(wrong)
    unseen = [one for one in SEEN if one not in reported]
    assert not unseen, f"stands nowhere, so that nothing is shown by this: {unseen}"


async def test_what_a_model_says_is_text_as_it_streams(site: VisitedGateway, enter: Enter) -> None:
    ben = await enter("ben")
    page, provider = ben.page, site.known["provider"]
    provider.says = (ALL_AT_ONCE,)
    await ben.go("/playground?model=m")
    await ben.write("Message", ALL_AT_ONCE)
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn.ours .said")).to_contain_text(TAGS[0])
    await expect(page.locator(".turn.ours .receipt")).to_contain_text("Details")
    assert [*await ben.find_slips(), await page.evaluate(_FOREIGN)] == [0]
    await ben.shoot("hostile-chat")

    ben.watch.refusals = {502}
    await page.get_by_label("Model", exact=True).select_option("broken")
    await ben.write("Message", "again")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text(TAGS[1])
    assert [*await ben.find_slips(), await page.evaluate(_FOREIGN)] == [0]

    image = {"b64_json": write_png(), "revised_prompt": ALL_AT_ONCE}
    provider.images = (image, {"b64_json": base64.b64encode(TAGS[0].encode() * 9).decode()})
    await ben.go("/playground?mode=images&model=m")
    await ben.write("Prompt", "a sea")
    await ben.press("Generate image")
    await expect(page.locator("figure")).to_have_count(1)
    assert [*await ben.find_slips(), await page.evaluate(_FOREIGN)] == [0]
    await ben.shoot("hostile-pictures")


def write_png() -> str:
    """A dot."""
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    assert io.BytesIO(base64.b64decode(dot)).read(4) == b"\x89PNG"
    return dot


async def test_what_is_live_is_text(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    await ada.go("/live")
    body = {"model": ENDLESS, "messages": [{"role": "user", "content": ALL_AT_ONCE}], "stream": True}
    call = asyncio.create_task(site.call(CHAT, body))
    await expect(ada.page.locator("#running-rows tr")).to_contain_text(ENDLESS)
    assert [*await ada.find_slips(), await ada.page.evaluate(_FOREIGN)] == [0]
    await ada.go("/live")
    await expect(ada.page.locator("#running-rows tr")).to_contain_text(ENDLESS)
    await ada.press("Cancel", within=ada.page.locator("#running-rows"))
    await call


async def test_addresses_lead_nowhere_else(site: VisitedGateway, enter: Enter) -> None:
    """What is not there says so without saying it back as more than text; and who signs in stays with us."""
    visitor = await enter()
    visitor.watch.refusals = {404, 400, 405}
    for path in (quote(TAGS[0]), f"static/{quote(TAGS[1], safe='')}", f"keys/{quote(TAGS[2], safe='')}"):
        await visitor.page.goto(f"{site.url}/console/{path}")
        assert await visitor.page.evaluate(_FOREIGN) == 0
    for wanted in (
        "//evil.test/",
        "https://evil.test/",
        "javascript:window.__hit=1",
        "/\\evil.test",
        "/console/../evil",
    ):
        await visitor.go(f"/sign-in?next={quote(wanted, safe='')}")
        then = await visitor.page.locator("#sign-in").get_attribute("data-then")
        assert then == "/console/" or (then or "").startswith("/console/"), wanted
    for token in (quote(TAGS[0]), TAGS[1]):
        await visitor.go("/sign-in")
        await visitor.go(f"/join#{token}")
        await expect(visitor.find("heading", "This link is no longer valid")).to_be_visible()
        assert await visitor.page.evaluate(_FOREIGN) == 0
