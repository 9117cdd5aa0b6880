"""A gateway with a demo that it knows from its file, a browser, and its users."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from playwright.async_api import Browser
from yarl import URL

from gateway.demo.models import MODEL_NAMES as DEMO_MODELS
from gateway.demo.server import DemoUpstream
from gateway.domain.member import Member, Role
from gateway.server.admin.prefix import PREFIX
from gateway.server.sessions import COOKIE
from tests.browser.axe import Scanner
from tests.browser.chromium import Watch
from tests.browser.user import DESK, Visitor
from tests.support.console import add_member, open_session
from tests.support.gateway import RunningGateway, make_template, start_gateway

Json = dict[str, Any]
WAIT_LIMIT_S = 20


@attrs.define
class OperatedGateway:
    """A gateway and its operator."""

    gateway: RunningGateway
    known: dict[str, Any] = attrs.Factory(dict)
    """Ids of what it was furnished with, by what it is called."""
    members: dict[str, Member] = attrs.Factory(dict)

    @property
    def url(self) -> str:
        return self.gateway.url

    async def operate(self, method: str, path: str, body: Any = None) -> Any:
        """What the admin API answers to the bearer of its token; fails where that is a refusal."""
        headers = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        json = {} if body is None and method != "GET" else body
        url = URL(f"{self.url}{PREFIX}{path}", encoded=True)
        async with self.gateway.client.request(method, url, json=json, headers=headers) as response:
            answer = await response.json()
            assert response.ok, (method, path, answer)
            return answer

    async def call(self, path: str, body: Json, key: str | None = None, **headers: str) -> aiohttp.ClientResponse:
        """A call of the public API, its answer read."""
        sent = headers if key is None else {"Authorization": f"Bearer {key}", **headers}
        async with self.gateway.client.post(self.url + path, json=body, headers=sent) as response:
            await response.read()
            return response

    async def wait_for_rows(self, count: int) -> list[Json]:
        """The newest rows, once there are so many."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            while True:
                rows: list[Json] = (await self.operate("GET", "/requests?limit=1000"))["data"]
                if len(rows) >= count:
                    return rows
                await asyncio.sleep(0.02)

    async def wait_for_video(self, video_id: str, *states: str) -> Json:
        """The job, once it is in one of those states."""
        async with asyncio.timeout(WAIT_LIMIT_S):
            while True:
                job: Json = await self.operate("GET", f"/videos/{video_id}")
                if job["status"] in states:
                    return job
                await asyncio.sleep(0.02)

    async def know(self, name: str, role: Role, account: str) -> Member:
        """The member of that name, new where there was none."""
        member = self.members.get(name) or await add_member(self.gateway, name, role, account)
        self.members[name] = member
        return member


@attrs.define
class Guests:
    """Visitors of any site, who share one browser.

    Attributes:
        left: windows that nobody has at the moment. Another one costs as much as four pages.
    """

    browser: Browser
    shots: Path
    left: list[Visitor] = attrs.Factory(list)
    scanner: Scanner | None = None

    async def scan(self, visitor: Visitor, within: str = "html") -> list[str]:
        """What somebody could stumble over on the page that a visitor is at."""
        if self.scanner is None:
            context = await self.browser.new_context(viewport=DESK)
            self.scanner = Scanner(await context.new_page())
        return await self.scanner.scan(visitor.page, visitor.url, within)

    async def invite(self, url: str) -> Visitor:
        """Somebody with a window of their own, of which nothing is known there."""
        visitor = self.left.pop() if self.left else await self._open()
        visitor.url = visitor.watch.origin = url
        return visitor

    async def _open(self) -> Visitor:
        context = await self.browser.new_context(locale="en-GB", timezone_id="Europe/Berlin", viewport=DESK)
        watch = Watch("")
        await watch.begin(context)
        return Visitor("", self.shots, context, await context.new_page(), watch)

    async def see_off(self, visitor: Visitor) -> list[str]:
        """Have the window forget who had it; says what its pages have done that they must not."""
        troubles = list(visitor.watch.troubles)
        await visitor.forget()
        visitor.watch.begin_anew()
        self.left.append(visitor)
        return troubles


@attrs.define
class VisitedGateway(OperatedGateway):
    """What every test of a module has in common."""

    guests: Guests = attrs.field(kw_only=True)

    async def visit(self, name: str = "", role: Role = "member", account: str = "acme") -> Visitor:
        """Somebody with a browser; with a name they are signed in, and made known before where new."""
        visitor = await self.guests.invite(self.url)
        if name:
            reference = await open_session(self.gateway, await self.know(name, role, account), "203.0.113.9")
            await visitor.context.add_cookies([{"name": COOKIE, "value": reference, "url": self.url}])
        return visitor


@asynccontextmanager
async def open_site(
    guests: Guests, folder: Path, template: Path, config: Mapping[str, Any]
) -> AsyncIterator[VisitedGateway]:
    """A gateway to visit, and at the end what every gateway under test is looked at for."""
    if not template.exists():
        await make_template(template)
    gateway = await start_gateway(folder, template, config)
    site = VisitedGateway(gateway, guests=guests)
    try:
        yield site
    finally:
        for job in (await site.operate("GET", "/videos?limit=100"))["data"]:
            if job["live"]:  # or its hold would be open for ever
                await site.operate("POST", f"/videos/{job['id']}/cancel")
        await gateway.close()


@asynccontextmanager
async def open_studio(pace_s: float = 0.0) -> AsyncIterator[Json]:
    """A demo of its own, as a ``[[channel]]``: the one that is built in gives way where there is another channel."""
    demo = DemoUpstream(pace_s=pace_s)
    await demo.start()
    try:
        yield {
            "name": "studio",
            "provider": "custom",
            "base_url": demo.base_url,
            "api_key": demo.api_key,
            "models": list(DEMO_MODELS),
            "priority": -100,
        }
    finally:
        await demo.stop()
