"""Every page of the console, as its administrators, members and viewers see it: in light, in dark and on a phone.

Each page is loaded three times and checked for accessibility problems. With SCREENSHOTS=folder the images are kept.
"""

import os
import random
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from gateway.server.console.language import CHINESE, COOKIE, read_catalogue
from gateway.server.console.routes import ROOT, list_pages
from gateway.server.help.pages import read_chapters
from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway
from tests.browser.seed import open_used_gateway
from tests.browser.user import DESK, PHONE, Enter, Visitor
from tests.support.gateway import CHAT

pytestmark = BROWSER

SHOWN: Mapping[str, str] = {
    "overview": "",
    "playground-chat": "/playground",
    "playground-images": "/playground?mode=images",
    "playground-video": "/playground?mode=video",
    "playground-speech": "/playground?mode=speech",
    "playground-transcription": "/playground?mode=transcription",
    "connect": "/connect",
    "keys": "/keys",
    "key": "/keys/{laptop}",
    "requests": "/requests",
    "request": "/requests/{answered}",
    "request-failed": "/requests/{failed}",
    "request-kept": "/requests/{kept}",
    "requests-drawer": "/requests?request={failed}",
    "requests-sums": "/requests?last=7d&status=200",
    "fallback": "/requests/{failed}/fallback",
    "sessions": "/sessions",
    "session": "/sessions/{session}",
    "live": "/live",
    "videos": "/videos",
    "video-done": "/videos/{done}",
    "video-running": "/videos/{on}",
    "batches": "/batches",
    "batch": "/batches/{batch}",
    "files": "/files",
    "models": "/models",
    "model": "/models/m?key={laptop}",
    "model-route": "/models/fast",
    "channels": "/channels",
    "new-channel": "/new-channel",
    "channel-weights": "/channel-weights?model=m",
    "routes": "/routes",
    "route": "/routes/fast?prompt_tokens=5000",
    "usage": "/usage?end_user=user-0&span=30d",
    "end-users": "/end-users",
    "tags": "/tags?tag=team&span=30d",
    "limits": "/limits",
    "limit": "/limits/each%20user%20of%20the%20app",
    "channel": "/channels/relay",
    "accounts": "/accounts",
    "account-of": "/accounts/north",
    "members": "/members",
    "prices": "/prices?search=gpt-4o",
    "audit": "/audit",
    "settings": "/settings",
    "health": "/health",
    "nodes": "/nodes",
    "account": "/account",
}
"""Every page that somebody who is signed in can see, as an administrator does: by what its pictures are called."""
VARIANTS: Mapping[str, str] = {
    "overview-hours": "?span=24h",
    "overview-of-north": "?account=north",
    "key-from-the-file": "/keys/{file_key}",
    "requests-none": "/requests?text=nothing&since=2031-01-01&until=2031-01-02",
    "video-failed": "/videos/{bad}",
    "batch-failed": "/batches/{bad_batch}",
    "channel-from-the-file": "/channels/studio",
    "new-channel-fields": "/new-channel?provider=vertex",
    "limit-of-nobody": "/limits/each%20user%20of%20the%20app?find=nobody",
    "limit-raise": "/limits/fair",
}
"""The same pages in another state."""
ALONE: Mapping[str, str] = {
    "sign-in": "/sign-in",
    "setup-done": "/setup",
    "join-cut-short": "/join",
    "join-gone": "/join#not-good",
    "my-key-asked-for": "/my-key",
    "nothing-there": "/nothing-of-that-name",
}
OPERATORS = (
    "/channels",
    "/new-channel",
    "/channel-weights",
    "/accounts",
    "/members",
    "/prices",
    "/audit",
    "/settings",
    "/health",
    "/nodes",
    "/routes",
    "/limits",
)
ALL = os.environ.get("CI") == "true" or bool(os.environ.get("SCREENSHOTS"))
HEADERS = {"If-None-Match"}
"""Names that pages may show, although they look like a value of Python's."""
WIDTHS = (1024, 1280, 1440, 1920, 2560, 390)
WIDTH_PARTS = 4
_WIDE_TABLES = """
() => [...document.querySelectorAll("main table")].filter((table) => table.checkVisibility()).map((table) => {
  const card = table.closest(".table, .card, dialog, main");
  return [Math.ceil(table.getBoundingClientRect().width), card.clientWidth, table.id || table.className];
}).filter(([width, room]) => width > room + 1)
"""
_CUT_CELLS = """
() => [...document.querySelectorAll(".rows tr > .number, .rows tr > .time")].filter((cell) =>
  cell.checkVisibility()
  && cell.getBoundingClientRect().right > cell.closest(".table").getBoundingClientRect().right + 1
).map((cell) => cell.textContent)
"""
_CUT_FIELDS = """
() => [...document.querySelectorAll("main input")].filter((field) =>
  field.checkVisibility() && field.type !== "file" && field.value.length <= 20
  && field.scrollWidth > field.clientWidth + 1
).map((field) => [field.scrollWidth, field.clientWidth, field.outerHTML.slice(0, 160)])
"""
"""Fields too small for the at most 20 characters in them."""
_MISPLACED = """
() => {
  const wrong = [], box = (one) => one.getBoundingClientRect();
  const seen = (selector, within) => [...within.querySelectorAll(selector)].filter((one) => one.checkVisibility());
  for (const fields of seen("main .fields:not(.lists)", document)) {
    const rows = new Map();
    for (const field of seen(":scope > .field", fields)) {
      const [control] = seen("input:not([type=checkbox]), select, button", field);
      if (!control || control.closest("[data-entry]") || control.matches("[data-entry-add]")) continue;
      const top = rows.get(Math.round(box(field).top)) ?? box(control).top;
      if (Math.abs(top - box(control).top) > 1) wrong.push(["lower", field.textContent.trim().slice(0, 40)]);
      rows.set(Math.round(box(field).top), top);
    }
  }
  for (const value of seen("main .stat .value", document))
    if (box(value).height > 1.8 * parseFloat(getComputedStyle(value).fontSize))
      wrong.push(["broken", value.textContent]);
  for (const plot of seen("main .plot-area", document)) {
    const texts = seen(".marks text, .rows text", plot).map((text) => [box(text), text.textContent]);
    for (const [index, [one, text]] of texts.entries())
      for (const [other, name] of texts.slice(index + 1)) {
        const beside = one.left >= other.right + 2 || other.left >= one.right + 2;
        if (!beside && one.top < other.bottom && other.top < one.bottom) wrong.push(["touch each other", text, name]);
      }
  }
  const pen = document.createElement("canvas").getContext("2d");
  for (const select of seen("main .filters select", document)) {
    const style = getComputedStyle(select), text = select.selectedOptions[0]?.text ?? "";
    pen.font = `${style.fontSize} ${style.fontFamily}`;
    const room = select.clientWidth - 2 * parseFloat(style.paddingLeft) - 12;
    if (text.length <= 14 && pen.measureText(text).width > room) wrong.push(["cut", text]);
  }
  return wrong;
}
"""
"""Fields that stand lower than those beside them, figures in two lines, labels of an axis that touch each other, and
chosen words that a filter cuts."""
_TEXTS = """
() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) {
    const { parentElement, data } = walker.currentNode;
    if (!parentElement.closest("script, style, code, pre, .inert-text, [lang=en]")) texts.push(data);
  }
  for (const one of document.querySelectorAll("[title], [aria-label], [placeholder]"))
    for (const name of ["title", "aria-label", "placeholder"]) texts.push(one.getAttribute(name) ?? "");
  return texts.map((text) => text.replace(/\\s+/g, " ").trim());
}
"""
MAX_PAGE_BYTES = 80_000
"""What the page and all that it loads may weigh on the wire, without pictures."""
_WEIGHT = """
() => performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
  .filter((one) => one.initiatorType !== "fetch" && !/\\.(svg|png|mp4|wav)$|\\/content$/.test(one.name))
  .reduce((sum, one) => sum + one.encodedBodySize, 0)
"""
_TALL_ROWS = """
() => [...document.querySelectorAll(".lines tbody tr")]
  .filter((row) => row.checkVisibility() && !row.querySelector(".phone-rest"))
  .map((row) => [row.getBoundingClientRect().height, row.textContent]).filter(([height]) => height > 64)
"""
"""Rows with more than two lines of 22 pixels, and what is around them."""
_OPEN_ALL = "for (const one of document.querySelectorAll('details')) one.open = true"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with open_used_gateway(guests, tmp_path_factory.mktemp("pages"), template_path, has_history=True) as opened:
        yield opened


async def look(site: VisitedGateway, visitor: Visitor, name: str, path: str, frame: str = "main") -> list[str]:
    """Three looks at a page, and its dialogs; says what is wrong with it. The frame of all is scanned but once."""
    page = visitor.page
    await page.set_viewport_size(DESK)
    await page.emulate_media(color_scheme="light")
    await visitor.go(path)
    await visitor.shoot(f"{name}-light")
    wrong = await site.guests.scan(visitor, frame)
    await page.emulate_media(color_scheme="dark")
    await visitor.shoot(f"{name}-dark", whole=False)
    await page.evaluate(_OPEN_ALL)
    wrong += await visitor.find_slips()
    await page.set_viewport_size(PHONE)
    await page.emulate_media(color_scheme="light")
    wrong += await visitor.find_slips()
    await visitor.shoot(f"{name}-phone")
    return [f"{name}: {one}" for one in wrong]


@pytest.mark.parametrize("part", [0, 1])
async def test_every_page_can_be_seen_read_and_worked_by_anybody(site: VisitedGateway, enter: Enter, part: int) -> None:
    """Nothing leaves its box, nothing serious is found, and nothing is said in the browser's console.

    All of them in CI, and where somebody wants the pictures; else half of them, others each time: a look is dear.
    """
    ada = await enter("ada", "administrator")
    wrong: list[str] = []
    pages = list(SHOWN.items())[part::2]
    if not ALL:
        pages = random.sample(pages, len(pages) // 2)
    for name, path in pages:
        wrong += await look(site, ada, name, path.format_map(site.known), "html" if name == "keys" else "main")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", range(WIDTH_PARTS))
async def test_no_table_is_wider_than_its_card_and_no_page_is_heavy(
    site: VisitedGateway, enter: Enter, part: int
) -> None:
    """On every page, at every width. No number of a request is outside of the card; on a phone rows have two lines."""
    ada = await enter("ada", "administrator")
    await add_long_names(site)
    wide: list[Any] = []
    for name, path in list(SHOWN.items())[part::WIDTH_PARTS]:
        await ada.go(path.format_map(site.known))
        wide += [(name, size) for size in [await ada.page.evaluate(_WEIGHT)] if not 10_000 < size < MAX_PAGE_BYTES]
        for width in WIDTHS:
            await ada.page.set_viewport_size({"width": width, "height": 800})
            wide += [(name, width, *one) for one in await ada.page.evaluate(_WIDE_TABLES)]
            for measure in (_CUT_FIELDS, _MISPLACED):
                wide += [(name, width, *one) for one in await ada.page.evaluate(measure)]
            if width == PHONE["width"]:
                wide += [(name, width, *row) for row in await ada.page.evaluate(_TALL_ROWS)]
            if name.startswith("requests"):
                wide += [(name, width, text) for text in await ada.page.evaluate(_CUT_CELLS)]
    assert not wide, "\n".join(map(str, wide))


async def add_long_names(site: VisitedGateway) -> None:
    """A request with a long model, by a key with a long name."""
    if "long" in site.known:
        return
    key = "a-key-with-a-name-much-longer-than-any-column-of-the-list-is"
    secret = site.known["long"] = (await site.operate("POST", "/keys", {"name": key, "account": "acme"}))["secret"]
    before = len(await site.wait_for_rows(0))
    body = {"model": f"vendor/{'a-long-name-' * 8}", "messages": []}
    await site.call(CHAT, body, secret)
    await site.wait_for_rows(before + 1)


@pytest.mark.parametrize("part", [0, 1])
async def test_every_page_can_be_read_by_anybody_in_chinese(site: VisitedGateway, enter: Enter, part: int) -> None:
    """No English texts of two or more words that have a translation: a single word may be a name that a person gave.

    And nothing serious is found in light and in dark: on all pages in CI, else on a third of them, others each time.
    """
    ada = await enter("ada", "administrator")
    cookie = {"name": COOKIE, "value": CHINESE, "url": f"{site.url}{ROOT}"}
    await ada.context.add_cookies([cookie])  # type: ignore[list-item]
    messages = read_catalogue(CHINESE).messages
    english = {text for text, translation in messages.items() if " " in text and translation != text}
    found: set[tuple[str, str]] = set()
    pages = dict(list(SHOWN.items())[part::2])
    scanned = set(pages) if ALL else set(random.sample(sorted(pages), len(pages) // 3))
    for name, path in pages.items():
        await ada.go(path.format_map(site.known))
        if name in scanned:
            found |= {(name, one) for one in await site.guests.scan(ada, "main")}
        found |= {(name, text) for text in await ada.page.evaluate(_TEXTS) if text in english}
    assert await ada.page.locator("html").get_attribute("lang") == CHINESE
    assert not found, "\n".join(map(str, sorted(found)))


async def test_a_scan_finds_what_is_faint_in_dark_alone_and_in_a_dialog(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada", "administrator")
    await ada.go("/live")
    await ada.page.evaluate(
        """() => document.body.insertAdjacentHTML(
          "beforeend", "<dialog id=faint aria-label=x><p><font color=#333344>faint</font></p></dialog>")"""
    )
    (found,) = await site.guests.scan(ada, "main")
    assert found.startswith("in dark: dialog faint: serious color-contrast")


async def test_the_script_of_a_dry_run_shows_reasons_in_chinese(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada", "administrator")
    await ada.context.add_cookies([{"name": COOKIE, "value": CHINESE, "url": f"{site.url}{ROOT}"}])
    steps = [{"models": ["gone"]}, {"models": ["m"], "on": ["timeout"]}, {"models": ["m"], "if": {"tools": True}}]
    await site.operate("PUT", "/routes/picky", {"step": steps})
    await ada.go("/routes/picky")
    await expect(ada.page.locator("[data-walk] ul")).to_have_count(len(steps))  # only the script lists the channels
    wanted = ["没有渠道向该调用方提供其模型", "前面的步骤因“不可用”被跳过", "请求没有工具"]
    await expect(ada.page.locator("[data-walk] p")).to_contain_text(wanted)
    await site.operate("DELETE", "/routes/picky")


async def test_what_pages_look_like_in_another_state(site: VisitedGateway, enter: Enter) -> None:
    ada = await enter("ada", "administrator")
    wrong: list[str] = []
    for name, path in VARIANTS.items():
        await ada.go(path.format_map(site.known))
        await ada.shoot(f"{name}-light")
        wrong += [f"{name}: {one}" for one in await ada.find_slips()]
    assert not wrong, "\n".join(wrong)


async def test_pages_before_anybody_is_signed_in(site: VisitedGateway, enter: Enter) -> None:
    visitor = await enter()
    visitor.watch.refusals = {404}
    link = await site.operate("POST", "/links", {"account": "acme", "role": "member"})
    wrong: list[str] = []
    for name, path in {**ALONE, "join": f"/join#{link['token']}"}.items():
        if path.startswith("/nothing"):
            await visitor.page.set_viewport_size(DESK)
            await visitor.page.goto(f"{site.url}{ROOT}{path}")
            await expect(visitor.find("heading", "Page not found")).to_be_visible()
            await visitor.shoot(f"{name}-light")
        else:
            await visitor.go("/sign-in")  # an address that differs by its fragment alone is no other page
            wrong += await look(site, visitor, name, path, "html")
    assert not wrong, "\n".join(wrong)


async def test_the_reference_can_be_read_and_searched_by_anybody(site: VisitedGateway, enter: Enter) -> None:
    visitor = await enter()
    page = visitor.page
    nothing = page.get_by_text("Nothing here matches that.")
    await visitor.go(f"{site.url}/docs")
    await visitor.shoot("docs-light", whole=False)
    await page.set_viewport_size(PHONE)
    assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    await page.set_viewport_size(DESK)
    await visitor.write("Filter", "zzzzzz")
    await expect(nothing).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(nothing).to_be_hidden()
    await visitor.write("Filter", "running/{id}")
    await expect(page.locator("article.operation:visible")).to_have_count(1)
    await expect(page.get_by_text("1 of ")).to_be_visible()
    await page.evaluate("for (const one of document.querySelectorAll('.operation[hidden]')) one.remove()")  # it is long
    await page.evaluate(_OPEN_ALL)
    wrong = await site.guests.scan(visitor)
    await page.emulate_media(color_scheme="dark")
    await visitor.shoot("docs-dark")
    await page.set_viewport_size(PHONE)
    wrong += await visitor.find_slips()
    await visitor.shoot("docs-phone")
    assert not wrong, "\n".join(wrong)


async def test_the_documentation_can_be_read_by_anybody(site: VisitedGateway, enter: Enter) -> None:
    visitor = await enter()
    page = visitor.page
    await visitor.go(f"{site.url}/help")
    await visitor.shoot("help-light", whole=False)
    wrong = await site.guests.scan(visitor)
    await page.keyboard.press("/")
    await page.keyboard.type("claude code")
    await page.keyboard.press("Enter")
    await page.get_by_role("link", name="Claude Code", exact=True).wait_for()
    await visitor.shoot("help-search", whole=False)
    wrong += await site.guests.scan(visitor)
    await page.set_viewport_size(PHONE)
    wrong += await visitor.find_slips()
    await page.get_by_role("link", name="Claude Code", exact=True).click()
    await expect(page.get_by_role("heading", name="Claude Code", exact=True)).to_be_in_viewport()
    await page.locator("[rel=next]").click()
    await expect(page).to_have_title("I have a key · Model gateway")
    for each in (each for chapter in read_chapters() for each in chapter.pages):
        await visitor.go(f"{site.url}{each.url}")
        wrong += [f"{each.url}: {one}" for one in await visitor.find_slips() if one not in HEADERS]
    await expect(page.locator(".contents")).not_to_have_attribute("open", "")
    await visitor.shoot("help-phone", whole=False)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("name", "role"), [("ben", "member"), ("vera", "viewer")])
async def test_who_is_no_administrator_sees_nothing_of_what_is_theirs(
    site: VisitedGateway, enter: Enter, name: str, role: str
) -> None:
    """No page, no word of the menu, no channel, no other account; a viewer nothing either that changes anything."""
    ben = await enter(name)
    for path in (
        "",
        "/connect",
        "/keys",
        "/keys/{laptop}",
        "/requests",
        "/requests/{failed}",
        "/sessions",
        "/sessions/{session}",
        "/end-users",
        "/tags",
        "/videos/{done}",
        "/batches/{batch}",
        "/live",
    ):
        await ben.go(path.format_map(site.known))
        seen = await ben.page.inner_text("main")
        for theirs in ("relay", "studio", "north", "partners"):
            assert theirs not in seen, f"{path} shows {theirs}"
        if role == "viewer":
            shown = await ben.page.locator("main button:not([role=tab]):visible").all_inner_texts()
            assert {text for text in shown if text and "Copy" not in text and text not in VIEWERS} == set(), path
    await ben.shoot(f"live-as-{role}", whole=False)
    menu = ben.page.get_by_role("navigation", name="Main")
    assert [await entry.inner_text() for entry in await menu.get_by_role("listitem").all()] == [
        entry for entry in MENU if role == "member" or entry != "Playground"
    ]
    await expect(ben.page.get_by_role("heading", name="Administration")).to_have_count(0)
    for path in (*OPERATORS, *(["/playground"] if role == "viewer" else [])):
        answer = await ben.context.request.get(f"{site.url}{ROOT}{path}", headers={"Sec-Fetch-Site": "same-origin"})
        assert (answer.status, "Administrators only" in await answer.text()) == (403, True), path


MENU = (
    "Overview",
    "Playground",
    "Connect",
    "Keys",
    "Requests",
    "Sessions",
    "End users",
    "Tags",
    "Live",
    "Videos",
    "Batches",
    "Files",
    "Models",
)
VIEWERS = {"Find", "Follow", "Columns", "Apply", "Show", "Change passphrase", "Set up second factor"}
"""What a viewer can press: to find something, and what is its own."""


async def test_no_page_is_left_out() -> None:
    """A new page is added to ``SHOWN``, and is scanned, weighed and measured at every width then."""
    looked = {re.split("[?#]", path)[0] for path in (*SHOWN.values(), *ALONE.values())}
    patterns = {page.path: re.sub(r"\{\w+\}", "[^/]+", page.path.rstrip("/")) for page in list_pages()}
    assert {
        path for path, pattern in patterns.items() if not any(re.fullmatch(pattern, name) for name in looked)
    } == set()
