"""The page of the documentation reloads ten times during one answer, and shows every word once."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from aiohttp import web
from playwright.async_api import Page

from tests.browser.chromium import BROWSER
from tests.browser.gateways import Guests
from tests.support.gateway import KEY, channel
from tests.support.resumed_streams import CutStream
from tests.support.scripted_upstream import LAST_CHUNK, SSE_HEAD, ScriptedUpstream, Step, chat_events, chunk
from tests.support.started_gateways import StartGateway

pytestmark = BROWSER
RELOADS = 10
TOGETHER = 20
WORDS = [f"word{number} " for number in range(400)]
_SCRIPT = re.compile(r"```js\n(.*?)```", re.DOTALL)
PAGE = """<!doctype html><title>App</title><pre id="text"></pre><p id="end"></p><script>%s
const [gateway, id, token] = JSON.parse(decodeURIComponent(location.hash.slice(1)));
follow(gateway, { id, token }, (text) => { document.getElementById("text").textContent = text; })
  .then((error) => { document.getElementById("end").textContent = error ? JSON.stringify(error) : "whole"; });
</script>"""


@pytest_asyncio.fixture(loop_scope="session")
async def page(guests: Guests) -> AsyncIterator[Page]:
    """A page with the script of the documentation, at the root of an origin of its own."""
    match = _SCRIPT.search((Path(__file__).parents[2] / "docs" / "resume.md").read_text())
    assert match is not None
    app = web.Application()
    html = PAGE % match[1]

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    app.router.add_get("/", show)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    context = await guests.browser.new_context()
    opened = await context.new_page()
    await opened.goto(f"http://127.0.0.1:{runner.addresses[0][1]}/favicon.ico")
    yield opened
    await context.close()
    await runner.cleanup()


async def test_a_page_that_reloads_shows_every_word_once(page: Page, standing_with: StartGateway) -> None:
    origin = page.url.removesuffix("/favicon.ico")
    script: list[Step] = [SSE_HEAD]
    events = [*chat_events(*WORDS)]
    for event in events[:-TOGETHER]:
        script += [chunk(event), 0.01]
    script.append(chunk(b"".join(events[-TOGETHER:])))  # a page reads the end together with the last words
    async with ScriptedUpstream([*script, LAST_CHUNK]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY}
        up_channel = channel(up.base_url, idle_timeout_s=60, total_timeout_s=100)
        gateway = await standing_with(
            {"server": {"cors_origins": [origin]}, "channel": [up_channel], "account": [{"name": "acme"}], "key": [key]}
        )
        stream = await CutStream.open(gateway.url)
        stream.cut()
        async with gateway.client.post(f"{gateway.url}/v1/streams/{stream.id}/token") as response:
            token = (await response.json())["token"]
        hash_text = await page.evaluate(
            "(list) => encodeURIComponent(JSON.stringify(list))", [gateway.url, stream.id, token]
        )
        await page.goto(f"{origin}/#{hash_text}")
        for reload in range(RELOADS):
            await page.wait_for_function(f"document.getElementById('text').textContent.includes('word{reload * 30} ')")
            await page.reload()
        await page.wait_for_function("document.getElementById('end').textContent !== ''", timeout=60_000)
        assert await page.text_content("#end") == "whole"
        assert await page.text_content("#text") == "".join(WORDS)
        assert len(up.received) == 1
        (row,) = await gateway.rows(1)
        assert row.outcome == "completed"
