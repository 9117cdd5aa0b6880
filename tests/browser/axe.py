"""What stands in the way of who uses a screen reader or a keyboard, or needs contrast: Deque's axe, in the browser."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import axe_playwright_python
from playwright.async_api import Page

GRAVE = ("serious", "critical")
_RUN = """
([context, options]) => axe.run(context, {resultTypes: ["violations"], ...options}).then((found) =>
  found.violations.map((one) =>
    `${one.impact} ${one.id}: ${one.help}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`))
"""
_SHOW = """
async (html) => {
  const shown = new DOMParser().parseFromString(html, "text/html");
  for (const [here, there] of [[document.documentElement, shown.documentElement], [document.body, shown.body]]) {
    for (const name of here.getAttributeNames()) here.removeAttribute(name);
    for (const name of there.getAttributeNames()) here.setAttribute(name, there.getAttribute(name));
  }
  document.head.replaceChildren(...shown.head.childNodes);
  document.body.replaceChildren(...shown.body.childNodes);
  for (const one of document.querySelectorAll("details")) one.open = true;
  const styles = [...document.querySelectorAll("link[rel=stylesheet]")].filter((one) => !one.sheet);
  await Promise.all(styles.map((one) => new Promise((loaded) => one.addEventListener("load", loaded))));
  return [...document.querySelectorAll("dialog")].map((one) => one.id);
}
"""
_OPEN = "([id, open]) => { const one = document.getElementById(id); if (open) one.show(); else one.close(); }"


@attrs.define
class Scanner:
    """A page of its own, which is shown what others have become, without their scripts.

    Once warm it reads one in a tenth of the time that it takes anew in each. The debugger's word passes any policy.
    """

    page: Page
    origin: str = ""

    async def scan(self, page: Page, origin: str, within: str = "html") -> list[str]:
        """What is serious or critical there, in light and in dark, and in each dialog; all that is folded is open."""
        if self.origin != origin:
            await self.page.goto(f"{origin}/console/sign-in")
            await self.page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
            self.origin = origin
        await self.page.emulate_media(color_scheme="light")
        dialogs: list[str] = await self.page.evaluate(_SHOW, await page.evaluate("document.documentElement.outerHTML"))
        found = await self._scan_all(within, dialogs)
        await self.page.emulate_media(color_scheme="dark")  # in which nothing but the colours differs
        return found + [f"in dark: {one}" for one in await self._scan_all(within, dialogs, "color-contrast")]

    async def _scan_all(self, within: str, dialogs: Sequence[str], *rules: str) -> list[str]:
        found = await self._run(within, *rules)
        for dialog in dialogs:
            await self.page.evaluate(_OPEN, [dialog, True])
            found += [f"dialog {dialog}: {one}" for one in await self._run(f"#{dialog}", *rules)]
            await self.page.evaluate(_OPEN, [dialog, False])
        return found

    async def _run(self, within: str, *rules: str) -> list[str]:
        options: dict[str, Any] = {"runOnly": list(rules)} if rules else {}
        found: list[str] = await self.page.evaluate(_RUN, [{"include": [within]}, options])
        return [one for one in found if one.startswith(GRAVE)]
