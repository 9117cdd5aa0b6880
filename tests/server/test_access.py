"""Every route of the gateway, and every kind of caller: who gets in, what is not there for them, and what they see."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web
from yarl import URL

from gateway.app import create_app
from gateway.config.schema import Config
from gateway.options import AppOptions
from gateway.server.admin.prefix import PREFIX
from gateway.server.admin.routes import list_admin_operations
from gateway.server.console.routes import list_pages
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE, KEY_HEADER
from gateway.storage.data_folder import DataFolder
from tests.support.access_table import (
    ACCESS,
    ADMIN,
    BY_ADDRESS,
    CHANNEL,
    GONE,
    MODEL,
    NAMED,
    OPEN,
    OURS,
    PAGES,
    PEOPLE,
    PUBLIC,
    THEIRS,
    UNSERVED,
    UNSERVED_METHODS,
    UNWRITTEN,
    Person,
    Row,
    Site,
    expect_admin,
    expect_page,
    expect_public,
    sign_in,
)
from tests.support.console import PAGE, add_member, open_session
from tests.support.gateway import KEY
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.part_services import build_services
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import VideoGateway

ROOT = "/console"
PROVIDERS_KEY = "sk-of-a-provider-9f3e"
KEYS = {OURS: KEY, THEIRS: "sk-test-key-of-another-account", GONE: "sk-test-key-of-a-closed-account"}
CONFIG: dict[str, Any] = {
    "account": [{"name": OURS}, {"name": THEIRS}, {"name": GONE}],
    "key": [{"name": f"{name} laptop", "account": name, "secret": secret} for name, secret in KEYS.items()],
    "egress": {"allow": ["127.0.0.1"]},
}
SECRETS = (*KEYS.values(), PROVIDERS_KEY)


@attrs.frozen
class Asked:
    """A route, what is asked there, and what that person is to be answered."""

    method: str
    path: str
    row: Row
    person: Person
    expected: int
    refused: bool

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}, {self.person.name}"

    @property
    def changes(self) -> bool:
        """Whether it is a change that is to be on record."""
        door = f"{self.method} {self.path.removeprefix(PREFIX)}"
        return self.path.startswith(PREFIX) and self.method != "GET" and not self.refused and door not in UNWRITTEN


@attrs.frozen
class Answered:
    status: int
    text: str
    where: str


@attrs.define
class Review:
    """Asks everything of everybody."""

    site: Site
    session: aiohttp.ClientSession
    references: dict[str, str]
    key_id: str
    problems: list[str] = attrs.Factory(list)
    samples: dict[Any, str] = attrs.Factory(dict)

    async def ask(self, asked: Asked) -> None:
        """Ask, and judge the answer."""
        row, path = asked.row, asked.path
        if row.make is not None:
            made = await self._make(asked)
            path = path[: path.index("{")] + made + path[path.index("}") + 1 :]
        for name, value in NAMED.items():
            path = path.replace(name, value)
        body = await row.write_body(self.site)
        before = await self.site.find_last() if asked.changes else None
        url = URL(f"{self.site.gateway.url}{path}{'?' if row.query else ''}{row.query}", encoded=True)
        headers = await self._identify(asked)
        async with self.session.request(
            asked.method, url, json=body, headers=headers, allow_redirects=False
        ) as response:
            endless = response.content_type == "text/event-stream"
            raw = await (response.content.readuntil(b"\n\n") if endless else response.read())
        self._judge(asked, Answered(response.status, raw.decode(errors="replace"), path))
        if asked.changes and response.ok:
            await self._check_record(asked, before)

    async def _make(self, asked: Asked) -> str:
        """What the path names: new for who may do with it what the row does, and for the others one that stays."""
        make = asked.row.make
        assert make is not None
        if not asked.refused:
            return await make(self.site)
        if make not in self.samples:
            self.samples[make] = await make(self.site)
        return self.samples[make]

    async def _identify(self, asked: Asked) -> dict[str, str]:
        person = asked.person
        if person.shows == "token":
            return {**PAGE, "Authorization": f"Bearer {self.site.gateway.admin_token}"}
        if person.shows == "key":
            return {**PAGE, "Authorization": f"Bearer {KEYS[person.account]}"}
        if person.shows == "nothing":
            return PAGE
        reference = self.references[person.name]
        if asked.row.apart and person.is_in:
            assert person.role is not None
            member = await add_member(self.site.gateway, self.site.name(), person.role, person.account)
            reference = await open_session(self.site.gateway, member)
        elif asked.row.apart:
            reference = "a session that is over"
        keyed = asked.path.startswith("/v1/") and not asked.row.keyless
        return {**PAGE, "Cookie": f"{COOKIE}={reference}"} | ({KEY_HEADER: self.key_id} if keyed else {})

    async def _check_record(self, asked: Asked, before: Any) -> None:
        """What was changed is on record, as done by who has done it."""
        last, shows = await self.site.find_last(), asked.person.shows
        signs_in = asked.row.body is sign_in  # as the member who signs in, for every caller
        kind = "token" if shows == "token" and not signs_in else "member"
        if last is None or (before is not None and last.sequence <= before.sequence):
            self.problems.append(f"{asked.name}: nothing is on record of it")
        elif last.actor_kind != kind or last.address != "127.0.0.1":
            self.problems.append(f"{asked.name}: on record as {last.action} by {last.actor_kind} from {last.address!r}")

    def _judge(self, asked: Asked, answered: Answered) -> None:
        if answered.status != asked.expected:
            self.problems.append(f"{asked.name}: {answered.status}, not {asked.expected}: {answered.text[:160]}")
        text = answered.text.replace(answered.where, "")
        for secret in (*SECRETS, self.site.gateway.admin_token, *self.references.values()):
            if secret in text:
                self.problems.append(f"{asked.name}: is told {secret!r}")
        hidden = [] if asked.person.role == "administrator" or asked.person.shows == "token" else [CHANNEL]
        if asked.person.account in {THEIRS, GONE} and answered.status < 400:
            hidden += [OURS, self.site.video_id, self.site.request_id]
        for word in hidden:
            if word in text and not asked.row.apart:
                self.problems.append(f"{asked.name}: reads {word!r}: {text[max(text.index(word) - 80, 0) :][:160]}")


def list_asked(routes: set[str]) -> list[Asked]:
    """Every route with every person; what is open to anyone, and makes sessions of it, last."""
    asked = []
    for door in sorted(list_admin_operations(), key=lambda door: door.access == "anyone"):
        row = ADMIN[f"{door.method} {door.path}"]
        for person in PEOPLE:
            status = expect_admin(door.access, row, door.handler.status, person)
            may = status == (row.status or door.handler.status)
            asked.append(Asked(door.method, door.full_path, row, person, status, not may))
    for page in list_pages():
        if page.needs is not None:
            row = PAGES.get(page.path, Row())
            statuses = [(person, expect_page(page.needs, row, person)) for person in PEOPLE]
            asked += [Asked("GET", ROOT + page.path, row, person, one, one != 200) for person, one in statuses]
    for name in sorted(name for name in routes if " /v1/" in name):
        method, path = name.replace("* ", "PUT ").split()  # which is served nowhere
        row = PUBLIC.get(name, UNSERVED)
        statuses = [(person, expect_public(row, person)) for person in PEOPLE]
        asked += [Asked(method, path, row, person, one, one != (row.status or 200)) for person, one in statuses]
    asked += [Asked("GET", path, Row(), person, status, True) for path, status in OPEN.items() for person in PEOPLE]
    return asked


def list_routes(app: web.Application) -> set[str]:
    """Method and path of every route; ``HEAD`` goes with ``GET``."""
    return {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }


def test_every_route_is_in_the_table(tmp_path: Path) -> None:
    """Whoever adds one says here who may walk it."""
    folder = DataFolder(tmp_path)
    routes = list_routes(create_app(AppOptions(config=Config(), folder=folder, environ={}), build_services()))
    folder.close()
    admin = {f"{name.split()[0]} {PREFIX}{name.split()[1]}" for name in ADMIN}
    pages = {f"GET {ROOT}{page.path}" for page in list_pages() if page.needs is not None}
    unserved = {name for name in routes if name.startswith(("* /v1/", "* /v1beta/"))} | UNSERVED_METHODS
    named = {
        "/console/static/console.css": "/console/static/{name}",
        "/console/sign-in/corp": "/console/sign-in/{provider}",
        "/console/sign-in/corp/callback": "/console/sign-in/{provider}/callback",
        "/media/nothing.png": "/media/{id}",
        "/help/reference/settings": "/help/{page}",
    }
    opened = {f"GET {named.get(path, path)}" for path in OPEN}
    assert routes == admin | pages | unserved | opened | set(PUBLIC) | BY_ADDRESS
    assert {page.path for page in list_pages() if "{" in page.path} == set(PAGES)
    assert {f"{ROOT}{page.path}" for page in list_pages() if page.needs is None} <= set(OPEN)


def test_what_is_not_for_administrators_alone_is_chosen_one_by_one() -> None:
    """A viewer changes nothing but what is its own: its session, its passphrase, its second factor."""
    for access in ("anyone", "viewer", "member", "body_reader"):
        assert {f"{door.method} {door.path}" for door in list_admin_operations() if door.access == access} == ACCESS[
            access
        ]
    assert all(name.startswith("GET ") or " /session" in name for name in ACCESS["viewer"])
    assert {page.path for page in list_pages() if page.needs == "member"} == {"/playground"}


@pytest.fixture
async def review(gateway_with: StartGateway) -> AsyncIterator[Review]:
    async with (
        OpenAiVideos(Play(polls=["completed"])) as provider,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        gateway = await gateway_with(
            {"channel": [provider.channel(CHANNEL, models=[MODEL], api_key=PROVIDERS_KEY)], **CONFIG}
        )
        gateway.app[SERVICES].admin.active_feed.tick_s = 0.01
        video_gateway = VideoGateway(gateway, provider)
        video_id = await video_gateway.make("a cat")
        services = gateway.app[SERVICES]
        job = await services.videos.jobs.store.find(video_id)
        people = {}
        for person in PEOPLE:
            if person.role is not None:
                member = await add_member(gateway, f"{person.account}-{person.role}", person.role, person.account)
                people[person.name] = await open_session(gateway, member)
        closed = await services.auth.accounts.get_stored_account(GONE)
        await services.auth.accounts.register.accounts.put_account(attrs.evolve(closed, status="disabled"))
        await services.auth.accounts.reload()
        site = Site(gateway, video_id, job.receipt.id, partial(video_gateway.make, "a dog"))
        key_id = str(gateway.app[SERVICES].auth.api_keys.authenticate(f"Bearer {KEY}").key.id)
        yield Review(site, session, people, key_id)
        gateway.app[SERVICES].active_requests.calls.clear()


@pytest.mark.timeout(180)  # some 6,000 requests
async def test_everyone_is_let_in_where_they_may_and_sees_what_is_theirs(review: Review) -> None:
    """Who is refused has changed nothing, and nobody has written of it."""
    asked = list_asked(list_routes(review.site.gateway.app))
    for one in asked:  # what the refused will ask for is there before
        if one.refused and one.row.make is not None and one.row.make not in review.samples:
            review.samples[one.row.make] = await one.row.make(review.site)
    before = await review.site.snap()
    for one in asked:
        if one.refused and not one.row.apart:
            await review.ask(one)
    after = await review.site.snap()
    assert {name: after[name] for name in before if after[name] != before[name]} == {}
    for one in asked:
        if not one.refused or one.row.apart:
            await review.ask(one)
    assert not review.problems, "\n".join(review.problems)


async def test_naming_another_account_is_naming_none(review: Review) -> None:
    """Whatever is listed of an account by name: another's is not there, exactly as one that nobody has."""
    doors = [
        door
        for door in list_admin_operations()
        if door.access == "viewer" and any(q.name == "account" for q in door.handler.query)
    ]
    assert len(doors) >= 5
    headers = {**PAGE, "Cookie": f"{COOKIE}={review.references['a member of another account']}"}
    for door in doors:
        body: dict[str, Mapping[str, Any]] = {}
        for name, expected in ((OURS, 404), ("none", 404), (THEIRS, 200)):
            url = f"{review.site.gateway.url}{door.full_path}?account={name}"
            async with review.session.get(url, headers=headers) as response:
                assert response.status == expected, (door.path, name, await response.text())
                if expected == 404:
                    body[name] = (await response.json())["error"]
        messages = {body[name]["message"].partition(" (")[0].replace(name, "x") for name in body}
        assert len(messages) == 1
