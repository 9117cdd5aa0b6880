"""Somebody at the console with a browser, who works everything by the keyboard unless a test says otherwise."""

from pathlib import Path

import attrs
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.browser.chromium import Watch

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 800}
MOST_TABS = 160
_FOCUS = """
(target) => {
  const here = document.activeElement;
  const style = here && getComputedStyle(here);
  const shown = here && here.matches(":focus-visible")
    ? (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || here === document.body : true;
  return [here === target, shown, here ? here.outerHTML.slice(0, 120) : ""];
}
"""
_OUTSIDE = """
() => {
  const said = [];
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) said.push(`the page is ${page.scrollWidth} wide of ${page.clientWidth}`);
  for (const one of document.querySelectorAll("main *")) {
    const style = getComputedStyle(one);
    const plain = style.overflowX === "visible" && !one.closest("svg, select, option, .hidden-text, [hidden]");
    if (plain && style.display !== "inline" && one.clientWidth && one.scrollWidth > one.clientWidth + 1) {
      said.push(`${one.scrollWidth} of ${one.clientWidth}: ${one.outerHTML.slice(0, 160)}`);
    }
  }
  return said;
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
        """A picture for whoever wants to look at it."""
        await self.page.screenshot(path=self.shots / f"{name}.png", full_page=whole)

    def find(self, role: str, name: str, *, exact: bool = True) -> Locator:
        """What a screen reader would find under that name."""
        return self.page.get_by_role(role, name=name, exact=exact)  # type: ignore[arg-type]

    async def reach(self, target: Locator) -> None:
        """Go to it by Tab, and see on the way that it is always to be seen where one is."""
        await expect(target).to_be_visible()
        element = await target.element_handle()
        for _ in range(MOST_TABS):
            there, shown, what = await self.page.evaluate(_FOCUS, element)
            assert shown, f"nothing shows that this has the focus: {what}"
            if there:
                return
            await self.page.keyboard.press("Tab")
        raise AssertionError(f"no Tab leads to {target}")

    async def press(self, name: str, role: str = "button", within: Locator | None = None) -> None:
        """Enter, on the button (or the link) of that name."""
        scope = within or self.page
        target = scope.get_by_role(role, name=name, exact=True)  # type: ignore[arg-type]
        await self.reach(target)
        await self.page.keyboard.press("Enter")

    async def write(self, label: str, text: str, within: Locator | None = None) -> None:
        """Into the field of that label, over what is in it."""
        target = (within or self.page).get_by_label(label, exact=True)
        await self.reach(target)
        await self.page.keyboard.press("ControlOrMeta+a")
        await self.page.keyboard.insert_text(text)

    async def choose(self, label: str, option: str, within: Locator | None = None) -> None:
        """Of a select, by its words."""
        target = (within or self.page).get_by_label(label, exact=True)
        await self.reach(target)
        await target.select_option(label=option)

    async def confirm(self) -> None:
        """Say yes to what the page asks."""
        dialog = self.page.get_by_role("dialog", name="Please confirm")
        await self.press("Go ahead", within=dialog)

    async def arrive(self, path: str) -> None:
        """Wait until the browser is there."""
        await self.page.wait_for_url(f"{self.url}/console{path}")

    async def find_outside(self) -> list[str]:
        """What is wider than the box it stands in."""
        found: list[str] = await self.page.evaluate(_OUTSIDE)
        return found

    async def leave(self) -> list[str]:
        """Close the browser; says what its pages have done that they must not."""
        await self.context.close()
        return self.watch.troubles
