"""Charts in a browser: the tooltip, hidden series, a zoom by mouse and by keys, and pages of every width."""

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

pytestmark = BROWSER

HOLES = """
() => [...document.querySelectorAll('.charts')].map((group) => {
  const room = group.getBoundingClientRect().right;
  const cards = [...group.children].map((card) => card.getBoundingClientRect());
  const isLast = (card) => !cards.some((other) => other.left >= card.right && other.top === card.top);
  return cards.filter((card) => isLast(card) && card.right < room - 1).length;
})
"""
"""The rows of cards that do not reach the right edge."""
CHARTED = ("", "?span=24h", "/keys/{laptop}", "/channels/relay", "/accounts/north")
SPEND = "figure[data-chart=spend]"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(
    guests: Guests, tmp_path_factory: pytest.TempPathFactory, template_path: Path
) -> AsyncIterator[VisitedGateway]:
    folder = tmp_path_factory.mktemp("charts")
    async with open_used_gateway(guests, folder, template_path) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def ada(enter: Enter) -> AsyncIterator[Visitor]:
    visitor = await enter("ada", "administrator")
    yield visitor
    await visitor.page.set_viewport_size(DESK)


async def find_plot(page: Page) -> dict[str, float]:
    box = await page.locator(f"{SPEND} .plot").bounding_box()
    assert box is not None
    return {"x": box["x"], "y": box["y"], "width": box["width"], "height": box["height"]}


async def test_pages_with_charts_fit_and_are_accessible(site: VisitedGateway, ada: Visitor) -> None:
    for path in CHARTED:
        await ada.go(path.format_map(site.known))
        await expect(ada.page.locator("figure [role=slider]").first).to_be_attached()
        await ada.page.evaluate("document.querySelector('.all-numbers').open = true")
        wrong = await site.guests.scan(ada, "main")
        for width in (390, 1024, 1280, 1440, 1920, 2560):
            await ada.page.set_viewport_size({"width": width, "height": 900})
            wrong += [f"{width}: {slip}" for slip in await ada.find_slips()]
            holes = await ada.page.evaluate(HOLES)
            assert not any(holes), (path, width)
        assert not wrong, (path, wrong)


async def test_a_tooltip_has_all_series_and_a_hidden_one_is_not_drawn(ada: Visitor) -> None:
    page = ada.page
    await ada.go()
    box = await find_plot(page)
    await page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 50)
    tip = page.locator(f"{SPEND} .chart-tip")
    await expect(tip).to_be_visible()
    names = await page.locator(f"{SPEND} .legend .cut").all_text_contents()
    assert [
        await tip.locator("p").nth(number + 1).locator("span").first.text_content() for number in range(len(names))
    ] == names
    row = page.locator("#chart-numbers tbody tr").last
    assert (
        await tip.locator("p").nth(1).locator("span").last.text_content()
        == (await row.locator("td").first.text_content() or "").strip()
    )
    before = [await read_heights(page, f"series-{number}") for number in (1, 2)]
    await page.get_by_role("button", name=f"Show {names[0]}").first.click()
    await expect(page.locator(f"{SPEND} .plot path.series-1")).to_be_hidden()
    after = await read_heights(page, "series-2")
    expected = [upper - lower for lower, upper in zip(*before, strict=True)]
    assert all(abs(one - other) <= 1 for one, other in zip(after, expected, strict=True)), "its bars have come down"
    assert any(after)


async def read_heights(page: Page, kind: str) -> list[float]:
    """How high the outline of a series is in the middle of each column, as the browser sees it."""
    heights: list[float] = await page.locator(f"{SPEND} .plot path.{kind}").evaluate(
        """(path) => [...document.querySelectorAll("#chart-numbers tbody tr")].map((_, column) => {
          let height = 0;
          for (let y = 0; y < 160; y += 1)
            height += path.isPointInFill(new DOMPoint(column + 0.5, y + 0.5));
          return height;
        })"""
    )
    return heights


async def test_a_tap_shows_the_numbers_and_a_second_one_the_requests(ada: Visitor) -> None:
    page = ada.page
    await ada.go("?span=1h")
    await expect(page.locator("#chart-numbers tbody tr")).to_have_count(60)
    slider = page.locator("figure [role=slider]").first
    tap = """(slider) => {
        const box = slider.querySelector('.plot').getBoundingClientRect();
        const place = {clientX: box.right - 2, clientY: box.top + 9, button: 0, pointerType: 'touch', bubbles: true};
        for (const name of ['pointerdown', 'pointerup', 'pointerleave'])
            slider.dispatchEvent(new PointerEvent(name, place));
    }"""
    await slider.evaluate(tap)
    await expect(page.locator("figure .chart-tip").first).to_contain_text("Tap again")
    async with page.expect_navigation():
        await slider.evaluate(tap)
    assert re.search(r"/requests\?since=\S+00Z&until=\S+00Z$", page.url)


async def test_a_column_opens_its_requests_and_a_part_becomes_the_period(ada: Visitor) -> None:
    page = ada.page
    await ada.go()
    box = await find_plot(page)
    y = box["y"] + 60
    async with page.expect_navigation():
        await page.mouse.click(box["x"] + box["width"] * 0.99, y)
    assert re.search(r"/requests\?since=(\d{4}-\d\d-\d\d)&until=\1$", page.url)
    await ada.go()
    async with page.expect_navigation():
        await page.mouse.move(box["x"] + box["width"] * 0.6, y)
        await page.mouse.down()
        await page.mouse.move(box["x"] + box["width"] * 0.99, y, steps=4)
        await page.mouse.up()
    assert re.search(r"\?since=\d{4}-\d\d-\d\d&until=\d{4}-\d\d-\d\d$", page.url)
    await expect(page.locator("#chart-numbers tbody tr")).to_have_count(72)  # three days, by hour


async def test_keys_move_over_a_chart_choose_a_part_and_open_it(ada: Visitor) -> None:
    page = ada.page
    await ada.go()
    slider = page.locator(f"{SPEND} [role=slider]")
    await slider.focus()
    await page.keyboard.press("ArrowLeft")
    label = await page.locator("#chart-numbers tbody tr").nth(-2).locator("th").text_content()
    await expect(slider).to_have_attribute("aria-valuetext", re.compile(rf"^{(label or '').strip()}: .*\$"))
    async with page.expect_navigation():
        await page.keyboard.press("Enter")
    assert "/requests?since=" in page.url
    await ada.go()
    await page.locator(f"{SPEND} [role=slider]").focus()
    await page.keyboard.press("Shift+ArrowLeft")
    async with page.expect_navigation():
        await page.keyboard.press("Enter")
    await expect(page.locator("#chart-numbers tbody tr")).to_have_count(48)
