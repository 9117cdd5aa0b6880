"""What happens to people: they press twice, leave a page open too long, or begin anew before the last answer ends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Request, Route, expect

from gateway.server.context import SERVICES
from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.provider import KEY, Provider
from tests.browser.user import Enter

pytestmark = BROWSER


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with Provider() as provider:
        filed = {"name": "filed", "provider": "custom", "base_url": provider.base_url, "api_key": KEY, "models": ["m"]}
        config = {"account": [], "key": [], "channel": [filed], "billing": {"unpriced": "free"}}
        async with open_site(guests, tmp_path_factory.mktemp("slips"), template_path, config) as opened:
            await opened.operate("POST", "/accounts", {"name": "acme", "quota_usd": 10, "quota_period": "lifetime"})
            await opened.operate("POST", "/channels?check=none", provider.channel("relay", priority=5))
            opened.known["key"] = (await opened.operate("POST", "/keys", {"name": "laptop", "account": "acme"}))["id"]
            yield opened


async def test_money_is_added_once_however_often_the_button_is_pressed(site: VisitedGateway, enter: Enter) -> None:
    """The page stands there until the next one has come, which may take a while."""
    ada = await enter("ada", "administrator")
    page = ada.page
    await ada.go("/accounts/acme")

    async def dawdle(route: Route) -> None:
        await asyncio.sleep(0.3)
        await route.continue_()

    await page.route("**/console/accounts/acme", dawdle)
    await page.get_by_label("Amount (USD)", exact=True).fill("20")
    await page.get_by_role("button", name="Add credit").evaluate("(button) => setInterval(() => button.click(), 10)")
    await expect(page.locator("table", has_text="top-up").locator("tbody tr")).to_have_count(1)
    assert [one["amount_usd"] for one in (await site.operate("GET", "/accounts/acme/credits"))["data"]] == [20]


async def test_a_form_changes_what_was_touched_and_leaves_what_another_has_changed_meanwhile(
    site: VisitedGateway, enter: Enter
) -> None:
    ada = await enter("ada", "administrator")
    page, key_id = ada.page, site.known["key"]
    end = {"expires_at": "2040-01-31T12:00:30Z", "rpm": 60}
    await site.operate("PATCH", f"/keys/{key_id}", end)
    await ada.go(f"/keys/{key_id}")
    await site.operate("PATCH", f"/keys/{key_id}", {"rpm": 90})
    await page.get_by_label("Spending limit (USD)").fill("7")
    async with page.expect_request(lambda request: request.method == "PATCH") as sent:
        await page.get_by_role("button", name="Save").click()
    assert (await sent.value).post_data_json == {"quota_usd": 7}
    await expect(page.get_by_label("Requests per minute")).to_have_value("90")
    key = await site.operate("GET", f"/keys/{key_id}")
    assert (key["rpm"], key["quota_usd"], key["expires_at"]) == (90, 7.0, "2040-01-31T12:00:30Z")
    await page.get_by_label("Expires").fill("")
    await page.get_by_label("Requests per minute").fill("")
    async with page.expect_request(lambda request: request.method == "PATCH") as sent:
        await page.get_by_role("button", name="Save").click()
    assert (await sent.value).post_data_json == {"expires_at": None, "rpm": None}


async def test_what_was_written_outlives_the_session_it_was_written_in(site: VisitedGateway, enter: Enter) -> None:
    eve = await enter("eve", "member")
    page = eve.page
    eve.watch.refusals.add(401)
    await eve.go("/keys")
    await page.get_by_role("button", name="New key").click()
    name = page.locator("#k-name")
    await name.fill("a long story")
    member = site.members["eve"]
    sessions = site.gateway.app[SERVICES].auth.sessions
    await sessions._members.delete_sessions([one.digest for one in await sessions._members.list_sessions(member.id)])
    await page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="Your session has expired")
    await expect(dialog.get_by_role("link", name="Sign in")).to_have_attribute("href", "/console/sign-in")
    await dialog.get_by_role("button", name="Close").click()
    await expect(name).to_have_value("a long story")
    await page.get_by_role("button", name="Close").first.click()
    await page.get_by_role("button", name="Sign out").click()
    await eve.arrive("/sign-in?next=/console/keys")


async def test_a_message_outlives_the_session_when_a_page_looks_something_up(
    site: VisitedGateway, enter: Enter
) -> None:
    sam = await enter("sam", "member")
    page = sam.page
    sam.watch.refusals.add(401)
    await sam.go("/playground")
    message = page.locator("#message")
    await message.fill("a long question")
    member = site.members["sam"]
    sessions = site.gateway.app[SERVICES].auth.sessions
    await sessions._members.delete_sessions([one.digest for one in await sessions._members.list_sessions(member.id)])
    await page.get_by_label("Model", exact=True).select_option("endless")
    dialog = page.get_by_role("dialog", name="Your session has expired")
    await dialog.get_by_role("button", name="Close").click()
    await page.get_by_label("Model", exact=True).select_option("broken")
    await expect(message).to_have_value("a long question")
    await message.fill("")
    await page.get_by_label("Model", exact=True).select_option("m")
    assert page.url.endswith("/playground"), "the choice of a model is something that was entered, too"


async def test_nothing_is_undone_or_replaced_over_what_somebody_else_has_done(
    site: VisitedGateway, enter: Enter
) -> None:
    """Pages that are older than a change: of a key, of weights, and of aliases, which are sent as a whole."""
    ada = await enter("ada", "administrator")
    page = ada.page
    keys = ["provider-key-of-a-team-aaaa", "provider-key-of-a-shop-bbbb"]
    spec = {"provider": "custom", "base_url": "http://127.0.0.1:9/v1", "api_keys": keys, "models": ["x"]}
    await site.operate("POST", "/channels?check=none", {**spec, "name": "shared", "model_map": {"a": "x"}})
    await site.operate("POST", "/channels?check=none", {**spec, "name": "other"})
    await ada.go("/channels/shared")
    off = {"status": "disabled"}
    await site.operate("PATCH", "/channels/shared/keys/2?last4=bbbb", off)
    await page.locator("#keys tbody tr").nth(1).get_by_role("button", name="Disable").click()
    await expect(page.locator(".toast")).to_contain_text("The key is disabled")
    await expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    assert [key["status"] for key in (await site.operate("GET", "/channels/shared"))["keys"]] == ["active", "disabled"]

    await site.operate("PATCH", "/channels/shared", {"model_map": {"a": "x", "b": "x"}})
    await page.get_by_role("button", name="Add an alias").click()
    await page.get_by_label("Name that clients use").last.fill("a")
    await page.get_by_label("Name at the provider").last.fill("x")
    await page.locator("form", has=page.locator("[data-aliases]")).get_by_role("button", name="Save").click()
    assert await page.get_by_label("Name that clients use").last.evaluate("(field) => field.validationMessage") == (
        "Another row has this name."
    )
    await page.get_by_label("Name that clients use").last.fill("c")
    await page.locator("form", has=page.locator("[data-aliases]")).get_by_role("button", name="Save").click()
    await expect(page.locator("[data-error-of=model_map]")).to_contain_text("Someone else has changed this")
    assert (await site.operate("GET", "/channels/shared"))["model_map"] == {"a": "x", "b": "x"}

    await ada.go("/channel-weights?model=x")
    await page.get_by_label("Weight of shared", exact=True).fill("3")
    await page.get_by_label("Weight of other", exact=True).fill("4")
    async with page.expect_navigation():
        await page.get_by_role("button", name="Save").click()
    await site.operate("PATCH", "/channels/shared", {"weight": 9})
    async with page.expect_navigation():
        await page.get_by_role("button", name="Undo").click()
    await expect(page.locator(".toast")).to_contain_text("Someone else has changed this in the meantime")
    weights = [(await site.operate("GET", f"/channels/{name}"))["weight"] for name in ("shared", "other")]
    assert weights == [9, 1]
    for name in ("shared", "other"):
        await site.operate("DELETE", f"/channels/{name}")


async def test_a_new_conversation_knows_nothing_of_the_one_before(site: VisitedGateway, enter: Enter) -> None:
    """It is begun while the last answer is still coming."""
    kim = await enter("kim", "member")
    page = kim.page
    answers: list[Any] = []

    def note(request: Request) -> None:
        if request.url.endswith("/v1/chat/completions"):
            answers.append((request.post_data_json or {})["messages"])

    page.on("request", note)
    await kim.go("/playground")
    await page.get_by_label("Model", exact=True).select_option("endless")
    message = page.locator("#message")
    await message.fill("The secret is 42")
    await message.press("Enter")
    await expect(page.locator("#turns")).to_contain_text("and on")
    await page.get_by_role("button", name="New chat").click()
    await expect(page.locator("#stop-answer")).to_be_hidden()
    await page.get_by_label("Model", exact=True).select_option("m")
    await message.fill("Hello")
    await message.press("Enter")
    await expect(page.locator("#turns")).to_contain_text("The sea is calm.")
    assert [[one["content"] for one in each] for each in answers] == [["The secret is 42"], ["Hello"]]


async def test_a_channel_is_moved_past_one_that_the_file_declares(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada", "administrator")
    page = ada.page
    await ada.go("/channels")
    names = "[...document.querySelectorAll('#channels tbody tr')].map((row) => row.dataset.name)"
    assert await page.evaluate(names) == ["relay", "filed"]
    async with page.expect_response("**/channels/order") as answered:
        await page.get_by_role("button", name="relay: move down").click()
    assert (await answered.value).status == 200
    await ada.go("/channels")
    assert await page.evaluate(names) == ["filed", "relay"]
