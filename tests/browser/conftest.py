"""Fixtures of the browser's tests: one browser, a site for each module, and visitors for each test."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import expect

from tests.browser.chromium import find_shots, open_chromium
from tests.browser.gateways import Guests, VisitedGateway
from tests.browser.user import Enter, Visitor

expect.set_options(timeout=30_000)  # a busy machine needs longer than the five seconds that are the default


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def guests() -> AsyncIterator[Guests]:
    async with open_chromium() as browser:
        yield Guests(browser, find_shots())


@pytest_asyncio.fixture(loop_scope="session")
async def enter(site: VisitedGateway) -> AsyncIterator[Enter]:
    """``ada = await enter("ada", "administrator")``; after the test nobody's pages may have done what they must not."""
    inside: list[Visitor] = []

    async def come(*who: str) -> Visitor:
        inside.append(await site.visit(*who))  # type: ignore[arg-type]
        return inside[-1]

    yield come
    troubles = [trouble for visitor in inside for trouble in await site.guests.see_off(visitor)]
    assert not troubles, "\n".join(troubles)
