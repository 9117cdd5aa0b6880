"""The list of requests: its width, its drawer with an address, saved views, columns, new rows, and a fallback."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway
from tests.browser.seed import open_used_gateway
from tests.browser.user import DESK, Enter, Visitor
from tests.support.gateway import CHAT

pytestmark = BROWSER

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with open_used_gateway(guests, tmp_path_factory.mktemp("requests"), template_path) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def ada(enter: Enter) -> AsyncIterator[Visitor]:
    visitor = await enter("ada")
    yield visitor
    await visitor.page.set_viewport_size(DESK)


def read_id(page: Page) -> str | None:
    """Return the id of the request that the address shows in the drawer."""
    found = re.search(r"[?&]request=(req_\w+)", page.url)
    return found and found[1]


async def test_a_row_is_32_pixels_high(site: VisitedGateway, ada: Visitor) -> None:
    for _ in range(50):
        await site.call(CHAT, HELLO, site.known["laptop_secret"])
    await site.wait_for_rows(50)
    await ada.go("/requests")
    rows = ada.page.locator("[data-row]")
    await expect(rows).to_have_count(50)
    heights = await rows.evaluate_all("(rows) => rows.map((row) => Math.round(row.getBoundingClientRect().height))")
    assert set(heights) <= {32, 33}


async def test_why_a_request_failed_is_two_actions_from_the_overview(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    await ada.go()
    async with page.expect_navigation():
        await page.get_by_role("link", name="upstream_error").first.click()
    await page.locator("[data-row]", has_text="broken").first.click()
    drawer = page.locator("#drawer")
    await expect(drawer.get_by_text("The machine is on fire").first).to_be_visible()
    await expect(drawer.get_by_role("heading", name="Attempts")).to_be_visible()
    await expect(drawer.get_by_text("status 502").first).to_be_visible()


async def test_what_a_user_spent_this_week_is_three_actions(site: VisitedGateway, ada: Visitor) -> None:
    """And the sum is that of the rows."""
    page = ada.page
    await ada.go()
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Go to").fill("u-17")
    await expect(page.get_by_role("option", name="u-17")).to_be_visible()
    async with page.expect_navigation():
        await page.keyboard.press("Enter")
    rows = (await site.operate("GET", "/requests?end_user=u-17&limit=1000"))["data"]
    spent_usd = sum(row["cost_usd"] for row in rows)
    assert spent_usd > 0
    sums = page.locator(".sums")
    await expect(sums).to_contain_text(f"{len(rows)} requests")
    await expect(sums.locator("strong")).to_have_text(f"${spent_usd:.4f}".rstrip("0"))
    await expect(page.locator("[data-row]")).to_have_count(len(rows))
    failed = sum(row["outcome"] in {"failed", "refused"} for row in rows)
    async with page.expect_navigation():
        await sums.get_by_role("link", name=f"{failed} failed").click()
    await expect(page.locator("[data-row]")).to_have_count(failed)


async def test_the_drawer_has_an_address_that_can_be_sent_and_left(site: VisitedGateway, ada: Visitor) -> None:
    page, drawer = ada.page, ada.page.locator("#drawer")
    await ada.go("/requests?status=error")
    await page.locator("[data-row]").first.click()
    await expect(drawer).to_be_visible()
    first = read_id(page)
    assert first
    await page.keyboard.press("j")
    await expect(drawer).not_to_contain_text(first)
    second = read_id(page)
    assert second not in {None, first}
    await expect(drawer).to_contain_text(str(second))
    sent = page.url
    await page.keyboard.press("k")
    await expect(drawer).to_contain_text(first)
    assert read_id(page) == first
    await page.go_back()
    await expect(drawer).to_be_hidden()
    assert page.url.endswith("/requests?status=error")
    await page.go_forward()
    await expect(drawer).to_contain_text(first)
    await page.keyboard.press("Escape")
    await expect(drawer).to_be_hidden()
    await page.wait_for_url(re.compile(r"status=error$"))

    await ada.go(sent.partition("/console")[2])
    await expect(drawer).to_contain_text(str(second))
    await ada.press("Close", within=drawer)
    await expect(drawer).to_be_hidden()
    await page.wait_for_url(re.compile(r"status=error$"))
    await page.keyboard.press("j")
    await expect(page.locator("[data-row] th a:focus")).to_have_count(1)
    await page.get_by_label("Search by error or request ID").press("j")
    await expect(page.get_by_label("Search by error or request ID")).to_have_value("j")
    await ada.go("/requests?request=req_%3Cscript%3E")
    await expect(drawer).to_be_hidden()


async def test_columns_are_chosen_and_kept(ada: Visitor) -> None:
    page = ada.page
    await ada.go("/requests")
    titles = page.locator(".rows thead th")
    usual = await titles.all_inner_texts()
    await ada.press("Columns")
    chooser = page.locator("#choose-columns")
    for name in ("Key", "First byte"):
        await chooser.get_by_label(name, exact=True).uncheck()
    await chooser.get_by_label("End user", exact=True).check()
    async with page.expect_navigation():
        await ada.press("Show columns", within=chooser)
    chosen = ["Time", "Model", "End user", "Channel", "Outcome", "Tokens", "Duration", "Cost"]
    await expect(titles).to_have_text(chosen)
    await ada.go("/requests?status=error")
    await expect(titles).to_have_text(chosen)
    await ada.press("Columns")
    async with page.expect_navigation():
        await ada.press("Reset", within=chooser)
    await expect(titles).to_have_text(usual)


async def test_a_view_is_saved_with_its_filters_used_and_deleted(ada: Visitor) -> None:
    page = ada.page
    views = page.get_by_role("navigation", name="Views")
    await ada.go("/requests?last=7d&end_user=u-17")
    await ada.press("Save view")
    await ada.write("Name", "<b>user 17</b>")
    await page.keyboard.press("Enter")
    view = views.get_by_role("link", name="<b>user 17</b>")
    await expect(view).to_have_attribute("aria-current", "true")
    await ada.go("/requests")
    async with page.expect_navigation():
        await view.click()
    assert "end_user=u-17" in page.url
    assert "last=7d" in page.url
    await ada.press("Delete the view <b>user 17</b>", within=views)
    await expect(view).to_have_count(0)
    await page.reload()
    await expect(view).to_have_count(0)


async def test_new_requests_come_into_the_list_while_it_is_followed(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    await ada.go("/requests?model=demo-chat")
    first = page.locator("[data-row]").first
    old = await first.locator("th a").get_attribute("href")
    await first.locator("th a").focus()
    await ada.find("button", "Follow").click()
    await expect(ada.find("button", "Follow")).to_have_attribute("aria-pressed", "true")
    await page.locator(f'[data-row] a[href="{old}"]').focus()
    await site.call(CHAT, HELLO, site.known["laptop_secret"])  # another model: no new row
    await site.call(CHAT, HELLO | {"model": "demo-chat"}, site.known["laptop_secret"])
    await expect(page.locator("[data-row].fresh")).to_have_count(1)
    await expect(first.locator("th a")).not_to_have_attribute("href", str(old))
    await expect(page.locator(f'[data-row] a[href="{old}"]')).to_be_focused()
    await first.click()
    await expect(page.locator("#drawer")).to_be_visible()
    await page.keyboard.press("Escape")
    await ada.find("button", "Follow").click()
    await expect(ada.find("button", "Follow")).to_have_attribute("aria-pressed", "false")


async def test_a_model_becomes_the_fallback_of_a_failed_request_in_two_clicks(
    site: VisitedGateway, ada: Visitor
) -> None:
    """Nothing is saved before the second; then the same request is answered."""
    page = ada.page
    await ada.go(f"/requests?request={site.known['failed']}")
    drawer = page.locator("#drawer")
    await drawer.get_by_role("link", name="Add a fallback").click()
    await expect(page.get_by_role("heading", name="Fallback for broken")).to_be_visible()
    assert "broken" not in {route["name"] for route in (await site.operate("GET", "/routes"))["data"]}
    await expect(page.locator("#dry-run tbody tr")).to_have_count(2)
    async with page.expect_navigation():
        await ada.choose("Fallback model", "m")
    await expect(page.locator("#dry-run tbody tr").last).to_contain_text("m")
    theirs = await site.operate("PUT", "/routes/broken", {"step": [{"models": ["endless"]}]})
    ada.watch.refusals = {409}
    await page.get_by_role("button", name="Save fallback").click()
    await expect(page.get_by_text("There is a route 'broken' already")).to_be_visible()
    assert (await site.operate("GET", "/routes/broken"))["version"] == theirs["version"]
    await site.operate("DELETE", "/routes/broken")
    await page.get_by_role("button", name="Save fallback").click()
    await ada.arrive("/routes/broken")
    assert (await site.operate("GET", "/routes/broken"))["step"] == [{"models": ["broken"]}, {"models": ["m"]}]
    async with site.gateway.post(HELLO | {"model": "broken"}) as response:
        assert (response.status, (await response.json())["model"]) == (200, "m")
    await ada.go(f"/requests/{site.known['failed']}/fallback?model=m")
    await expect(page.get_by_text("This model is already a step.")).to_be_visible()
    await site.operate("DELETE", "/routes/broken")


async def test_a_fallback_is_not_saved_over_a_route_that_was_changed_meanwhile(
    site: VisitedGateway, ada: Visitor
) -> None:
    ada.watch.refusals = {409}
    page, steps = ada.page, [{"models": ["endless"]}]
    await ada.go(f"/requests/{site.known['failed']}/fallback?model=m")
    await site.operate("PUT", "/routes/broken", {"about": "made meanwhile", "step": steps})
    await page.get_by_role("button", name="Save fallback").click()
    await expect(page.get_by_role("alert")).to_contain_text("There is a route 'broken' already")
    await page.reload()
    await site.operate("PUT", "/routes/broken", {"about": "changed meanwhile", "cache_ttl_s": 60, "step": steps})
    await page.get_by_role("button", name="Save fallback").click()
    await expect(page.get_by_role("alert")).to_contain_text("was changed meanwhile")
    kept = await site.operate("GET", "/routes/broken")
    assert (kept["about"], kept["cache_ttl_s"], kept["step"]) == ("changed meanwhile", 60, steps)
    await site.operate("DELETE", "/routes/broken")


async def test_a_failed_request_is_replayed_on_another_model_which_becomes_the_fallback_in_four_clicks(
    site: VisitedGateway, ada: Visitor
) -> None:
    """The form is sent with Enter, which is the second of them: the name of the model is typed before."""
    page = ada.page
    await site.operate("PUT", "/settings/requests/keep_bodies", {"value": "all"})
    async with await site.call(
        CHAT, HELLO | {"model": "broken", "messages": [{"role": "user", "content": "Hi"}]}
    ) as answer:
        request_id = answer.headers["X-Request-Id"]
    await site.operate("PUT", "/settings/requests/keep_bodies", {"value": "none"})
    await ada.go(f"/requests?request={request_id}")
    drawer = page.locator("#drawer")
    await ada.press("Show", within=drawer)
    await drawer.get_by_label("Send again to").fill("m")
    await page.keyboard.press("Enter")
    await drawer.get_by_role("link", name="Make m the fallback").click()
    await page.get_by_role("button", name="Save fallback").click()
    await ada.arrive("/routes/broken")
    assert (await site.operate("GET", "/routes/broken"))["step"] == [{"models": ["broken"]}, {"models": ["m"]}]
    await site.operate("DELETE", "/routes/broken")


async def test_a_request_is_copied_as_code(site: VisitedGateway, ada: Visitor) -> None:
    page = ada.page
    await ada.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await ada.go(f"/requests/{site.known['answered']}")
    for name, words in (
        ("curl", ["curl -N", "Authorization: Bearer $GATEWAY_KEY", '"model":"m"']),
        ("Python", ["urllib.request.urlopen(", '"stream": True', '"model": "m"']),
        ("JavaScript", ["await fetch(", "process.env.GATEWAY_KEY", '"model": "m"']),
        ("Go", ["strings.NewReader(", 'os.Getenv("GATEWAY_KEY")', '\\"model\\":\\"m\\"']),
    ):
        await ada.press(f"Copy as {name}")
        await expect(page.get_by_text("Copied with a sample prompt").last).to_be_visible()
        text = await page.evaluate("navigator.clipboard.readText()")
        assert [word for word in [*words, f"{site.url}{CHAT}"] if word not in text] == []
        if name == "Python":
            compile(text, "copied.py", "exec")


async def test_what_a_request_asked_is_copied_and_taken_into_the_playground(site: VisitedGateway, ada: Visitor) -> None:
    """Once somebody has asked for its kept body."""
    page = ada.page
    await site.operate("PUT", "/settings/requests/keep_bodies", {"value": "all"})
    messages = [
        {"role": "system", "content": "Answer like a sailor."},
        {"role": "user", "content": "How is the sea?"},
        {"role": "assistant", "content": "Calm, 'as ever'."},
        {"role": "user", "content": "And the wind?"},
    ]
    async with await site.call(CHAT, HELLO | {"messages": messages, "temperature": 0.3}) as answer:
        request_id = answer.headers["X-Request-Id"]
    await site.operate("PUT", "/settings/requests/keep_bodies", {"value": "none"})
    await ada.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await ada.go(f"/requests?request={request_id}")
    drawer = page.locator("#drawer")
    await ada.press("Show", within=drawer)
    await expect(drawer.locator("[data-parameters]")).to_contain_text("temperature")
    await expect(drawer.locator("[data-parameters]")).not_to_contain_text("sailor")
    await ada.press("Copy as Python", within=drawer)
    await expect(page.get_by_text("Copied with the kept prompt").last).to_be_visible()
    text = await page.evaluate("navigator.clipboard.readText()")
    assert "Answer like a sailor." in text
    compile(text, "copied.py", "exec")
    await ada.write("Send again to", "demo-chat", within=drawer)
    await ada.press("Replay", within=drawer)
    fallback = drawer.get_by_role("link", name="Make demo-chat the fallback")
    await expect(fallback).to_have_attribute("href", f"/console/requests/{request_id}/fallback?model=demo-chat")
    await ada.press("Open in playground", "link", within=drawer)
    await expect(page.get_by_label("Message", exact=True)).to_have_value("And the wind?")
    await expect(page.get_by_label("System prompt optional")).to_have_value("Answer like a sailor.")
    await expect(page.locator("#turns .said")).to_have_text(["How is the sea?", "Calm, 'as ever'."])
    await page.reload()
    await expect(page.get_by_label("Message", exact=True)).to_have_value("")
