"""What an administrator does with the console: channels, accounts, money, prices, settings, and looks at all."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from gateway.domain.channel import DEFAULT_QUEUE, QueueSettings
from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.provider import Provider
from tests.browser.user import DESK, Enter, Visitor
from tests.support.gateway import CHAT
from tests.support.gateway import KEY as CALLERS_KEY

pytestmark = BROWSER

CONFIG = {
    "account": [{"name": "acme"}],
    "key": [{"name": "test", "account": "acme", "secret": CALLERS_KEY}],
    "billing": {"unpriced": "free"},
    "routing": {"trip_failures": 1000},
    "media": {"keep_hours": 72},
}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    folder = tmp_path_factory.mktemp("operating")
    async with Provider() as provider, open_site(guests, folder, template_path, CONFIG) as opened:
        opened.known["provider"] = provider
        await opened.operate("POST", "/channels?check=none", provider.channel("anchor", models=["m", "endless"]))
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def ada(enter: Enter) -> Visitor:
    return await enter("ada", "administrator")


async def test_the_order_of_channels_is_changed_by_keyboard_and_by_dragging(site: VisitedGateway, ada: Visitor) -> None:
    provider = site.known["provider"]
    for number, name in enumerate(("alder", "birch", "cedar")):
        await site.operate("POST", "/channels?check=none", provider.channel(name, priority=90 - number, models=["m"]))
    page = ada.page

    async def read_order() -> list[str]:
        listed = (await site.operate("GET", "/channels"))["data"]
        ordered = sorted(listed, key=lambda one: -one["priority"])
        return [one["name"] for one in ordered if one["name"] in {"alder", "birch", "cedar"}]

    await ada.go("/channels")
    async with page.expect_response("**/channels/order"):
        await ada.press("cedar: move up")
    assert await read_order() == ["alder", "cedar", "birch"]
    await expect(ada.find("button", "cedar: move up")).to_be_focused()
    async with page.expect_response("**/channels/order"):
        await page.keyboard.press("Enter")
    assert await read_order() == ["cedar", "alder", "birch"]

    row = page.locator("tr[data-name=birch]")
    async with page.expect_response("**/channels/order"):
        await row.drag_to(page.locator("tr[data-name=cedar]"), target_position={"x": 200, "y": 3})
    assert await read_order() == ["birch", "cedar", "alder"]
    await page.reload()
    names = [await one.inner_text() for one in await page.get_by_role("rowheader").all()]
    assert [name.split()[0] for name in names[:3]] == ["birch", "cedar", "alder"]
    for name in ("alder", "birch", "cedar"):
        await site.operate("DELETE", f"/channels/{name}")


async def test_an_account_is_made_topped_up_capped_and_turned_off(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    await ada.go("/accounts")
    await ada.press("New account")
    form = page.locator("#new-account form")
    await ada.write("Name", "research/night", within=form)
    await ada.write("Spending limit (USD) optional", "10", within=form)
    await ada.choose("Resets", "Never", within=form)
    await ada.press("Create account", within=form)
    await expect(ada.find("heading", "research/night")).to_be_visible()
    key = await site.operate("POST", "/keys", {"name": "app", "account": "research/night"})

    await ada.write("Amount (USD)", "2.5")
    await ada.write("Reference optional", "invoice 7")
    await ada.write("Note optional", "for the night shift")
    await ada.send("Add credit")
    left = page.locator(".stat", has_text="Balance")
    await expect(left).to_contain_text("$12.50")
    await ada.write("Amount (USD)", "2.5")
    await ada.write("Reference optional", "invoice 7")
    await ada.send("Add credit")
    await expect(page.get_by_role("row", name=re.compile("invoice 7"))).to_have_count(1)
    await expect(left).to_contain_text("$12.50")
    await ada.choose("Type", "Set the balance")
    await ada.write("Amount (USD)", "4")
    await ada.send("Add credit")
    await expect(left).to_contain_text("$4.00")

    await ada.press("Disable account")
    await ada.confirm()
    await expect(ada.find("button", "Enable account")).to_be_visible()
    assert (await site.call(CHAT, HELLO, key["secret"])).status in {401, 403}
    await ada.send("Enable account")
    await expect(ada.find("button", "Disable account")).to_be_visible()
    assert (await site.call(CHAT, HELLO, key["secret"])).status == 200
    await ada.press("Delete account")
    await ada.confirm(typed="research/night")
    await ada.arrive("/accounts")
    await expect(ada.find("link", "research/night")).to_have_count(0)


async def test_a_price_and_a_group_set_here_are_in_force_at_once(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    await site.operate("PUT", "/groups/friends", {"price_multiplier": 1})
    key = await site.operate("POST", "/keys", {"name": "partner", "account": "acme", "group": "friends"})

    async def read_cost() -> str:
        return (await site.call(CHAT, HELLO, key["secret"])).headers.get("x-gateway-cost-usd", "0")

    await ada.go("/prices")
    await ada.press("Set price")
    form = page.locator("#new-price form")
    await ada.write("Model", "m", within=form)
    await form.locator("#p-input_usd_per_million").fill("10")
    await form.locator("#p-output_usd_per_million").fill("20")
    await ada.send("Save", within=form)
    row = page.get_by_role("row", name=re.compile(r"\bm any provider"))
    await expect(row).to_contain_text("$10.00 in, $20.00 out")
    assert float(await read_cost()) == pytest.approx(0.0216)
    await ada.press("Set group multiplier")
    form = page.locator("#new-group form")
    await ada.write("Group", "friends", within=form)
    await ada.write("Multiplier", "0.5", within=form)
    await ada.send("Save", within=form)
    await expect(page.get_by_role("row", name=re.compile("^friends"))).to_contain_text("50 %")
    assert float(await read_cost()) == pytest.approx(0.0108)
    await ada.press("Reset", within=row)
    await ada.confirm()
    await expect(row).to_have_count(0)
    assert float(await read_cost()) == 0
    await ada.write("Find", "gpt-4o-mini")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("search=gpt-4o-mini"))
    await expect(page.get_by_role("row", name=re.compile(r"^gpt-4o-mini any"))).to_contain_text("$0.15 in, $0.6")


async def test_a_price_says_before_and_after_and_keeps_its_other_rates(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    form = page.locator("#new-price form")
    changes = form.locator("[data-changes] li")

    async def read_price(model: str) -> dict[str, Any]:
        listed = (await site.operate("GET", f"/prices?model={model}&source=console"))["data"]
        return next(price for price in listed if price["model"] == model)

    tiers = [{"above_tokens": 1000, "input_usd_per_million": 9}]
    rates = {"input_usd_per_million": 1.25, "cached_input_usd_per_million": 0, "usd_per_search": 0.01, "tiers": tiers}
    await site.operate("PUT", "/prices/lens", rates | {"tiers_served": {"flex": 0.5}})
    before = await read_price("lens")
    row = page.get_by_role("row", name=re.compile(r"\blens any provider"))
    await ada.go("/prices")
    await ada.press("Set price")
    await ada.write("Model", "gpt-4o-mini", within=form)
    await form.locator("#p-provider").focus()
    await expect(form.locator("#p-input_usd_per_million")).to_have_value("0.15")
    await ada.press("Cancel", within=form)
    await ada.press("Change", within=row)
    await expect(form.locator("#p-input_usd_per_million")).to_have_value("1.25")
    await expect(form.locator("#p-cached_input_usd_per_million")).to_have_value("0")
    await expect(form.locator("#p-usd_per_image")).to_have_value("")
    await expect(form.locator("[data-kept]")).to_be_visible()
    await form.locator("#p-input_usd_per_million").fill("2")
    await form.locator("#p-usd_per_call").fill("0.01")
    await ada.unfold("Audio, images, video and service tiers")
    await form.locator("#p-image_output_usd_per_million").fill("30")
    await form.locator("#p-tiers_served").fill("flex=0.4, fast")
    await expect(changes).to_have_text(
        [
            "Text: Input: $1.25 → $2",
            "Per request: nothing → $0.01",
            "Images: Output: as text → $30",
            "Service tiers: flex=0.5 → flex=0.4, fast",
        ]
    )
    ada.watch.refusals = {400}
    await ada.press("Save", within=form)
    await expect(form.locator("[data-error-of=tiers_served]")).to_contain_text("tiers_served")
    await form.locator("#p-tiers_served").fill("flex=0.4")
    await ada.send("Save", within=form)
    await expect(row).to_contain_text("$0.01 per request")
    after = await read_price("lens")
    changed = {"input_usd_per_million", "usd_per_call", "image_output_usd_per_million", "tiers_served"}
    assert {name for name in after if after[name] != before[name]} == changed
    assert after["tiers_served"] == {"flex": 0.4}
    await site.operate("DELETE", "/prices/lens")


async def test_a_price_is_free_only_if_that_is_meant(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    form = page.locator("#new-price form")
    row = page.get_by_role("row", name=re.compile(r"\bprism any provider"))
    await site.operate("PUT", "/prices/prism", {"input_usd_per_million": 2, "usd_per_call": 0.01})
    await ada.go("/prices")
    await ada.press("Change", within=row)
    await expect(form.locator("#p-usd_per_call")).to_have_value("0.01")
    await form.get_by_label("Free", exact=True).check()
    await expect(form.locator("#p-input_usd_per_million")).to_be_disabled()
    await expect(form.locator("[data-changes] li")).to_have_text(
        ["Text: Input: $2 → free", "Per request: $0.01 → free"]
    )
    await ada.send("Save", within=form)
    await expect(row).to_contain_text("free")
    assert (await site.operate("GET", "/prices?model=prism&source=console"))["data"][0]["free"]
    await ada.press("Change", within=row)
    free = form.get_by_label("Free", exact=True)
    await expect(free).to_be_checked()
    await free.uncheck()
    await ada.press("Save", within=form)
    await expect(form.locator("[data-error-of=free]")).to_contain_text("select “Free”")
    await expect(free).to_be_focused()
    await site.operate("DELETE", "/prices/prism")


async def test_settings_are_found_changed_together_undone_and_read_only_where_the_file_says_it(
    site: VisitedGateway, ada: Visitor
) -> None:
    page = ada.page
    attempts = page.get_by_label("Attempts per request", exact=True)
    affinity = page.get_by_label("Keep conversations on one channel", exact=True)
    chooser = page.get_by_label("Let callers choose the load balancing", exact=True)
    await ada.go("/settings?topic=media")
    await expect(page.locator("#s-media-keep_hours")).to_have_text("72")
    await expect(page.locator("#media")).to_contain_text("from the file")
    await page.keyboard.press("/")
    await page.keyboard.type("channels to try")
    await page.keyboard.press("Enter")
    await expect(page.locator(".setting")).to_have_count(1)
    await expect(page.locator(".setting")).to_contain_text(
        "Maximum number of channels to try per request before the first byte of the response is sent."
    )
    await ada.go("/settings")
    await ada.write("Attempts per request", "99")
    await affinity.select_option("header")
    await expect(page.locator("#save-count")).to_have_text("2 unsaved changes")
    await ada.press("Save")
    ada.watch.refusals = {400}
    await expect(page.get_by_role("alert")).to_contain_text("from 1 to 10")
    await expect(attempts).to_be_focused()
    await expect(affinity).to_have_value("header")  # nothing was stored, and nothing that was chosen is lost
    await ada.write("Attempts per request", "5")
    await chooser.check()
    await ada.send("Save")
    await expect(page.locator(".toast")).to_contain_text("Settings saved")
    await expect(page.get_by_text("Reset to 3", exact=True)).to_be_visible()
    assert (await attempts.input_value(), await affinity.input_value(), await chooser.is_checked()) == (
        "5",
        "header",
        True,
    )
    await ada.send("Undo")
    await expect(page.get_by_text("Reset to")).to_have_count(0)
    assert (await attempts.input_value(), await affinity.input_value(), await chooser.is_checked()) == (
        "3",
        "auto",
        False,
    )
    await ada.write("Attempts per request", "5")
    await ada.send("Save")
    await ada.press("Reset: Attempts per request")
    await expect(page.locator("#save-count")).to_have_text("1 unsaved change")
    await ada.press("Discard")
    await expect(attempts).to_have_value("5")
    await ada.press("Reset: Attempts per request")
    await ada.send("Save")
    await expect(attempts).to_have_value("3")
    await expect(page.get_by_text("Reset to")).to_have_count(0)
    ada.watch.refusals |= {409}  # it was started without one
    await ada.press("Reload configuration")
    await expect(page.locator(".toast.bad")).to_be_visible()


async def test_a_list_of_settings_has_a_line_for_each_value(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    patterns = ["staff=EMP-\\d{5,6}", "order=NO-\\d{4,6}"]  # which have commas
    await ada.go("/settings?topic=privacy")
    await page.locator("#s-bodies-patterns").fill("\n".join(patterns))
    await ada.send("Save")
    settings = (await site.operate("GET", "/settings"))["sections"]
    assert settings["bodies"]["patterns"]["value"] == patterns
    await expect(page.locator("#s-bodies-patterns")).to_have_value("\n".join(patterns))
    await ada.send("Undo")
    await expect(page.locator("#s-bodies-patterns")).to_have_value("")


async def test_running_requests_are_seen_and_one_is_cancelled(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    await ada.go("/live")
    await expect(page.get_by_text("No running requests")).to_be_visible()
    await expect(page.locator("#live-state")).to_have_text("live")
    call = asyncio.create_task(site.call(CHAT, {**HELLO, "model": "endless", "stream": True}))
    row = page.locator("#running-rows tr")
    await expect(row).to_have_count(1)
    await expect(row).to_contain_text("endless")
    await expect(row).to_contain_text("acme/test")
    await expect(row).to_contain_text("anchor")
    await expect(row).to_contain_text("streaming")
    await ada.shoot("live-running", whole=False)
    await ada.press("Cancel", within=row)
    text = await (await call).text()
    assert "request_cancelled" in text
    assert "[DONE]" not in text
    await expect(page.get_by_text("No running requests")).to_be_visible()


async def test_the_trail_has_everything_that_was_changed_and_is_filtered(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    made = await site.operate("POST", "/accounts", {"name": "trailer", "rpm": 60})
    await site.operate("PATCH", "/accounts/trailer", {"rpm": 120})
    await site.operate("POST", "/keys", {"name": "one", "account": "trailer"})
    await site.operate("PUT", "/settings/routing/max_attempts", {"value": 4})
    await site.operate("DELETE", "/settings/routing/max_attempts")
    await ada.go("/audit")
    seen = await page.inner_text("main")
    for answer in (
        "account created",
        "account edited",
        "key created",
        "setting",
        "the command line",
        "trailer/one",
        "ada",
    ):
        assert answer in seen, answer
    await ada.choose("Action", "Accounts")
    await page.wait_for_url(re.compile("action=account"))
    await expect(page.get_by_role("cell", name="key created")).to_have_count(0)
    await ada.choose("Account", "trailer")
    await page.wait_for_url(re.compile("account=trailer"))
    edited = page.get_by_role("row", name=re.compile("account edited"))
    await ada.reach(edited.locator("summary"))
    await page.keyboard.press("Enter")
    await expect(edited).to_contain_text("60 → 120")
    await ada.press("Clear", "link")
    await ada.arrive("/audit")
    await site.operate("DELETE", f"/accounts/{made['name']}")


async def test_health_says_how_the_process_and_its_books_are(site: VisitedGateway, ada: Visitor) -> None:
    await ada.go("/health")
    await ada.press("Verify ledger")
    await expect(ada.page.get_by_text("The ledger is consistent")).to_be_visible()
    await expect(ada.page.get_by_text("writable")).to_be_visible()
    await ada.send("Refresh", "link")
    await ada.arrive("/health")


async def test_tab_goes_through_a_page_in_the_order_in_which_it_is_written(site: VisitedGateway, ada: Visitor) -> None:
    """Nothing is left out, nothing holds one fast, and from the beginning one may skip to the content."""
    for path in ("/channels", "/accounts/acme", "/keys"):
        await ada.go(path)
        written, reached = await ada.walk()
        assert reached == written, path
        assert "Skip to content" in reached[0]
    await press_skip(ada.page)
    await expect(ada.page.locator("main")).to_be_focused()


async def press_skip(page: Page) -> None:
    link = page.get_by_role("link", name="Skip to content")
    await link.focus()
    await expect(link).to_be_in_viewport()
    await page.keyboard.press("Enter")


async def test_the_menu_of_a_phone_is_opened_and_closed(site: VisitedGateway, ada: Visitor) -> None:
    await ada.page.set_viewport_size({"width": 360, "height": 740})
    await ada.go("/keys")
    menu = ada.page.get_by_role("navigation", name="Main")
    await expect(menu).to_be_hidden()
    await ada.press("Menu")
    await expect(menu).to_be_visible()
    await expect(ada.find("button", "Menu")).to_have_attribute("aria-expanded", "true")
    await ada.shoot("menu-phone")
    await ada.press("Menu")
    await expect(menu).to_be_hidden()


async def test_a_route_is_added_with_rows_for_its_steps_tried_without_a_request_changed_and_deleted(
    site: VisitedGateway, ada: Visitor
) -> None:
    page = ada.page
    await ada.go("/routes")
    await ada.press("New route")
    form = page.locator("#new-route form")
    rows = form.locator("[data-steps] > [data-step]")
    await ada.write("Name", "swift", within=form)
    await rows.first.get_by_label("Model", exact=True).fill("m")
    await rows.first.get_by_role("spinbutton", name="Weight").fill("9")
    await rows.first.get_by_role("button", name="Add model").first.click()
    await rows.first.get_by_label("Model", exact=True).nth(1).fill("broken")
    await expect(rows.first.locator("[data-entries=models] [data-share]")).to_have_text(["90 %", "10 %"])
    await ada.press("Add step", within=form)
    await rows.nth(1).get_by_label("Model", exact=True).fill("gone")
    await ada.press("Add step", within=form)
    last = rows.nth(2)
    await last.get_by_label("Model", exact=True).fill("m")
    await last.locator("summary").click()
    await last.get_by_label("Maximum prompt tokens optional").fill("1000")
    await last.get_by_label("Images").select_option("no")
    await last.get_by_label("content filter").check()
    await last.get_by_role("button", name="Move up").click()
    await rows.nth(2).get_by_role("button", name="Remove step").click()
    await expect(rows).to_have_count(2)
    await ada.press("Add route", within=form)
    await ada.arrive("/routes/swift")
    route = await site.operate("GET", "/routes/swift")
    first, second = route["step"]
    assert first == {"models": [{"model": "m", "weight": 9}, "broken"]}
    assert (second["models"], second["if"]) == (["m"], {"max_prompt_tokens": 1000, "images": False})
    assert "content" in second["on"]
    verdicts = page.locator("#dry-run .badge")
    await expect(verdicts).to_have_text(["gets the request", "after a failure"])
    await ada.write("Prompt tokens", "5000")
    await expect(verdicts).to_have_text(["gets the request", "skipped"])
    await expect(page.get_by_text("the prompt has about 5000 tokens")).to_be_visible()
    await site.operate("DELETE", "/routes/swift")


async def test_a_route_is_tried_with_requests_changed_with_an_error_at_its_row_and_deleted(
    site: VisitedGateway, ada: Visitor
) -> None:
    page = ada.page
    steps = [{"models": ["m", "broken"]}, {"models": ["m"], "on": ["content"]}]
    await site.operate("PUT", "/routes/swift", {"step": steps})
    await ada.go("/routes/swift")
    await ada.press("Send test requests")
    await expect(page.locator("#test-results p")).to_have_text(
        [re.compile("answered in"), re.compile(".+"), re.compile(".+")]
    )
    await ada.write("Description optional", "short answers")
    ada.watch.refusals = {400}
    second_row = page.locator("[data-steps] > [data-step]").nth(1)
    boxes = second_row.locator("[data-cause]:checked")
    while await boxes.count():
        await boxes.first.uncheck()
    await ada.press("Save")
    await expect(second_row.locator("[data-step-error]")).to_contain_text("expected at least one cause")
    await expect(page.locator("[data-error-of=step]")).to_be_hidden()
    await second_row.get_by_label("timeout", exact=True).check()
    await expect(second_row.locator("[data-step-error]")).to_be_hidden()
    await ada.send("Save")
    assert (await site.operate("GET", "/routes/swift"))["step"][1]["on"] == ["timeout"]
    await ada.press("Delete route")
    await ada.confirm()
    await ada.arrive("/routes")
    assert (await site.operate("GET", "/routes"))["data"] == []


async def test_a_limit_is_added_changed_and_deleted(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    await ada.go("/limits")
    await ada.press("New limit")
    form = page.locator("#new-limit form")
    await ada.write("Name", "teams", within=form)
    await expect(form.get_by_label("Tag name or model pattern")).to_be_hidden()
    await ada.choose("For each", "tag", within=form)
    await ada.write("Tag name or model pattern", "team", within=form)
    await ada.write("Spending limit (USD) optional", "0.5", within=form)
    await ada.choose("Window", "rolling:7d", within=form)
    await ada.write("Warning threshold (0 to 1) optional", "0.8", within=form)
    await ada.write("Time zone optional", "Europe/Atlantis", within=form)
    await ada.write("Reason optional", "the budget of 2026", within=form)
    ada.watch.refusals = {400}
    await ada.press("Add limit", within=form)
    await expect(form.locator("[data-error-of=timezone]")).to_contain_text("expected an IANA time zone")
    await ada.write("Time zone optional", "Europe/Berlin", within=form)
    await ada.press("Add limit", within=form)
    await ada.arrive("/limits/teams")
    limit = await site.operate("GET", "/limits/teams")
    expected = {"of": "tag:team", "usd": 0.5, "window": "rolling:7d", "timezone": "Europe/Berlin", "soft": 0.8}
    assert {name: limit[name] for name in expected} == expected
    before = await site.operate("GET", "/limits/teams")
    settings = page.locator("form[data-limit]")
    await ada.write("Requests per minute optional", "9", within=settings)
    await ada.send("Save", within=settings)
    assert await site.operate("GET", "/limits/teams") == before | {"rpm": 9}
    await ada.press("Delete limit")
    await ada.confirm()
    await ada.arrive("/limits")
    assert (await site.operate("GET", "/limits"))["data"] == []
    trail = (await site.operate("GET", "/audit-trail?limit=10"))["data"]
    reasons = [row["detail"].get("reason") for row in trail if row["action"] == "limit.changed"]
    assert [None, "the budget of 2026"] in reasons


async def test_subjects_of_a_limit_are_found_and_the_limit_is_raised_for_a_time(
    site: VisitedGateway, ada: Visitor
) -> None:
    page = ada.page
    await site.operate("PUT", "/prices/m", {"usd_per_call": 0.01})
    await site.operate("PUT", "/limits/teams", {"of": "tag:team", "usd": 1})
    for team in ("web", "search", "web"):
        await site.call(CHAT, HELLO, None, **{"x-gateway-tags": f"team={team}"})
    await ada.go("/limits/teams")
    names = page.locator("tbody th")
    await expect(names).to_have_count(2)
    await ada.write("Find", "SEA")
    async with page.expect_navigation():
        await page.keyboard.press("Enter")
    await expect(names).to_have_text(["search"])
    await ada.press("Raise limit temporarily")
    dialog = page.locator("#raise-limit form")
    await ada.write("Amount to add (USD)", "2", within=dialog)
    await dialog.get_by_role("textbox", name="Ends").fill("2100-01-31T12:00")
    await ada.write("Reason optional", "the fair", within=dialog)
    await ada.send("Raise limit", within=dialog)
    raised = await site.operate("GET", "/limits/teams%20raised")
    assert (raised["raises"], raised["usd"], raised["until"][:7]) == ("teams", 2, "2100-01")
    await expect(page.get_by_role("link", name="teams raised")).to_be_visible()
    await ada.go("/limits/teams%20raised")
    await ada.press("Delete limit")
    await ada.confirm()
    await ada.arrive("/limits")
    assert [limit["name"] for limit in (await site.operate("GET", "/limits"))["data"]] == ["teams"]
    (row, *_) = (await site.operate("GET", "/audit-trail?action=limit.changed"))["data"]
    assert row["detail"]["reason"] == [None, "the fair"]
    await site.operate("DELETE", "/limits/teams")
    await site.operate("DELETE", "/prices/m")


async def test_saving_a_route_loses_no_field(site: VisitedGateway, ada: Visitor) -> None:
    """What the API has stored is the same after the form was saved: all fields, and names with commas and quotes."""
    step = {
        "models": [{"model": "m", "weight": 9}, 'a, "b"'],
        "channels": ["azure-*", "one,two"],
        "on": ["timeout", "content"],
        "if": {"min_prompt_tokens": 0, "max_prompt_tokens": 9_000, "images": False, "tools": True, "stream": True},
        "balance": "cost",
        "wait_s": 0,
        "shadow": {"models": ["copy", "d, e"], "share": 0.07, "max_running": 9},
    }
    fields = {"about": "Quick", "max_attempts": 3, "deadline_s": 0.5, "step": [{"models": ["m"]}, step]}
    await site.operate("PUT", "/routes/whole", fields)
    before = await site.operate("GET", "/routes/whole")
    await ada.go("/routes/whole")
    await ada.write("Description optional", "Quicker")
    await ada.send("Save")
    after = await site.operate("GET", "/routes/whole")
    assert after == before | {"about": "Quicker", "version": after["version"]}
    last = ada.page.locator("[data-steps] > [data-step]").nth(1)
    await last.get_by_label("Longest wait (s) optional").fill("")
    copies = last.get_by_role("group", name="Send copies to these models")
    for _ in range(2):
        await copies.get_by_role("button", name="Remove from the list").first.click()
    for label in ("Share of requests to copy (0 to 1) optional", "Maximum concurrent copies optional"):
        await last.get_by_label(label).fill("")
    await last.get_by_label("Balance channels by").select_option("latency")
    await ada.send("Save")
    kept = {name: value for name, value in step.items() if name not in {"wait_s", "shadow"}}
    assert (await site.operate("GET", "/routes/whole"))["step"][1] == kept | {"balance": "latency"}
    await site.operate("DELETE", "/routes/whole")


async def test_steps_move_by_keyboard_and_by_dragging_and_the_dry_run_follows(
    site: VisitedGateway, ada: Visitor
) -> None:
    """Nothing is saved by it; an error of an unsaved step is said at its row."""
    page = ada.page
    steps = [{"models": ["gone"]}, {"models": ["m"]}, {"models": ["endless"]}]
    route = await site.operate("PUT", "/routes/moved", {"step": steps})
    await ada.go("/routes/moved")
    verdicts, models = page.locator("#dry-run .badge"), page.locator("#dry-run > li > div:not(.row) > span")
    await expect(verdicts).to_have_text(["skipped", "gets the request", "after a failure"])
    rows = page.locator("[data-steps] > [data-step]")
    await rows.nth(1).get_by_label("Model", exact=True).first.press("Alt+ArrowUp")
    await expect(models).to_have_text(["m", "gone", "endless"])
    await expect(rows.first.get_by_label("Model", exact=True).first).to_be_focused()
    await expect(page.get_by_text("This is now step 1.")).to_be_attached()
    await expect(verdicts).to_have_text(["gets the request", "skipped", "after a failure"])
    await page.set_viewport_size({"width": 1440, "height": 1600})  # all steps are in sight
    await rows.nth(2).locator("[data-grip]").hover()
    await page.mouse.down()
    target = await rows.first.bounding_box()
    assert target is not None
    await page.mouse.move(target["x"] + 60, target["y"] + 3, steps=9)
    await page.mouse.up()
    await expect(models).to_have_text(["endless", "m", "gone"])
    ada.watch.refusals = {400}
    await rows.nth(1).get_by_role("spinbutton", name="Weight").fill("0")
    await expect(rows.nth(1).locator("[data-step-error]")).to_contain_text("expected a number from 1 to 10000")
    await expect(rows.nth(1).get_by_role("spinbutton", name="Weight")).to_have_attribute("aria-invalid", "true")
    await rows.nth(1).get_by_role("spinbutton", name="Weight").fill("1")
    await expect(rows.nth(1).locator("[data-step-error]")).to_be_hidden()
    await page.set_viewport_size(DESK)
    assert not await site.guests.scan(ada)
    assert (await site.operate("GET", "/routes/moved"))["version"] == route["version"]
    await site.operate("DELETE", "/routes/moved")


async def test_a_route_that_somebody_else_saved_meanwhile_is_shown_beside_this_one(
    site: VisitedGateway, ada: Visitor
) -> None:
    page = ada.page
    await site.operate("PUT", "/routes/shared", {"step": [{"models": ["m"]}]})
    await ada.go("/routes/shared")
    theirs = {"about": "theirs", "step": [{"models": ["m"]}, {"models": ["endless"], "on": ["timeout"]}]}
    await site.operate("PUT", "/routes/shared", theirs)
    await ada.write("Description optional", "mine")
    ada.watch.refusals = {409}
    await ada.press("Save")
    question = page.get_by_role("dialog", name="Please confirm")
    await expect(question).to_contain_text("Current version:")
    await expect(question).to_contain_text("2. endless; on: timeout")
    await expect(question).to_contain_text("mine")
    await ada.press("Cancel", within=question)
    assert (await site.operate("GET", "/routes/shared"))["about"] == "theirs"
    await ada.press("Save")
    async with page.expect_navigation():
        await ada.press("Replace with my version", within=question)
    route = await site.operate("GET", "/routes/shared")
    assert (route["about"], len(route["step"])) == ("mine", 1)
    await site.operate("DELETE", "/routes/shared")


async def test_a_queue_is_set_by_its_fields_changed_and_taken_back(site: VisitedGateway, ada: Visitor) -> None:
    new = site.known["provider"].channel("gpu", models=["endless"], max_concurrency=1)
    await site.operate("POST", "/channels?check=none", new)

    async def read_queue() -> Any:
        return (await site.operate("GET", "/channels/gpu"))["queue"]

    page = ada.page
    await ada.go("/channels/gpu")
    await ada.unfold("More settings")
    for label, value in (
        ("Longest wait (s)", DEFAULT_QUEUE.wait_s),
        ("Switch models after (s)", DEFAULT_QUEUE.switch_after_s),
    ):
        await expect(page.get_by_label(f"{label} optional")).to_have_accessible_description(f"Blank: {value:g}")
    await ada.write("Waiting requests optional", "5")
    await ada.send("Save")
    assert await read_queue() == attrs.asdict(QueueSettings(5))
    await ada.unfold("More settings")
    await ada.write("Longest wait (s) optional", "0")
    await page.get_by_label("Only one model at a time").check()
    ada.watch.refusals = {400}
    await ada.press("Save")
    await expect(page.locator('[data-error-of="queue.wait_s"]')).to_be_visible()
    await ada.write("Longest wait (s) optional", "2.5")
    await ada.send("Save")
    assert await read_queue() == attrs.asdict(QueueSettings(5, 2.5, one_model=True))
    await ada.unfold("More settings")
    await ada.write("Waiting requests optional", "")
    await ada.send("Save")
    assert await read_queue() is None
    await site.operate("DELETE", "/channels/gpu")


async def test_the_loop_rule_of_a_key_is_set_by_its_fields_and_taken_back(site: VisitedGateway, ada: Visitor) -> None:
    key = await site.operate("POST", "/keys", {"name": "looping", "account": "acme", "rpm": 600})

    async def read_rule() -> Any:
        return (await site.operate("GET", f"/keys/{key['id']}"))["loops"]

    await ada.go(f"/keys/{key['id']}")
    for times, window, rule in (("5", "", (5, 300)), ("5", "60", (5, 60)), ("7", "60", (7, 60)), ("", "60", None)):
        await ada.write("Maximum repeats of a conversation optional", times)
        await ada.write("Time window (seconds) optional", window)
        await ada.send("Save")
        assert await read_rule() == (None if rule is None else {"same_prompt": rule[0], "window_s": rule[1]})
    await site.operate("DELETE", f"/keys/{key['id']}")
