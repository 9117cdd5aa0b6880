"""The lists of end users and of tags: in the admin API and as pages, and only those of one's account."""

import html
import re
from datetime import UTC, datetime

import attrs
from sqlalchemy import update

from gateway.domain.balance import DAY_S
from gateway.server.admin.subjects import MAX_RANKED
from gateway.server.context import SERVICES
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import subject_counts
from tests.support.console_people import Person, invite, make_administrator
from tests.support.fault_scene import site
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

OTHER_KEY = "sk-test-key-of-another-account"
NOON_S = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp())
_SUBJECT = re.compile(r'href="/console(/usage\?[^"]*)"')


async def send(gateway: RunningGateway, secret: str, user: str, tags: str) -> None:
    headers = {"Authorization": f"Bearer {secret}", **({"x-gateway-tags": tags} if tags else {})}
    async with gateway.post({**HELLO, "user": user}, headers=headers) as response:
        assert response.status == 200, await response.text()


async def read_names(person: Person, path: str) -> list[str]:
    status, found = await person.call("GET", path)
    assert status == 200, found
    return [line["name"] for line in found["data"]]


async def test_users_and_tags_are_listed_for_those_who_may_see_them(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        keys = [
            {"name": "agent", "account": "acme", "secret": KEY},
            {"name": "theirs", "account": "other", "secret": OTHER_KEY},
        ]
        gateway = await gateway_with(
            site(channel(up.base_url), account=[{"name": "acme"}, {"name": "other"}], key=keys)
        )
        ada = await make_administrator(gateway)
        ben, eve = await invite(ada, "ben", "member", "acme"), await invite(ada, "eve", "viewer", "other")
        for secret, user, tags in (
            (KEY, "ann & co", "team=web"),
            (KEY, "ann & co", "team=web"),
            (KEY, "bob", "team=app"),
            (OTHER_KEY, "eve", "project=secret"),
        ):
            await send(gateway, secret, user, tags)

        assert await read_names(ada, "/end-users") == ["ann & co", "bob", "eve"]
        assert await read_names(ada, "/end-users?sort=-name&account=acme") == ["bob", "ann & co"]
        assert await read_names(ben, "/end-users?search=ANN") == ["ann & co"]
        assert await read_names(eve, "/end-users") == ["eve"]
        assert [await read_names(who, "/tags") for who in (ada, ben, eve)] == [
            ["project", "team"],
            ["team"],
            ["project"],
        ]
        assert await read_names(ben, "/tag-values?tag=team") == ["web", "app"]
        assert await read_names(eve, "/tag-values?tag=team") == []
        (ann, _), first = await list_all(ben, 1)
        assert (ann["requests"], ann["prompt_tokens"], ann["completion_tokens"]) == (2, 10, 14)
        assert first == 2
        for query in ("since=2020-01-01", "sort=colour", "after=2", "after=x"):
            assert (await ben.call("GET", f"/end-users?{query}"))[0] == 400, query
        assert (await ben.call("GET", "/tag-values?tag=a%20b"))[0] == 400
        assert await read_names(ben, "/tag-values") == []

        _, page = await ben.open("/end-users")
        links = _SUBJECT.findall(page)
        assert [html.unescape(link) for link in links] == [
            "/usage?end_user=ann%20%26%20co&span=7d",
            "/usage?end_user=bob&span=7d",
        ]
        status, shown = await ben.open(html.unescape(links[0]))
        assert (status, "ann &amp; co" in shown) == (200, True)
        for person, hidden in ((ben, "eve"), (eve, "bob")):
            for path in ("/end-users", "/tags", "/tags?tag=team&span=30d"):
                status, page = await person.open(path)
                assert (status, f">{hidden}<" in page, ">secret<" in page and person is ben) == (200, False, False), (
                    path
                )
        _, page = await ben.open("/tags?tag=team&search=we&sort=name")
        assert [html.unescape(link) for link in _SUBJECT.findall(page)] == ["/usage?tag=team%3Dweb&span=7d"]
        assert 'href="/console/tags?search=we&amp;tag=team&amp;sort=-name"' in page, "an order keeps tag and search"
        assert "No value matches" in (await ben.open("/tags?tag=team&search=none"))[1]
        for person in (ada, ben, eve):
            await person.session.close()


async def list_all(person: Person, limit: int) -> tuple[list[dict[str, int]], int]:
    """All end users, page by page, and their number as the first page tells it."""
    lines: list[dict[str, int]] = []
    total, after = 0, ""
    while True:
        status, page = await person.call("GET", f"/end-users?limit={limit}" + (f"&after={after}" if after else ""))
        assert status == 200, page
        lines, total = [*lines, *page["data"]], total or page["total"]
        if page["next"] is None:
            return lines, total
        after = page["next"]


async def test_of_too_many_end_users_the_pages_list_those_of_the_newest_days(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url)), clock=lambda: NOON_S)
        ada = await make_administrator(gateway)
        await send(gateway, KEY, "ann", "")
        (row,) = await gateway.rows(1)
        database = gateway.app[SERVICES].storage.database
        older = attrs.evolve(
            row, id="req_older", settled_ms=row.settled_ms - DAY_S * 1000, end_user="bob", cost_nanos=0
        )
        await LedgerRepository(database).post([older])
        for path in ("/end-users", "?span=7d"):
            _, page = await ada.open(path)
            assert ("end_user=ann" in page, "end_user=bob" in page) == (True, True), path
            assert ("days from 2026-11-30" in page, "since 2026-11-30" in page) == (False, False), path

        counts = subject_counts.c
        await database.write(
            lambda connection: connection.execute(
                update(subject_counts).where(counts.day == NOON_S // DAY_S).values(distinct_values=MAX_RANKED)
            )
        )
        _, page = await ada.open("/end-users?span=30d")
        assert "only the days since 2026-11-30." in page
        links = [html.unescape(link) for link in _SUBJECT.findall(page)]
        assert links == ["/usage?end_user=ann&since=2026-11-30&until=2026-11-30"]
        _, page = await ada.open("?span=7d")
        assert ("since 2026-11-30" in page, "end_user=bob" in page) == (True, False)
        assert "/requests?since=2026-11-30&until=2026-11-30&end_user=ann" in html.unescape(page)
        await ada.session.close()


async def test_without_users_and_tags_the_pages_say_so(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(channel(up.base_url)))
        ada = await make_administrator(gateway)
        for path, words in (
            ("/end-users", "No end users in this period"),
            ("/end-users?account=deleted", "No end users in this period"),
            ("/tags", "No tags in this period"),
            ("/tags?account=deleted", "No tags in this period"),
            ("/tags?account=deleted&tag=team", "No tags in this period"),
        ):
            status, page = await ada.open(path)
            assert (status, words in page) == (200, True), path
        await ada.session.close()
