"""Debian's Chromium, and a watch over what its pages say, ask for and do by themselves."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Dialog, Request, async_playwright

PLACES = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first has no windows to draw, and costs a quarter less."""
OPTIONS = (
    "--no-sandbox",  # root in a container has none; the pages are ours
    "--disable-gpu",
    # Whatever a page asks another host for stays here.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
BROWSER = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]
"""What every module here is marked with: one gateway serves all its tests, and one browser those of all of them."""
_TELL_TALES = """
Object.defineProperty(window, "__hit", {set(what) { console.error("a page ran what it was shown: " + what); }});
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`against the policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


def find_chromium() -> str:
    """Where it is. Skips the test where it is nowhere; in CI that is a failure."""
    named = os.environ.get("CHROMIUM", "")
    for place in (named, *PLACES) if named else PLACES:
        if found := shutil.which(place):
            return found
    why = "no Chromium: apt-get install chromium, or say where one is in the variable CHROMIUM"
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def find_shots() -> Path:
    """The folder in which a person can look at the pages."""
    folder = Path(os.environ.get("SCREENSHOTS") or "build/screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@asynccontextmanager
async def open_chromium() -> AsyncIterator[Browser]:
    """A browser, closed at the end."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=OPTIONS)
        yield browser
        await browser.close()


@attrs.define(slots=False)  # playwright stores an attribute on its listeners
class Watch:
    """Over one context: what its pages must not do is in ``troubles``.

    Attributes:
        origin: of the gateway: nothing else is asked for anything.
        refusals: statuses that are expected, and which a browser reports as errors.
        asked: the path of every request.
    """

    origin: str
    troubles: list[str] = attrs.Factory(list)
    refusals: set[int] = attrs.Factory(set)
    asked: list[str] = attrs.Factory(list)

    async def begin(self, context: BrowserContext) -> None:
        """Listen, before there is a page."""
        await context.add_init_script(_TELL_TALES)
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.troubles.append(f"{error.page and error.page.url}: {error.error}"))
        context.on("dialog", self._dismiss)
        context.on("request", self._note)

    def begin_anew(self) -> None:
        """As if nothing had been heard."""
        self.troubles.clear()
        self.asked.clear()
        self.refusals = set()

    def _hear(self, message: ConsoleMessage) -> None:
        expected = any(f"the server responded with a status of {status} " in message.text for status in self.refusals)
        if message.type in {"error", "warning"} and not expected:
            where: Any = message.location
            self.troubles.append(f"{message.page and message.page.url}: {message.text} ({where.get('url')})")

    async def _dismiss(self, dialog: Dialog) -> None:
        self.troubles.append(f"a dialog: {dialog.message}")
        await dialog.dismiss()

    def _note(self, request: Request) -> None:
        self.asked.append(urlsplit(request.url).path)
        if not request.url.startswith((f"{self.origin}/", "data:", f"blob:{self.origin}/")):
            self.troubles.append(f"asks another host: {request.url}")
