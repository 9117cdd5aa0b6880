"""From the link that ``make run`` prints to a model's first words, and what the page there gives to take away."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from gateway.server.admin.members import SETUP_PATH
from gateway.server.context import SERVICES
from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.user import Enter
from tests.support.console_people import PASSPHRASE

pytestmark = BROWSER

MOST_CLICKS = 5
_COUNT = """
addEventListener("click", (event) => { if (event.isTrusted && event.detail) counted(event.target.outerHTML); }, true);
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    folder = tmp_path_factory.mktemp("first_run")
    async with open_site(guests, folder, template_path, {"account": [], "key": []}) as opened:
        yield opened


async def test_a_newcomer_reads_a_streamed_answer_after_five_clicks_at_most(site: VisitedGateway, enter: Enter) -> None:
    """One of them on the link in the terminal. What is typed is a name and a passphrase."""
    clicks = ["the link in the terminal"]
    token = await site.gateway.app[SERVICES].auth.invitations.find_setup_token()
    ada = await enter()
    page = ada.page
    await ada.context.expose_function("counted", lambda what: clicks.append(what))  # noqa: PLW0108 - a list takes no note
    await ada.context.add_init_script(_COUNT)
    await ada.go(f"{site.url}{SETUP_PATH}#{token}")
    assert token not in page.url, "it leaves the address bar"
    await expect(page.get_by_label("Name")).to_be_focused()
    await page.keyboard.insert_text("ada")
    await page.get_by_label("Passphrase", exact=True).click()
    await page.keyboard.insert_text("short")
    await expect(page.get_by_text("7 more characters")).to_be_visible()
    await page.keyboard.insert_text(PASSPHRASE)
    await expect(page.get_by_text("Long enough. Longer is better.")).to_be_visible()
    await ada.shoot("setup")
    await ada.find("button", "Create account").click()
    await ada.arrive("/connect")
    await ada.find("button", "Send").click()
    answer = page.get_by_role("log", name="Answer")
    await expect(answer).to_contain_text("I am demo-chat")
    await expect(page.get_by_text(re.compile(r"\$0.* · .* tokens in, .* out · first token after"))).to_be_visible()
    assert len(clicks) <= MOST_CLICKS, clicks
    assert len(clicks) == 4, f"the clicks are counted: {clicks}"
    await ada.shoot("connect-first-answer")

    again = await enter()
    await again.go(f"{site.url}{SETUP_PATH}#{token}")
    await expect(again.find("heading", "Setup is complete")).to_be_visible()


async def test_snippets_are_filled_in_with_a_key_that_works(site: VisitedGateway, enter: Enter) -> None:
    """The key that the page makes is in every snippet, is shown this once, and pays for a call."""
    ben = await enter("ben", "member", "local")
    page = ben.page
    await ben.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await ben.go("/connect")
    await ben.press("Create a key")
    await expect(page.get_by_text("created and filled in")).to_be_visible()
    secret = await page.locator("#s-key").inner_text()
    assert secret.startswith("sk-")
    shown = await page.evaluate("[...document.querySelectorAll('[data-fill=key]')].map((one) => one.textContent)")
    assert len(shown) > 10
    assert set(shown) == {secret}

    await ben.press("Copy: Terminal", within=page.get_by_role("tabpanel", name="curl"))
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert f"Bearer {secret}" in copied
    assert f"{site.url}/v1/chat/completions" in copied
    tab = page.get_by_role("tab", name="curl")
    await ben.reach(tab)
    for name in ("Python", "Node.js"):
        await page.keyboard.press("ArrowRight")
        await expect(page.get_by_role("tab", name=name)).to_be_focused()
        await expect(page.get_by_role("tabpanel", name=name)).to_contain_text(secret)
    await page.keyboard.press("End")
    await expect(page.get_by_role("tabpanel", name="Other apps")).to_be_visible()

    answered = await site.call("/v1/chat/completions", {"model": "demo-chat", "messages": _HELLO}, secret)
    assert answered.status == 200
    await ben.go("/connect")
    assert secret not in await page.content()


_HELLO = [{"role": "user", "content": "hello"}]
