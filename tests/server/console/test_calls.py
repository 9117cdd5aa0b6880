"""A member's page calls with a key, and sends its body slowly: what it may do is looked at when the body is there."""

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE, KEY_HEADER
from tests.support.console import PAGE, add_member, open_session
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channels
from tests.support.raw_client import RawAnswer, connect, read_answer
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

FORM = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'
BODIES = {
    CHAT: orjson.dumps(HELLO),
    "/v1/embeddings": b'{"model":"m","input":"hi"}',
    "/v1/videos": b'{"model":"m","prompt":"a cat"}',
    "/v1/images/edits": FORM,
    "/v1/audio/transcriptions": FORM,
}
ENDS = {
    "signs out": ("DELETE", "session", None),
    "is disabled": ("PATCH", "members/1", {"status": "disabled"}),
    "becomes a viewer": ("PATCH", "members/1", {"role": "viewer"}),
    "is removed": ("DELETE", "members/1", None),
}


class Page:
    """Of a member who may call with the account's only key."""

    def __init__(self, gateway: RunningGateway, reference: str) -> None:
        self.gateway = gateway
        self.cookie = {"Cookie": f"{COOKIE}={reference}"}

    async def change(self, method: str, path: str, body: Any) -> None:
        """Something at the office: a page's own session by itself, everything else by the operator."""
        token = {"Authorization": f"Bearer {self.gateway.admin_token}"}
        headers = {**self.cookie, **PAGE} if path == "session" else token
        url = f"{self.gateway.url}{PREFIX}/{path}"
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, url, json=body, headers=headers) as response,
        ):
            assert response.status < 300, await response.text()

    async def send(self, path: str, change: tuple[str, str, Any]) -> RawAnswer:
        """The call at ``path``, the change made while its body is on its way."""
        body = BODIES[path]
        kind = "multipart/form-data; boundary=x" if body is FORM else "application/json"
        key_id = self.gateway.app[SERVICES].auth.api_keys.authenticate(f"Bearer {KEY}").key.id
        headers = {**self.cookie, **PAGE, KEY_HEADER: str(key_id), "Host": "a", "Content-Type": kind}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        reader, writer = await connect(self.gateway.url)
        writer.write(f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:9])
        async with asyncio.timeout(5):
            while not self.gateway.app[SERVICES].active_requests.calls:  # noqa: ASYNC110 - nothing says so
                await asyncio.sleep(0.005)
        await self.change(*change)
        writer.write(body[9:])
        try:
            return await read_answer(reader)
        finally:
            writer.close()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("what", ENDS)
async def test_who_may_call_no_more_when_the_body_is_there_does_not(
    gateway_with: StartGateway, what: str, path: str
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        page = Page(gateway, await open_session(gateway, await add_member(gateway, "ann")))
        result = await page.send(path, ENDS[what])
        assert (result.status, result.error["code"]) == (401, "signed_out")
        assert up.received == []
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.status, row.cost_nanos) == ("refused", 401, 0)
        assert not gateway.app[SERVICES].active_requests.calls


async def test_who_still_may_is_answered(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        page = Page(gateway, await open_session(gateway, await add_member(gateway, "ann")))
        result = await page.send(CHAT, ("GET", "members", None))
        assert (result.status, result.body) == (200, orjson.dumps(COMPLETION))
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.key_name) == ("completed", "test")
