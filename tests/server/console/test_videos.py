"""A member's page on the public API: videos of its account with no key, everything else with a key of its account."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE, KEY_HEADER
from gateway.videos.events import JobChanged
from tests.support.console import PAGE, add_member, open_session
from tests.support.gateway import KEY
from tests.support.openai_videos import CLIP_BYTES, Play
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import OTHER, VIDEOS, VideoGateway, open_video_gateway

LOOKS = {"Sec-Fetch-Site": "same-origin"}
"""What a browser sends by itself, of a video on a page."""


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as opened:
        yield opened


class Browser:
    """Of one member."""

    def __init__(self, video_gateway: VideoGateway, session: aiohttp.ClientSession, reference: str) -> None:
        self.video_gateway, self.session, self.reference = video_gateway, session, reference

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        sent = {"Cookie": f"{COOKIE}={self.reference}", **LOOKS, **headers}
        url = self.video_gateway.gateway.url + path
        async with self.session.request(method, url, json=body, headers=sent) as response:
            return response.status, dict(response.headers), await response.read()

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        status, _, raw = await self.ask(method, path, body, **headers)
        return status, orjson.loads(raw)


async def open_browser(
    video_gateway: VideoGateway, session: aiohttp.ClientSession, name: str, role: Any, account: str
) -> Browser:
    member = await add_member(video_gateway.gateway, name, role, account)
    return Browser(video_gateway, session, await open_session(video_gateway.gateway, member))


async def test_an_accounts_videos_are_there_for_its_members_and_for_no_others(
    gateway_with: StartGateway, session: aiohttp.ClientSession
) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        mine, theirs = await video_gateway.make("mine"), await video_gateway.make("theirs", key=OTHER)
        ann = await open_browser(video_gateway, session, "ann", "viewer", "acme")
        eve = await open_browser(video_gateway, session, "eve", "member", "rival")
        chief = await open_browser(video_gateway, session, "chief", "administrator", "rival")
        for browser, own, other in ((ann, mine, theirs), (eve, theirs, mine), (chief, theirs, mine)):
            status, listed = await browser.call("GET", VIDEOS)
            assert (status, [one["id"] for one in listed["data"]]) == (200, [own])
            assert (await browser.call("GET", f"{VIDEOS}/{own}"))[1]["status"] == "completed"
            status, headers, raw = await browser.ask("GET", f"{VIDEOS}/{own}/content")
            assert (status, headers["Content-Type"], len(raw)) == (200, "video/mp4", CLIP_BYTES)
            status, _, raw = await browser.ask("GET", f"{VIDEOS}/{own}/content", Range="bytes=0-9")
            assert (status, len(raw)) == (206, 10)
            status, headers, raw = await browser.ask("GET", f"{VIDEOS}/{own}/events")
            assert (status, raw.startswith(b"event: video.completed")) == (200, True)
            nowhere = [(await browser.call("GET", f"{VIDEOS}/{other}{part}")) for part in ("", "/content", "/events")]
            never = await browser.call("GET", f"{VIDEOS}/video_{'0' * 32}")
            assert {status for status, _ in (*nowhere, never)} == {404}
            assert len({body["error"]["message"].partition(" (")[0].replace(other, "x") for _, body in nowhere}) == 1


async def test_without_a_key_a_page_may_look_at_videos_and_nothing_else(
    gateway_with: StartGateway, session: aiohttp.ClientSession
) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        video_id = await video_gateway.make()
        ann = await open_browser(video_gateway, session, "ann", "member", "acme")
        body = {"model": "m", "prompt": "a cat"}
        for method, path in (
            ("POST", VIDEOS),
            ("DELETE", f"{VIDEOS}/{video_id}"),
            ("POST", f"{VIDEOS}/{video_id}/remix"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
        ):
            status, answer = await ann.call(method, path, body if method == "POST" else None, **PAGE)
            assert (status, answer["error"]["code"]) == (403, "forbidden"), path
        assert (await ann.call("GET", VIDEOS))[1]["data"][0]["id"] == video_id
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):
            assert (await ann.call("GET", f"{VIDEOS}/{video_id}/content", **headers))[0] == 403


async def test_a_page_calls_with_a_key_of_its_own_account(
    gateway_with: StartGateway, session: aiohttp.ClientSession
) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        vera = await open_browser(video_gateway, session, "vera", "viewer", "acme")
        ann = await open_browser(video_gateway, session, "ann", "member", "acme")
        directory, body = video_gateway.gateway.app[SERVICES].auth.api_keys, {"model": "m", "prompt": "a cat"}
        own, foreign = (str(directory.authenticate(f"Bearer {key}").key.id) for key in (KEY, OTHER))
        assert (await vera.call("POST", VIDEOS, body, **{KEY_HEADER: own}))[0] == 403
        for wrong in (foreign, "999", "x", "-1", ""):
            status, answer = await ann.call("POST", VIDEOS, body, **{KEY_HEADER: wrong})
            assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "not_found", KEY_HEADER)
        cross = {KEY_HEADER: own, "Sec-Fetch-Site": "cross-site"}
        assert (await ann.call("POST", VIDEOS, body, **cross))[0] == 403
        status, begun = await ann.call("POST", VIDEOS, body, **{KEY_HEADER: own})
        assert status == 200
        await video_gateway.finish(begun["id"])
        assert (await ann.call("DELETE", f"{VIDEOS}/{begun['id']}", **{KEY_HEADER: own}))[0] == 200
        assert (await ann.call("GET", "/v1/models", **{KEY_HEADER: own}))[1]["data"][0]["id"] == "m"


@pytest.mark.parametrize("how", ["signs out", "is disabled"])
async def test_who_leaves_is_told_no_more_news(
    gateway_with: StartGateway, session: aiohttp.ClientSession, how: str
) -> None:
    go = asyncio.Event()
    async with open_video_gateway(
        gateway_with, plays={"slow": Play(polls=["queued", go, "completed"])}
    ) as video_gateway:
        video_id = await video_gateway.begin("slow")
        ann = await open_browser(video_gateway, session, "ann", "member", "acme")
        sent = {"Cookie": f"{COOKIE}={ann.reference}", **LOOKS}
        async with session.get(f"{video_gateway.gateway.url}{VIDEOS}/{video_id}/events", headers=sent) as stream:
            assert (await stream.content.readuntil(b"\n\n")).startswith(b"event: video.queued")
            if how == "signs out":
                assert (await ann.call("DELETE", f"{PREFIX}/session", **PAGE))[0] == 200
            else:
                token = {"Authorization": f"Bearer {video_gateway.gateway.admin_token}"}
                url = f"{video_gateway.gateway.url}{PREFIX}/members/1"
                async with session.patch(url, json={"status": "disabled"}, headers=token) as response:
                    assert response.status == 200
            video_gateway.gateway.app[SERVICES].videos.jobs.events.publish(JobChanged(video_id))
            async with asyncio.timeout(5):
                assert await stream.content.read() == b""
        go.set()
        await video_gateway.finish(video_id)
