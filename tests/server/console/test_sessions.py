"""The pages of sessions: listed with their budgets, shown with their requests, and only those of one's account."""

import html
import re

from tests.support.console_people import invite, make_administrator
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

OTHER_KEY = "sk-test-key-of-another-account"
_SESSION = re.compile(r'href="/console(/sessions/[^"]*)"')
_END = re.compile(r'data-call="POST /admin/v1(/request-sessions/[^"]*/end)"')


async def test_sessions_lead_from_a_request_and_a_key_to_their_requests_and_their_end(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        keys = [
            {"name": "agent", "account": "acme", "secret": KEY},
            {"name": "theirs", "account": "other", "secret": OTHER_KEY},
        ]
        accounts = [{"name": "acme"}, {"name": "other"}]
        gateway = await gateway_with(site(channel(up.base_url), account=accounts, key=keys))
        ada = await make_administrator(gateway)
        ben, eve = await invite(ada, "ben", "member", "acme"), await invite(ada, "eve", "viewer", "other")
        for secret, session in ((KEY, "run/1 & more"), (KEY, "run2"), (OTHER_KEY, "theirs")):
            headers = {"x-gateway-budget": f"0.5; session={session}", "Authorization": f"Bearer {secret}"}
            async with gateway.post({**HELLO, "user": "ann"}, headers=headers) as response:
                assert response.status == 200
        request_id = (await ben.call("GET", "/requests?session=run/1%20%26%20more"))[1]["data"][0]["id"]
        (link,) = _SESSION.findall((await ben.open(f"/requests/{request_id}"))[1])
        status, page = await ben.open(html.unescape(link))
        assert (status, "run/1 &amp; more" in page, "$0.50" in page, request_id in page) == (200, True, True, True)
        _, listed = await ada.open("/sessions")
        assert [link in listed, len(_SESSION.findall(listed))] == [True, 3]
        key_id = (await ben.call("GET", "/keys"))[1]["data"][0]["id"]
        assert f"/console/sessions?key={key_id}" in (await ben.open(f"/keys/{key_id}"))[1]
        for person, path, count in ((ben, "/sessions", 2), (ben, f"/sessions?key={key_id}", 2), (eve, "/sessions", 1)):
            assert len(_SESSION.findall((await person.open(path))[1])) == count, path
        assert (await eve.open(html.unescape(link)))[0] == 404, "of another account"
        (end,) = _END.findall(page)
        assert (await ben.call("POST", html.unescape(end)))[0] == 200
        page = (await ben.open(html.unescape(link)))[1]
        assert ("Its requests are refused" in page, _END.findall(page)) == (True, [])
        theirs = _SESSION.findall((await eve.open("/sessions"))[1])[0]
        assert not _END.findall((await eve.open(html.unescape(theirs)))[1]), "a viewer ends nothing"
        for person in (ada, ben, eve):
            await person.session.close()
