"""The pages of sessions: listed with their budgets, shown with their requests, and only those of one's account."""

import html
import re

from sqlalchemy import text

from gateway.server.context import SERVICES
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.request_log import INDEXED_ROWS
from gateway.storage.row_mapping import REQUEST_COLUMNS
from gateway.storage.session_log import SUMMED_ROWS
from tests.support.console_people import invite, make_administrator
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, KEY, channel
from tests.support.request_records import make_row
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.sqlite_steps import count_steps
from tests.support.started_gateways import StartGateway

OTHER_KEY = "sk-test-key-of-another-account"
LISTED_ROWS_STEPS = 40
"""More steps than the list takes for each row of its window, which is of bounded size."""
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
        assert ("Further requests in it are refused" in page, _END.findall(page)) == (True, [])
        theirs = _SESSION.findall((await eve.open("/sessions"))[1])[0]
        assert not _END.findall((await eve.open(html.unescape(theirs)))[1]), "a viewer ends nothing"
        for person in (ada, ben, eve):
            await person.session.close()


async def test_a_session_named_with_every_request_costs_pages_no_more_when_it_grows(gateway_with: StartGateway) -> None:
    """The pages say that older requests are not counted."""
    gateway = await gateway_with({})
    gateway.audited = False  # the rows are copies, without entries of the ledger
    ada = await make_administrator(gateway)
    database, steps = gateway.app[SERVICES].storage.database, list[list[int]]()
    await LedgerRepository(database).post([make_row("0", account_id=1, session="constant", cost_nanos=7)])
    async with ada.session, count_steps(database) as counts:
        # A list of requests also reads up to ``INDEXED_ROWS`` of the session: the costs are compared above that.
        for number in (SUMMED_ROWS, SUMMED_ROWS + 1, INDEXED_ROWS + 1, INDEXED_ROWS + 2 * SUMMED_ROWS):
            await copy_row(database, number)
            spent, pages = [], []
            for path in ("/sessions", "/sessions/1:constant"):
                before = counts["steps"]
                pages.append((await ada.open(path))[1])
                spent.append(counts["steps"] - before)
            is_partial = number > SUMMED_ROWS
            assert ["only the latest 10,000" in pages[0], "Only the latest 10,000" in pages[1]] == [is_partial] * 2
            assert [("10k+" in page, "10k" in page) for page in pages] == [(is_partial, True), (False, True)]
            steps.append(spent)
    assert steps[3][0] < 1.3 * steps[2][0] + LISTED_ROWS_STEPS * 2 * SUMMED_ROWS, "a list reads the rows of its window"
    assert steps[3][1] < 1.1 * steps[2][1], "the page of the session reads no more"


async def copy_row(database: Database, number: int) -> None:
    """Copy the first row of the request log, until there is this number of rows."""
    names = [name for name in REQUEST_COLUMNS if name != "id"]
    copies = (
        f"WITH RECURSIVE copy (value) AS (SELECT max(sequence) + 1 FROM requests UNION ALL "  # noqa: S608 - constants
        f"SELECT value + 1 FROM copy "
        f"WHERE value < {number}) INSERT INTO requests (id, {', '.join(names)}) "
        f"SELECT 'req_' || copy.value, {', '.join(names)} FROM copy, requests WHERE requests.sequence = 1 "
        f"AND copy.value <= {number}"
    )

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(text(copies))

    await database.write(work)
