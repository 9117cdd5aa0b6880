"""Somebody at the console with a browser, who works everything by the keyboard unless a test says otherwise."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote

import attrs
from playwright.async_api import BrowserContext, Error, Locator, Page, TimeoutError, ViewportSize, expect  # noqa: A004

from tests.browser.chromium import Watch

PHONE: ViewportSize = {"width": 390, "height": 844}
DESK: ViewportSize = {"width": 1280, "height": 800}
MOST_TABS = 6
PATIENCE_MS = 10_000
_STOPS = """
const stops = () => [...(document.querySelector("dialog[open]") ?? document).querySelectorAll(
  "a[href], button, input, select, textarea, summary, video[controls], [tabindex]")].filter((one) =>
    one.tabIndex >= 0 && !one.disabled && one.checkVisibility({visibilityProperty: true}));
"""
_APPROACH = f"""
(target) => {{
  {_STOPS}
  const all = stops();
  const at = all.indexOf(target);
  if (at < 0) return "nowhere";
  const [near, key] = at ? [all[at - 1], "Tab"] : [all[1] ?? document.body, "Shift+Tab"];
  near.focus();
  return key;
}}
"""
_FOCUS = """
(target) => {
  const here = document.activeElement;
  const style = getComputedStyle(here);
  const itself = here === document.body || here.localName === "video"; // whose buttons show it themselves
  const shown = itself || (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0);
  return [here === target, shown, here.outerHTML.slice(0, 120)];
}
"""
_SLIPS = r"""
() => {
  const UNMEANT = /.*(<built-in|bound method|\bundefined\b|\bNone\b|\bNaN\b|\[object |Invalid Date|Markup\().*/g;
  const said = [];
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) said.push(`the page is ${page.scrollWidth} wide of ${page.clientWidth}`);
  for (const one of document.querySelectorAll("main *")) {
    const style = getComputedStyle(one);
    const plain = style.overflowX === "visible" && !one.closest("svg, select, option, thead, .hidden-text, [hidden]");
    if (plain && style.display !== "inline" && one.clientWidth && one.scrollWidth > one.clientWidth + 1) {
      said.push(`${one.scrollWidth} of ${one.clientWidth}: ${one.outerHTML.slice(0, 160)}`);
    }
  }
  for (const one of document.querySelectorAll("form [name]:not([type=radio])")) {
    // An id of another element in the form hides a field from scripts, which ask for it by its name.
    if (one.form.elements.namedItem(one.name) !== one) said.push(`another element has the name of ${one.outerHTML}`);
  }
  for (const one of document.querySelectorAll("a[href], button, input, select, textarea, summary")) {
    if (one.tabIndex < 0 && !one.matches("[role=tab], [hidden]")) said.push(`no Tab leads to ${one.outerHTML}`);
  }
  return [...said, ...document.querySelector("main").innerText.match(UNMEANT) ?? []];
}
"""


@attrs.define
class Visitor:
    """One browser context with one page, and what is kept an eye on."""

    url: str
    shots: Path
    context: BrowserContext
    page: Page
    watch: Watch

    async def go(self, path: str = "") -> None:
        """To a page of the console; fails where that is not there."""
        where = path if path.startswith("http") else f"{self.url}/console{path}"
        response = await self.page.goto(where)
        assert response is None or response.status < 400, (path, response.status, await self.page.inner_text("main"))

    async def shoot(self, name: str, *, whole: bool = True) -> None:
        """A screenshot for a reader, if a folder is named: it costs more than what is looked for on the page."""
        if os.environ.get("SCREENSHOTS"):
            await self.page.screenshot(path=self.shots / f"{name}.png", full_page=whole)

    def find(self, role: str, name: str, *, exact: bool = True) -> Locator:
        """What a screen reader would find under that name."""
        return self.page.get_by_role(role, name=name, exact=exact)  # type: ignore[arg-type]

    async def reach(self, target: Locator) -> None:
        """Go to it by Tab from what stands before it, and see that one can see where one is."""
        key = await target.evaluate(_APPROACH)
        if key == "nowhere":  # not shown yet
            await expect(target).to_be_visible()
            key = await target.evaluate(_APPROACH)
        for _ in range(MOST_TABS if key != "nowhere" else 0):  # a browser may have stops of its own between the two
            await self.page.keyboard.press(key)
            there, shown, what = await target.evaluate(_FOCUS)
            assert shown, f"nothing shows that this has the focus: {what}"
            if there:
                return
        raise AssertionError(f"no Tab leads to {target}")

    async def walk(self) -> tuple[list[str], list[str]]:
        """What can be worked on the page in the order in which it is written, and in that of Tab from its beginning."""
        written: list[str] = await self.page.evaluate(
            f"() => {{ {_STOPS} return stops().map((one) => one.outerHTML.slice(0, 200)) }}"
        )
        await self.page.evaluate("() => { document.activeElement.blur(); getSelection().collapse(document.body, 0); }")
        reached: list[str] = []
        for _ in written:
            await self.page.keyboard.press("Tab")
            reached.append(await self.page.evaluate("document.activeElement.outerHTML.slice(0, 200)"))
        return written, reached

    async def press(self, name: str, role: str = "button", within: Locator | None = None) -> None:
        """Enter, on the button (or the link) of that name."""
        scope = within or self.page
        target = scope.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
        await self.reach(target)
        await self.page.keyboard.press("Enter")

    async def send(self, name: str, role: str = "button", within: Locator | None = None) -> None:
        """Enter on a button (or a link), and wait for the page that comes of it."""
        async with self.page.expect_navigation():
            await self.press(name, role, within)

    async def unfold(self, summary: str) -> None:
        """What is folded away under those words."""
        await self.reach(self.page.locator("summary", has_text=summary))
        await self.page.keyboard.press("Enter")

    async def write(self, label: str, text: str, within: Locator | None = None) -> None:
        """Into the field of that label, over what is in it."""
        await (within or self.page).get_by_label(label, exact=True).fill(text)

    async def choose(self, label: str, option: str, within: Locator | None = None) -> None:
        """Of a select, by its words or its value."""
        await (within or self.page).get_by_label(label, exact=True).select_option(option)

    async def confirm(self, typed: str | None = None) -> None:
        """Agree to what the page asks, after typing the name that it wants."""
        dialog = self.page.get_by_role("dialog", name="Please confirm")
        agree = dialog.get_by_role("button").last
        if typed is not None:
            await expect(agree).to_be_disabled()
            await dialog.get_by_role("textbox").fill(typed)
        await self.press(await agree.inner_text(), within=dialog)

    async def arrive(self, path: str) -> None:
        """Wait until the browser is there, and nowhere else."""
        wanted = f"{self.url}/console{path}"
        try:
            await self.page.wait_for_url(lambda url: unquote(url) == wanted, timeout=PATIENCE_MS)
        except TimeoutError as error:
            raise AssertionError(f"wanted {wanted}, is at {self.page.url}") from error

    async def find_slips(self) -> list[str]:
        """What is wider than its box, what no Tab leads to, and what no author can have meant to be read."""
        found: list[str] = await self.page.evaluate(_SLIPS)
        return found

    async def forget(self) -> None:
        """As a browser that nobody has used."""
        for tab in self.context.pages:
            if tab != self.page:
                await tab.close()
        await self.page.unroute_all()
        blank = f"{self.url}/console/static/sign.svg"  # of the same site: its process stays warm
        try:
            await self.page.goto(blank)
        except Error:  # the test ended as its last press had begun to lead elsewhere
            await self.page.goto(blank)
        debugger = await self.context.new_cdp_session(self.page)
        await debugger.send("Storage.clearDataForOrigin", {"origin": self.url, "storageTypes": "local_storage"})
        await debugger.detach()
        await self.page.emulate_media(color_scheme="light")
        await self.page.set_viewport_size(DESK)
        await self.context.clear_cookies()
        await self.context.clear_permissions()


Enter = Callable[..., Awaitable[Visitor]]
"""``ada = await enter("ada", "administrator")``: what the fixture ``enter`` is."""
