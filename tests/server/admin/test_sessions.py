"""The console's session on the wire: its cookie, how it ends, and that no other site can use it."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from http.cookies import Morsel, SimpleCookie
from typing import Any

import aiohttp
import attrs
import orjson
import pytest
from structlog.testing import capture_logs

from gateway.domain.member import ABSOLUTE_MS, IDLE_MS, Member, Role
from gateway.domain.member_spec import MemberSpec
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.server.sessions import CONSOLE_HEADER, COOKIE, KEY_HEADER, SECURE_COOKIE
from tests.support.console import FROGS, PAGE, add_member, open_session
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.raw_client import connect, read_answer
from tests.support.started_gateways import StartGateway

CANARY = "c4nary of the seven seas"
CONFIG: dict[str, Any] = {
    "channel": [channel("http://127.0.0.1:9/v1")],
    "account": [{"name": "acme"}, {"name": "other"}],
}
ELSEWHERE = "https://evil.example"


@attrs.define
class Clock:
    """Stands still until it is set."""

    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@attrs.frozen
class Wire:
    """Requests to a gateway with just the headers and cookies that a test names."""

    gateway: RunningGateway
    session: aiohttp.ClientSession

    async def send(
        self, method: str, path: str, cookies: Any = None, body: Any = None, **headers: str
    ) -> tuple[int, Any, "SimpleCookie"]:
        """Status, JSON and what the answer sets of cookies."""
        named = dict(headers)
        if cookies:
            named["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        url = self.gateway.url + (path if path.startswith("/v1") else PREFIX + path)
        async with self.session.request(method, url, json=body, headers=named) as response:
            answer = await response.json(content_type=None)
            return response.status, answer, response.cookies

    async def page(self, method: str, path: str, reference: str | None = None, body: Any = None) -> tuple[int, Any]:
        """From a page of ours, over plain HTTP."""
        cookies = {} if reference is None else {COOKIE: reference}
        status, answer, _ = await self.send(method, path, cookies, body, **PAGE)
        return status, answer

    async def add(self, name: str = "ann", role: Role = "member", account: str = "acme") -> Member:
        """A new member."""
        return await add_member(self.gateway, name, role, account)

    async def open(self, member: Member, address: str = "") -> str:
        """A session of theirs; its reference."""
        return await open_session(self.gateway, member, address)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def wire(gateway_with: StartGateway, session: aiohttp.ClientSession, clock: Clock) -> Wire:
    return Wire(await gateway_with(CONFIG, clock=clock), session)


def read_cookie(cookies: "SimpleCookie") -> "Morsel[str]":
    """The only one that was set."""
    (morsel,) = cookies.values()
    return morsel


SIGN_IN = {"name": "ann", "passphrase": FROGS}


async def test_over_plain_http_the_cookie_is_for_this_host_and_no_script(wire: Wire) -> None:
    await wire.add()
    status, body, cookies = await wire.send("POST", "/session", body=SIGN_IN, **PAGE)
    cookie = read_cookie(cookies)
    assert (status, body["member"]["name"], cookie.key) == (201, "ann", COOKIE)
    assert {name for name, value in cookie.items() if value} == {"httponly", "path", "samesite"}
    assert (cookie["path"], cookie["samesite"]) == ("/", "Strict")
    assert len(cookie.value) >= 43
    assert cookie.value not in str(body)
    status, body = await wire.page("GET", "/session", cookie.value)
    assert (status, body["member"]["name"], body["account"]["name"]) == (200, "ann", "acme")
    _, _, cookies = await wire.send("DELETE", "/session", {COOKIE: cookie.value}, **PAGE)
    gone = read_cookie(cookies)
    assert (gone.key, gone.value, gone["max-age"], gone["path"]) == (COOKIE, "", "0", "/")
    assert (await wire.page("GET", "/session", cookie.value))[0] == 401


@pytest.mark.parametrize(
    ("server", "cases"),
    [
        (
            {"base_url": "https://gw.example.org"},
            (({"Host": "gw.example.org"}, True), ({"Host": "GW.Example.org"}, True), ({}, False)),
        ),
        (
            {"trusted_proxies": ["127.0.0.1"]},
            (({"X-Forwarded-Proto": "https"}, True), ({"X-Forwarded-Proto": "http"}, False)),
        ),
        (
            {"base_url": "http://gw.example.org", "trusted_proxies": ["192.0.2.1"]},
            (({"X-Forwarded-Proto": "https"}, False), ({"Host": "gw.example.org"}, False)),
        ),
    ],
)
async def test_over_tls_the_cookie_is_one_that_nothing_else_can_set(
    gateway_with: StartGateway,
    session: aiohttp.ClientSession,
    server: dict[str, Any],
    cases: tuple[tuple[dict[str, str], bool], ...],
) -> None:
    """TLS ends here, or at a trusted proxy; the headers of other senders are ignored."""
    wire = Wire(await gateway_with({**CONFIG, "server": server}), session)
    await wire.add()
    for headers, secure in cases:
        sent = {**PAGE, **headers}
        status, _, cookies = await wire.send("POST", "/session", body=SIGN_IN, **sent)
        cookie = read_cookie(cookies)
        assert (status, cookie.key) == (201, SECURE_COOKIE if secure else COOKIE), headers
        assert bool(cookie["secure"]) is secure
        assert (cookie["path"], cookie["domain"], cookie["samesite"]) == ("/", "", "Strict")
        for name, expected in ((COOKIE, 401 if secure else 200), (SECURE_COOKIE, 200 if secure else 401)):
            assert (await wire.send("GET", "/session", {name: cookie.value}, **sent))[0] == expected
        _, _, cookies = await wire.send("DELETE", "/session", {cookie.key: cookie.value}, **sent)
        assert bool(read_cookie(cookies)["secure"]) is secure, "a browser takes nothing else for that name"


async def test_signing_in_and_a_new_passphrase_change_the_reference(wire: Wire) -> None:
    ann = await wire.add()
    chosen = await wire.open(await wire.add("eve"))
    _, _, cookies = await wire.send("POST", "/session", {COOKIE: chosen}, SIGN_IN, **PAGE)
    first = read_cookie(cookies).value
    assert first != chosen
    assert (await wire.page("GET", "/session", chosen))[0] == 401
    elsewhere = await wire.open(ann)
    body = {"current": FROGS, "passphrase": CANARY}
    status, _, cookies = await wire.send("POST", "/session/passphrase", {COOKIE: first}, body, **PAGE)
    second = read_cookie(cookies).value
    assert status == 200
    assert [(await wire.page("GET", "/session", one))[0] for one in (first, elsewhere, second)] == [401, 401, 200]


async def test_a_session_runs_out_unused_and_at_last(wire: Wire, clock: Clock) -> None:
    reference = await wire.open(await wire.add())
    began_s = clock.now_s
    while clock.now_s + 1700 < began_s + ABSOLUTE_MS / 1000:
        clock.now_s += 1700
        assert (await wire.page("GET", "/session", reference))[0] == 200
    clock.now_s = began_s + ABSOLUTE_MS / 1000
    status, body = await wire.page("GET", "/session", reference)
    assert (status, body["error"]["code"]) == (401, "signed_out")
    idle = await wire.open(await wire.add("bob"))
    clock.now_s += IDLE_MS / 1000
    assert (await wire.page("GET", "/session", idle))[0] == 401


async def test_sessions_are_seen_and_ended_from_elsewhere(wire: Wire) -> None:
    ann = await wire.add()
    here, there, third = [await wire.open(ann, address) for address in ("192.0.2.1", "192.0.2.2", "192.0.2.3")]
    foreign = await wire.open(await wire.add("bob"))
    _, listed = await wire.page("GET", "/sessions", here)
    assert {(one["address"], one["current"]) for one in listed["data"]} == {
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("192.0.2.3", False),
    }
    ids = {one["address"]: one["id"] for one in listed["data"]}
    foreign_id = (await wire.page("GET", "/sessions", foreign))[1]["data"][0]["id"]
    assert (await wire.page("DELETE", f"/sessions/{foreign_id}", here))[0] == 404
    assert (await wire.page("DELETE", f"/sessions/{ids['192.0.2.2']}", here))[0] == 200
    assert await wire.page("DELETE", "/sessions", here) == (200, {"deleted": 1})
    alive = [(await wire.page("GET", "/session", one))[0] for one in (here, there, third, foreign)]
    assert alive == [200, 401, 401, 200]


async def test_who_is_disabled_or_demoted_is_out_at_once(wire: Wire) -> None:
    chief = await wire.open(await wire.add("chief", "administrator"))
    people = {name: await wire.add(name, "member", "other") for name in ("ann", "bob", "cy", "dan")}
    references = {name: await wire.open(member) for name, member in people.items()}
    changes = (
        ("PATCH", f"/members/{people['ann'].id}", {"status": "disabled"}, "ann"),
        ("PATCH", f"/members/{people['bob'].id}", {"role": "viewer"}, "bob"),
        ("DELETE", f"/members/{people['cy'].id}", None, "cy"),
    )
    for method, path, body, name in changes:
        assert (await wire.page("GET", "/session", references[name]))[0] == 200
        status, answer = await wire.page(method, path, chief, body)
        assert status == 200, answer
        assert (await wire.page("GET", "/session", references[name]))[0] == 401
    invitations = wire.gateway.app[SERVICES].auth.invitations
    other = await wire.gateway.app[SERVICES].auth.accounts.get_stored_account("other")
    await invitations._accounts.put_account(attrs.evolve(other, status="disabled"))
    assert (await wire.page("GET", "/session", references["dan"]))[0] == 401
    status, answer = await wire.page("POST", "/session", None, {"name": "dan", "passphrase": FROGS})
    assert (status, answer["error"]["code"]) == (403, "forbidden")


SITES = (None, "same-origin", "same-site", "cross-site", "none", "nonsense")
ORIGINS = (None, "own", ELSEWHERE, "null")


async def test_no_other_site_can_use_a_session(wire: Wire) -> None:
    """Sec-Fetch-Site x Origin x the console's header x the method, each against the rule that is written here again."""
    reference = await wire.open(await wire.add())
    for site, origin, header, method in itertools.product(SITES, ORIGINS, (False, True), ("GET", "DELETE")):
        headers = {"Sec-Fetch-Site": site, "Origin": wire.gateway.url if origin == "own" else origin}
        sent = {name: value for name, value in headers.items() if value is not None}
        if header:
            sent[CONSOLE_HEADER] = "1"
        if site is not None:
            ours = site == "same-origin" or (site == "none" and method == "GET")
        else:
            ours = origin in {None, "own"}
        allowed = ours and (method == "GET" or header)
        path = "/session" if method == "GET" else "/sessions/0123456789abcdef"
        status, body, _ = await wire.send(method, path, {COOKIE: reference}, **sent)
        expected = (200 if method == "GET" else 404) if allowed else 403
        assert status == expected, (site, origin, header, method)
        if not allowed:
            assert body["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    ("server", "origin", "proto", "status"),
    [
        ({}, "http://HOST", "", 200),
        ({}, "https://HOST", "", 200),
        ({}, "ftp://HOST", "", 403),
        ({"trusted_proxies": ["127.0.0.1"]}, "https://HOST", "https", 200),
        ({"trusted_proxies": ["127.0.0.1"]}, "http://HOST", "https", 403),
        ({"base_url": "https://ai.example.com"}, "https://ai.example.com", "", 200),
        ({"base_url": "https://ai.example.com"}, "http://ai.example.com", "", 403),
    ],
)
async def test_a_page_of_this_host_that_came_without_tls_is_no_page_of_ours_behind_tls(  # noqa: PLR0917 - the table's
    gateway_with: StartGateway,
    session: aiohttp.ClientSession,
    server: dict[str, Any],
    origin: str,
    proto: str,
    status: int,
) -> None:
    """Anybody on the way may have written it. Browsers before 2023 send no ``Sec-Fetch-Site``."""
    wire = Wire(await gateway_with({"server": server}), session)
    secure = proto == "https"
    reference = await wire.open(await wire.add())
    headers = {"Origin": origin.replace("HOST", wire.gateway.url.removeprefix("http://"))}
    if proto:
        headers["X-Forwarded-Proto"] = proto
    cookie = SECURE_COOKIE if secure else COOKIE
    assert (await wire.send("GET", "/session", {cookie: reference}, **headers))[0] == status


async def test_no_other_site_can_sign_anybody_in(wire: Wire) -> None:
    """Into an account of the attacker's, where what is typed next is the attacker's to read."""
    await wire.add()
    token = "x" * 43
    bodies = {
        "/session": SIGN_IN,
        "/setup": {"token": token, "name": "eve", "passphrase": FROGS},
        "/links/use": {"token": token, "name": "eve", "passphrase": FROGS},
    }
    foreign: tuple[Any, ...] = (
        {"Sec-Fetch-Site": "cross-site", CONSOLE_HEADER: "1"},
        {"Sec-Fetch-Site": "same-site", CONSOLE_HEADER: "1"},
        {"Origin": ELSEWHERE, CONSOLE_HEADER: "1"},
        {"Origin": "null", CONSOLE_HEADER: "1"},
        {"Sec-Fetch-Site": "same-origin"},
        {},
    )
    for (path, body), headers in itertools.product(bodies.items(), foreign):
        status, answer, cookies = await wire.send("POST", path, None, body, **headers)
        assert (status, answer["error"]["code"], dict(cookies)) == (403, "forbidden", {}), (path, headers)
    url = f"{wire.gateway.url}{PREFIX}/session"
    async with wire.session.post(url, data=SIGN_IN, headers=PAGE) as response:  # as a form can send it
        assert (response.status, dict(response.cookies)) == (415, {})


async def test_what_lets_in_at_one_door_lets_in_at_no_other(wire: Wire) -> None:
    token, reference = wire.gateway.admin_token, await wire.open(await wire.add())
    key_id = "1"
    refused: tuple[tuple[str, dict[str, str], dict[str, str]], ...] = (
        (f"/session?token={token}", {}, {}),
        (f"/session?session={reference}", {}, {}),
        ("/session", {COOKIE: token}, {}),
        ("/session", {COOKIE: KEY}, {}),
        ("/session", {"session": reference}, {}),
        ("/session", {COOKIE: reference[:-1]}, {}),
        ("/session", {COOKIE: reference.swapcase()}, {}),
        ("/session", {}, {"Authorization": f"Bearer {reference}"}),
        ("/session", {}, {"Authorization": f"Basic {token}"}),
        ("/session", {}, {"X-Api-Key": token}),
        ("/session", {COOKIE: reference}, {"Authorization": "Bearer wrong"}),
        ("/v1/models", {}, {"Authorization": f"Bearer {token}"}),
        ("/v1/models", {}, {"Authorization": f"Bearer {reference}"}),
        ("/v1/models", {COOKIE: token}, {KEY_HEADER: key_id}),
        ("/v1/models", {}, {KEY_HEADER: key_id}),
        ("/v1/videos", {}, {}),
    )
    for path, cookies, headers in refused:
        status, body, _ = await wire.send("GET", path, cookies, **{"Sec-Fetch-Site": "same-origin", **headers})
        assert status == 401, (path, cookies.keys(), headers.keys())
        assert token not in str(body)
        assert reference not in str(body)
    status, _, _ = await wire.send("GET", "/session", {}, Authorization=f"Bearer {token}")
    assert status == 403, "the bearer of the token is nobody who is signed in"


async def test_what_is_too_much_is_not_hashed_and_counts_for_no_try(wire: Wire) -> None:
    await wire.add()
    for passphrase, expected in (("x" * 257, 400), ("x" * 20_000, 413), ("", 401), (None, 400), ([FROGS], 400)):
        status, answer = await wire.page("POST", "/session", None, {"name": "ann", "passphrase": passphrase})
        assert status == expected, answer
    for body in ({}, {"name": "ann"}, {**SIGN_IN, "nmae": 1}, {**SIGN_IN, "code": "1" * 65}):
        for _ in range(3):
            assert (await wire.page("POST", "/session", None, body))[0] == 400
    assert (await wire.page("POST", "/session", None, SIGN_IN))[0] == 201


async def test_after_five_wrong_tries_there_is_a_wait(wire: Wire) -> None:
    ann = await wire.add()
    inside = await wire.open(ann)
    wrong = {**SIGN_IN, "passphrase": "nine brown toads hum"}
    codes = [(await wire.page("POST", "/session", None, wrong))[1]["error"]["code"] for _ in range(6)]
    assert codes == ["wrong_passphrase"] * 5 + ["rate_limit_exceeded"]
    url = f"{wire.gateway.url}{PREFIX}/session"
    async with wire.session.post(url, json=SIGN_IN, headers=PAGE) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    assert (await wire.page("GET", "/session", inside))[0] == 200, "a session goes on"


async def test_no_answer_of_the_office_is_kept_by_anybody(wire: Wire) -> None:
    reference = await wire.open(await wire.add())
    paths = {"/session": 200, "/sessions": 200, "/setup": 200, "/keys/999": 404, "/members": 403, "/nothing": 404}
    for path, status in paths.items():
        headers = {**PAGE, "Cookie": f"{COOKIE}={reference}"}
        async with wire.session.get(wire.gateway.url + PREFIX + path, headers=headers) as response:
            reported = (response.headers["Cache-Control"], response.headers["X-Content-Type-Options"])
            assert (response.status, *reported) == (status, "no-store", "nosniff")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/v1/keys", b'{"name": "mine for good"}'),
        ("/admin/v1/session/second-factor", b'{"passphrase": "four green frogs sing"}'),
        ("/v1/chat/completions", orjson.dumps(HELLO)),
    ],
)
async def test_whose_session_ends_while_its_body_arrives_changes_nothing(wire: Wire, path: str, body: bytes) -> None:
    """A body may take a minute: begun before, it is no way to go on afterwards."""
    ann = await wire.add()
    reference = await wire.open(ann)
    head = [
        f"POST {path} HTTP/1.1",
        "Host: gateway",
        f"Cookie: {COOKIE}={reference}",
        f"{CONSOLE_HEADER}: 1",
        f"{KEY_HEADER}: 1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    reader, writer = await connect(wire.gateway.url)
    try:
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body[:5])
        await asyncio.sleep(0.05)
        await wire.gateway.app[SERVICES].auth.members.edit(ann.id, MemberSpec(status="disabled"))
        writer.write(body[5:])
        answer = await read_answer(reader)
    finally:
        writer.close()
    assert (answer.status, answer.error["code"]) == (401, "signed_out")
    assert len(await wire.gateway.app[SERVICES].auth.accounts.list_keys()) == 1


async def test_a_passphrase_is_found_nowhere_afterwards(wire: Wire) -> None:
    """In no line of the log, no error and no file of the data folder; nor is a reference, or a link's token."""
    answers: list[Any] = []
    with capture_logs() as lines:
        chief = await wire.open(await wire.add("chief", "administrator"))
        _, link = await wire.page("POST", "/links", chief, {"account": "acme", "role": "member"})
        token = link["token"]
        body = {"token": token, "name": "zoe", "passphrase": CANARY}
        answers.append(await wire.page("POST", "/links/open", None, {"token": token}))
        status, _, cookies = await wire.send("POST", "/links/use", None, body, **PAGE)
        assert status == 201
        reference = read_cookie(cookies).value
        for name, passphrase in (("zoe", CANARY + "!"), (CANARY, "zoe"), ("zoe", CANARY * 20)):
            answers.append(await wire.page("POST", "/session", None, {"name": name, "passphrase": passphrase}))
        answers.append(await wire.page("POST", "/session", None, {"name": [CANARY], "passphrase": [CANARY]}))
        answers.append(await wire.page("POST", "/session/passphrase", reference, {"current": "", "passphrase": CANARY}))
        answers.append(await wire.page("GET", "/links", chief))
    assert [status for status, _ in answers] == [200, 401, 401, 400, 400, 401, 200]
    shown = repr([lines, answers])
    kept = b"".join(path.read_bytes() for path in wire.gateway.folder.path.rglob("*") if path.is_file())
    for secret in ("c4nary", reference, chief, token):
        assert secret not in shown
        assert secret.encode() not in kept
