"""What stands in the way of who uses a screen reader or a keyboard, or needs contrast: Deque's axe, in the page."""

from functools import cache
from pathlib import Path
from typing import Any

import axe_playwright_python
from playwright.async_api import Page

GRAVE = ("serious", "critical")
_RUN = """
([context, options]) => axe.run(context, {resultTypes: ["violations"], ...options}).then((found) =>
  found.violations.map((one) =>
    `${one.impact} ${one.id}: ${one.help}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`))
"""


@cache
def _read_script() -> str:
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


async def scan(page: Page, *rules: str, within: str = "html") -> list[str]:
    """What is serious or critical, by all of axe's rules or just these. The debugger's word passes any policy."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(_read_script())
    options: dict[str, Any] = {"runOnly": list(rules)} if rules else {}
    found: list[str] = await page.evaluate(_RUN, [{"include": [within]}, options])
    return [one for one in found if one.startswith(GRAVE)]
