"""The command palette and the keyboard's shortcuts; and what takes few actions with them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.hostile import NAME
from tests.browser.provider import Provider
from tests.browser.user import PHONE, Enter, Visitor
from tests.support.gateway import KEY

pytestmark = BROWSER

SECRET = "sk-" + "x" * 44 + "Kf7h"
CONFIG = {
    "account": [{"name": "acme"}, {"name": "north"}],
    "key": [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "leaked", "account": "north", "secret": SECRET},
    ],
    "billing": {"unpriced": "free"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with (
        Provider() as provider,
        open_site(guests, tmp_path_factory.mktemp("palette"), template_path, CONFIG) as opened,
    ):
        await opened.operate("POST", "/channels?check=none", provider.channel("relay"))
        await opened.operate("POST", "/accounts", {"name": NAME})
        await opened.operate("PUT", "/limits/team", {"of": "account", "usd": 100, "window": "week"})
        await opened.know("ada", "administrator", "acme")
        yield opened


async def open_palette(visitor: Visitor, text: str) -> None:
    """Ctrl+K, and some text."""
    await visitor.page.keyboard.press("Control+k")
    await expect(visitor.page.get_by_role("combobox", name="Go to")).to_be_focused()
    await visitor.page.keyboard.insert_text(text)


def list_options(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("listbox", name="Matches").get_by_role("option")


async def test_a_key_is_reached_by_its_last_four_from_any_page(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    await ada.go("/health")
    assert not any(path.endswith("/palette.js") for path in ada.watch.asked), "loaded before it was opened"
    await open_palette(ada, "kf7h")
    await ada.page.keyboard.press("Enter")
    await ada.page.wait_for_url(re.compile("/console/keys/2$"))
    await expect(ada.find("heading", "leaked")).to_be_visible()


async def test_the_arrows_choose_and_an_action_opens_its_dialog(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    await ada.go("/requests")
    await open_palette(ada, "key")
    options = list_options(ada)
    field = page.get_by_role("combobox", name="Go to")
    await expect(options.nth(1)).to_have_text("New key")
    await expect(options.first).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("ArrowDown")
    await expect(field).to_have_attribute("aria-activedescendant", "palette-option-1")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog", name="New key")).to_be_visible()
    assert page.url.endswith("/console/keys")
    await page.keyboard.press("Escape")
    await open_palette(ada, "no such thing at all")
    await expect(page.get_by_role("status").get_by_text("Nothing matches")).to_have_count(1)
    await expect(options).to_have_count(0)
    await page.keyboard.press("Escape")
    await expect(field).to_be_hidden()


async def test_objects_of_every_kind_are_found(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    answer = await site.call(
        "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "x"}]}, KEY
    )
    request_id = answer.headers["x-request-id"]
    await site.wait_for_rows(1)
    for text, address in (
        ("north", "/accounts/north"),
        ("relay", "/channels/relay"),
        ("team", "/limits/team"),
        ("ada", "/members?search=ada"),
        (request_id, f"/requests/{request_id}"),
        (NAME[:20], "/accounts/"),
    ):
        await ada.go("/live")
        await open_palette(ada, text)
        await ada.page.keyboard.press("Enter")
        await ada.page.wait_for_url(re.compile(re.escape(f"/console{address}")))


async def test_a_member_finds_nothing_of_another_account(site: VisitedGateway, enter: Enter) -> None:
    ben = await enter("ben", "member", "acme")
    page = ben.page
    await ben.go("/keys")
    for text in ("kf7h", "north", "relay", "team", "ada", NAME[:20]):
        await open_palette(ben, text)
        await expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("Nothing matches")
        await expect(list_options(ben)).to_have_count(0)
        await page.keyboard.press("Escape")
    await open_palette(ben, "test")
    await expect(list_options(ben)).to_have_count(1)
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    actions = page.get_by_role("group", name="Actions").get_by_role("option")
    assert await actions.all_inner_texts() == ["New key"]


async def test_keys_search_the_page_and_show_themselves(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    await ada.go("/keys")
    await page.keyboard.press("/")
    field = page.get_by_label("Find", exact=True)
    await expect(field).to_be_focused()
    await page.keyboard.press("?")
    await expect(field).to_have_value("?")
    await field.fill("")
    await field.blur()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.set_viewport_size(PHONE)
    await ada.press("Menu")
    await page.get_by_role("button", name="Go to").click()
    await expect(page.get_by_role("combobox", name="Go to")).to_be_focused()
    assert [slip for slip in await ada.find_slips() if "palette-option" not in slip] == []
    assert await site.guests.scan(ada) == []


async def test_a_team_gets_more_until_friday_in_four_actions(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    await ada.go("/accounts/north")
    await page.get_by_role("link", name="Raise team").click()
    await ada.write("Amount to add (USD)", "50", within=page.get_by_role("dialog", name="Raise limit temporarily"))
    await page.get_by_role("button", name="Friday evening").click()
    async with page.expect_navigation():
        await page.get_by_role("button", name="Raise limit", exact=True).click()
    await expect(page.get_by_role("row", name=re.compile("team raised"))).to_contain_text("$50.00")
    (raised,) = [one for one in (await site.operate("GET", "/limits"))["data"] if one["raises"] == "team"]
    assert (raised["usd"], raised["name"]) == (50, "team raised")
    await page.goto(f"{page.url.partition('#')[0]}#raise-limit")
    await expect(page.get_by_label("Name", exact=True).last).to_have_value("team raised 2")


async def test_a_disabled_key_is_enabled_again_by_its_toast(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada")
    page = ada.page
    key_id = (await site.operate("POST", "/keys", {"name": "phone", "account": "north"}))["id"]
    await ada.go(f"/keys/{key_id}")
    assert await page.title() == "phone · Key · Model gateway"
    await expect(page.get_by_role("navigation", name="Breadcrumb").get_by_role("link")).to_have_text(["Keys", "north"])
    await ada.press("Disable key")
    async with page.expect_navigation():
        await ada.confirm()
    assert await page.title() == "disabled · phone · Key · Model gateway"
    await ada.send("Undo")
    assert (await site.operate("GET", f"/keys/{key_id}"))["status"] == "active"
