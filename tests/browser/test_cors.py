"""A web page of another origin calls the public API with a key, if the gateway allows its origin."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from aiohttp import web
from playwright.async_api import Page

from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests
from tests.support.gateway import CHAT, KEY, RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway

pytestmark = BROWSER

FETCH = """async ([url, init]) => {
    try {
        const answer = await fetch(url, init);
        const text = await answer.text();
        return {status: answer.status, text, id: answer.headers.get("x-request-id")};
    } catch (error) {
        return {status: 0, text: String(error), id: null};
    }
}"""
"""What a page sees of an answer: status 0 where the browser keeps it from the page."""


@pytest_asyncio.fixture(loop_scope="session")
async def page(guests: Guests) -> AsyncIterator[Page]:
    """A page of an origin of its own."""
    app = web.Application()

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>App</title>", content_type="text/html")

    app.router.add_get("/", show)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    context = await guests.browser.new_context()
    opened = await context.new_page()
    await opened.goto(f"http://127.0.0.1:{runner.addresses[0][1]}/")
    yield opened
    await context.close()
    await runner.cleanup()


async def fetch(page: Page, gateway: RunningGateway, path: str, **init: Any) -> dict[str, Any]:
    found: dict[str, Any] = await page.evaluate(FETCH, [gateway.url + path, init])
    return found


ASK = {
    "method": "POST",
    "headers": {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "X-Stainless-Lang": "js"},
    "body": '{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}',
}


async def test_a_page_of_an_allowed_origin_calls_the_public_api_alone(page: Page, standing_with: StartGateway) -> None:
    origin = page.url.rstrip("/")
    async with ScriptedUpstream(chat_script("Hello"), [answer({"error": {"message": "Too long"}}, 400)]) as up:
        gateway = await standing_with({"server": {"cors_origins": [origin]}, "channel": [channel(up.base_url)]})
        streamed = await fetch(page, gateway, CHAT, **ASK)
        assert (streamed["status"], "Hello" in streamed["text"]) == (200, True)
        assert streamed["id"].startswith("req_")
        refused = await fetch(page, gateway, CHAT, **ASK)
        assert (refused["status"], "Too long" in refused["text"]) == (400, True)
        stranger = await fetch(page, gateway, "/v1/models", headers={"Authorization": "Bearer sk-nobody"})
        assert (stranger["status"], "invalid_api_key" in stranger["text"]) == (401, True)
        assert (await fetch(page, gateway, "/admin/v1/accounts", headers=ASK["headers"]))["status"] == 0
        assert (await fetch(page, gateway, "/console"))["status"] == 0
        assert len(up.received) == 2, "a preflight reaches no provider"


async def test_without_the_setting_no_page_of_another_origin_calls_anything(
    page: Page, standing_with: StartGateway
) -> None:
    async with ScriptedUpstream(chat_script("Hello")) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)]})
        assert (await fetch(page, gateway, CHAT, **ASK))["status"] == 0
        assert (await fetch(page, gateway, "/v1/models", headers=ASK["headers"]))["status"] == 0
        assert not up.received
