"""Whoever has nothing but a key sees what is left on it, and the page keeps nothing of the key."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import ViewportSize, expect

from gateway.server.console.language import COOKIE, LANGUAGES
from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests, VisitedGateway, open_site
from tests.browser.provider import Provider
from tests.browser.user import DESK, PHONE, Enter, Visitor
from tests.support.gateway import CHAT, KEY
from tests.support.key_tenants import OTHER_KEY

pytestmark = BROWSER

WIDTHS: tuple[ViewportSize, ...] = (PHONE, {"width": 768, "height": 1024}, DESK, {"width": 1920, "height": 1080})
PATIENCE_MS = 40_000
LIMITS = {"quota_usd": 5, "quota_period": "daily", "rpm": 60, "max_concurrency": 4}
PRICE = {"input_usd_per_million": 100, "output_usd_per_million": 400}
_KEPT = """
() => [location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage),
  JSON.stringify(history.state), window.name, document.documentElement.outerHTML].join(" ")
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    async with Provider() as provider:
        config = {
            "account": [{"name": "acme", "quota_usd": 50}],
            "key": [
                {"name": "laptop", "account": "acme", "secret": KEY, "expires_at": "2100-01-01", **LIMITS},
                {"name": "bare", "account": "acme", "secret": OTHER_KEY, "models": ["m"]},
            ],
            "price": [{"model": model, **PRICE} for model in ("m", "n")],
            "channel": [{"name": "filed", "provider": "custom", "base_url": provider.base_url, "models": ["m", "n"]}],
        }
        async with open_site(guests, tmp_path_factory.mktemp("my-key"), template_path, config) as opened:
            for model in ("m", "m", "n"):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                assert (await opened.call(CHAT, body, KEY)).status == 200
            await opened.wait_for_rows(3)
            yield opened


async def paste(visitor: Visitor, secret: str) -> None:
    await visitor.go("/my-key")
    await enter_key(visitor, secret)


async def enter_key(visitor: Visitor, secret: str) -> None:
    """The figures are shown afterwards, or the error."""
    await visitor.page.locator("#f-secret").fill(secret)
    await visitor.page.locator("#f-secret").press("Enter")
    shown = visitor.page.locator("#own-figures:visible, #own-key-error:visible")
    await expect(shown).to_be_visible(timeout=PATIENCE_MS)


async def test_a_key_shows_what_is_left_of_it_and_when_it_starts_anew(site: VisitedGateway, enter: Enter) -> None:
    visitor = await enter()
    await visitor.go("/sign-in")
    await visitor.send("See what is left on it", "link")
    await visitor.arrive("/my-key")
    await paste(visitor, KEY)
    page = visitor.page
    await expect(visitor.find("heading", "laptop")).to_be_focused()
    spending = page.get_by_role("region", name="Spending")
    await expect(spending).to_contain_text("Daily limit")
    await expect(spending).to_contain_text("of $5.00 left")
    await expect(spending).to_contain_text("$0.94 spent")
    await expect(spending.locator("time")).to_have_count(1)
    facts = page.get_by_role("region", name="Key", exact=True)
    await expect(facts).to_contain_text("2100-01-01")
    await expect(facts).to_contain_text("4 of 4 left")
    await expect(page.get_by_text("limits of the account apply as well.")).to_be_visible()
    await expect(page.get_by_role("region", name="Last 7 days").locator("tbody tr")).to_have_count(7)
    used = page.get_by_role("region", name="Models used in the last 30 days").locator("tbody tr")
    await expect(used).to_have_count(2)
    await expect(used.first).to_contain_text("2")
    curl = page.locator("#own-curl")
    await expect(curl).to_contain_text(f"{site.url}/v1/chat/completions")
    await expect(curl).to_contain_text('"model":"m"')


async def test_the_page_can_be_read_at_every_width_in_both_schemes_and_languages(
    site: VisitedGateway, enter: Enter
) -> None:
    visitor = await enter()
    page, wrong = visitor.page, list[str]()
    for language in LANGUAGES:
        await visitor.context.add_cookies([{"name": COOKIE, "value": language, "url": f"{site.url}/console"}])
        await paste(visitor, KEY)
        await expect(page.locator("html")).to_have_attribute("lang", language)
        for size in WIDTHS:
            await page.set_viewport_size(size)
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                name = f"my-key-{language}-{size['width']}-{scheme}"
                await visitor.shoot(name)
                wrong += [f"{name}: {slip}" for slip in await visitor.find_slips()]
        wrong += await site.guests.scan(visitor)
    assert not wrong, "\n".join(wrong)


async def test_the_key_is_kept_nowhere(site: VisitedGateway, enter: Enter) -> None:
    visitor = await enter()
    page = visitor.page
    await paste(visitor, KEY)
    await expect(visitor.find("heading", "laptop")).to_be_visible()
    assert KEY not in await page.evaluate(_KEPT)
    assert not any(KEY in path for path in visitor.watch.asked)
    assert KEY not in str(await visitor.context.cookies())
    await page.goto(f"{site.url}/console/sign-in")
    await page.go_back()
    assert await page.locator("#f-secret").input_value() == ""
    await expect(page.locator("#own-figures")).to_be_hidden()
    await enter_key(visitor, KEY)
    await visitor.press("Forget the key")
    await expect(page.locator("#own-figures")).to_be_hidden()
    await expect(page.locator("#f-secret")).to_be_focused()
    assert await page.locator("#f-secret").input_value() == ""
    assert "laptop" not in await page.evaluate(_KEPT)


async def test_another_key_replaces_the_figures_and_a_wrong_one_hides_them(site: VisitedGateway, enter: Enter) -> None:
    visitor = await enter()
    visitor.watch.refusals = {401}
    page = visitor.page
    await paste(visitor, OTHER_KEY)
    await expect(visitor.find("heading", "bare")).to_be_visible()
    await expect(page.get_by_text("This key has no spending limit.")).to_be_visible()
    await expect(page.get_by_text("No requests yet.")).to_be_visible()
    await expect(page.locator("#own-models")).to_have_text("m")
    await enter_key(visitor, "sk-not-a-key-of-this-gateway")
    await expect(page.locator("#own-figures")).to_be_hidden(timeout=PATIENCE_MS)
    await expect(page.get_by_role("alert")).to_contain_text("not a key of this gateway")
    await expect(page.locator("#own-figures")).to_be_hidden()
