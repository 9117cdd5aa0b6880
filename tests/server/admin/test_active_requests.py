"""Requests under way, as permitted users see them: listed, followed and cancelled; and the state of the process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import aiohttp
import jsonschema
import orjson
import pytest
from structlog.testing import capture_logs

from gateway.auth.sessions import ClientInfo
from gateway.domain.audit_log import OPERATOR, AuditFilter, AuditRow
from gateway.domain.member import Credential, Member, Role
from gateway.errors import StoreUnavailable
from gateway.proxy.active_requests import ActiveRequests
from gateway.server.admin.active_requests import add_audit
from gateway.server.admin.activity_feed import MAX_WATCHERS, TICK_S, ActiveRequestsFeed, list_running
from gateway.server.admin.operation import AdminOperation
from gateway.server.admin.prefix import PREFIX
from gateway.server.admin.routes import list_admin_operations
from gateway.server.context import SERVICES
from gateway.server.sessions import CONSOLE_HEADER, COOKIE
from gateway.storage.audit_log import AuditLogRepository
from tests.support.fault_scene import UNHURRIED, site, until
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.repositories import LazyDatabase
from tests.support.scripted_upstream import STALL, ScriptedUpstream
from tests.support.started_gateways import StartGateway
from tests.support.upstream_scripts import STARTED, TWO

OTHER = "sk-test-key-of-another-account"
TWO_ACCOUNTS: dict[str, Any] = {
    "account": [{"name": "acme"}, {"name": "other"}],
    "key": [
        {"name": "test", "account": "acme", "secret": "sk-test-key-of-the-only-caller"},
        {"name": "theirs", "account": "other", "secret": OTHER},
    ],
}
Ask = Callable[..., Awaitable[tuple[int, Any]]]


class Person:
    """Somebody who asks the admin API: the bearer of the token, or a member by a session."""

    def __init__(self, gateway: RunningGateway, headers: dict[str, str]) -> None:
        self._gateway = gateway
        self.headers = headers

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        url = f"{self._gateway.url}{PREFIX}{path}"
        async with (
            aiohttp.ClientSession() as client,
            client.request(method, url, headers=self.headers, json=body) as response,
        ):
            value = await response.json()
            if response.status == 200:
                jsonschema.validate(value, dict(find_door(method, path).handler.answer))
            return response.status, value

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._gateway.url}{PREFIX}/running/events"
        async with aiohttp.ClientSession() as client, client.get(url, headers=self.headers) as response:
            yield response


def find_door(method: str, path: str) -> AdminOperation:
    known = {(door.method, door.path): door for door in list_admin_operations()}
    return known[method, "/running/{id}/cancel" if path.endswith("/cancel") else path]


def operator(gateway: RunningGateway) -> Person:
    return Person(gateway, {"Authorization": f"Bearer {gateway.admin_token}"})


async def sign_in(gateway: RunningGateway, name: str, role: Role, account_id: int = 1) -> Person:
    """A member with a session."""
    sessions = gateway.app[SERVICES].auth.sessions
    member = await sessions._members.add_member(Member(0, account_id, name, role, passphrase="hash"))
    entry = await sessions.open(member, Credential("hash", is_known=True), ClientInfo())
    return Person(gateway, {"Cookie": f"{COOKIE}={entry.reference}", CONSOLE_HEADER: "1"})


@asynccontextmanager
async def streaming(gateway: RunningGateway, key: str | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
    """A stream that has begun and does not end."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with gateway.post({**HELLO, "stream": True}, headers=headers) as response:
        await response.content.readuntil(TWO)
        yield response
        response.close()


async def next_event(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    async with asyncio.timeout(5):
        raw = (await response.content.readuntil(b"\n\n")).decode()
    name, _, data = raw.removesuffix("\n\n").partition("\n")
    assert name == "event: running"
    return list(orjson.loads(data.removeprefix("data: ")))


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream([*STARTED, STALL]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(gateway_with: StartGateway, up: ScriptedUpstream) -> RunningGateway:
    gateway = await gateway_with(site(channel(up.base_url, **UNHURRIED), **TWO_ACCOUNTS))
    gateway.app[SERVICES].admin.active_feed.tick_s = 0.02
    return gateway


async def test_everyone_sees_what_is_theirs(gateway: RunningGateway) -> None:
    root, viewer = operator(gateway), await sign_in(gateway, "vera", "viewer")
    assert await root.ask("GET", "/running") == (200, {"object": "list", "data": [], "unanswered": []})
    async with streaming(gateway), streaming(gateway, OTHER):
        _, listed = await root.ask("GET", "/running")
        mine, theirs = listed["data"]
        assert (mine["account"], mine["key_name"], theirs["account"]) == ("acme", "test", "other")
        assert (mine["model"], mine["operation"], mine["stream"], mine["phase"]) == ("m", "chat", True, "streaming")
        assert (mine["channel"], mine["attempts"], mine["address"]) == ("up", 1, "127.0.0.1")
        _, listed = await viewer.ask("GET", "/running")
        (seen,) = listed["data"]
        assert seen | {"running_ms": 0} == mine | {"running_ms": 0, "channel": None, "address": None}
    await until(lambda: not gateway.app[SERVICES].active_requests.calls)


async def test_who_may_end_a_call_and_what_is_on_record_of_it(gateway: RunningGateway) -> None:
    viewer, member = await sign_in(gateway, "vera", "viewer"), await sign_in(gateway, "max", "member")
    stranger = await sign_in(gateway, "eve", "member", 2)
    async with streaming(gateway) as response:
        (request_id,) = gateway.app[SERVICES].active_requests.calls
        path = f"/running/{request_id}/cancel"
        assert (await viewer.ask("POST", path))[0] == 403
        assert (await stranger.ask("POST", path))[0] == 404
        assert await member.ask("POST", path) == (200, {"id": request_id, "cancelled": True, "unanswered": []})
        assert b"request_cancelled" in await response.content.read()
    assert (await member.ask("POST", path))[0] == 404
    assert (await operator(gateway).ask("POST", "/running/req_x/cancel"))[0] == 404
    (row,) = await gateway.app[SERVICES].admin.audit_log.list_audit(AuditFilter(action="request"), 10)
    assert (row.action, row.subject, row.actor, row.account_id) == ("request.cancelled", request_id, "max", 1)


async def test_two_who_end_the_same_call_leave_one_line_of_it(gateway: RunningGateway) -> None:
    async with streaming(gateway):
        (request_id,) = gateway.app[SERVICES].active_requests.calls
        path = f"/running/{request_id}/cancel"
        answers = await asyncio.gather(*(operator(gateway).ask("POST", path) for _ in range(3)))
    assert {status for status, _ in answers} <= {200, 404}
    assert len(await gateway.app[SERVICES].admin.audit_log.list_audit(AuditFilter(action="request"), 10)) == 1


async def test_whoever_watches_is_told_at_once_and_of_every_change(gateway: RunningGateway) -> None:
    viewer = await sign_in(gateway, "vera", "viewer", 2)
    async with operator(gateway).watch() as all_of_it, viewer.watch() as theirs:
        assert all_of_it.headers["Content-Type"] == "text/event-stream"
        assert (await next_event(all_of_it), await next_event(theirs)) == ([], [])
        async with streaming(gateway):
            while not (reported := await next_event(all_of_it)) or reported[0]["phase"] != "streaming":
                pass
            assert reported[0]["channel"] == "up"
            async with streaming(gateway, OTHER):
                while not (reported := await next_event(theirs)) or reported[0]["phase"] != "streaming":
                    pass
                assert [(one["account"], one["channel"]) for one in reported] == [("other", None)]
            while await next_event(theirs):
                pass
        while await next_event(all_of_it):
            pass


async def test_a_look_is_taken_once_a_tick_for_all_and_never_for_nobody(gateway: RunningGateway) -> None:
    live, root = gateway.app[SERVICES].admin.active_feed, operator(gateway)
    assert live.taken == 0
    live.tick_s = 0.04
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with root.watch() as one, root.watch() as two, root.watch() as three:
        for response in (one, two, three):
            await next_event(response)
        await asyncio.sleep(0.07)
    await until(lambda: not live._snapshots)
    taken = live.taken
    assert 1 <= taken <= 2 + (loop.time() - began) / (live.tick_s * 0.9)
    await asyncio.sleep(0.09)
    assert live.taken == taken


async def test_no_more_than_so_many_watch_for_an_account(gateway: RunningGateway) -> None:
    live, root = gateway.app[SERVICES].admin.active_feed, operator(gateway)
    member = await sign_in(gateway, "max", "member")
    with ExitStack() as watching:
        for _ in range(MAX_WATCHERS):
            watching.enter_context(live.following.hold_stream(1))
        async with member.watch() as refused, root.watch() as response:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
            assert await next_event(response) == []


async def test_it_ends_with_the_session_and_with_the_gateway(gateway: RunningGateway) -> None:
    live = gateway.app[SERVICES].admin.active_feed
    live.retry_s = 0.0
    member = await sign_in(gateway, "max", "member")
    async with member.watch() as response, operator(gateway).watch() as other:
        await next_event(response)
        store = gateway.app[SERVICES].auth.sessions._members
        (session,) = await store.list_sessions(1)
        await store.delete_sessions([session.digest])
        assert not (await asyncio.wait_for(response.content.read(), 5)).strip()
        await next_event(other)
        gateway.app[SERVICES].drain.open = False
        assert not (await asyncio.wait_for(other.content.read(), 5)).strip()


def test_what_has_not_changed_is_not_told_again() -> None:
    live = ActiveRequestsFeed(ActiveRequests(None), ask=None)
    first = live.snapshot(None, 10.0)
    assert (live.snapshot(None, 10.5), live.taken, first.data) == (first, 1, "[]")
    again = live.snapshot(None, 10.0 + TICK_S)
    assert (again.number, live.taken) == (first.number, 2)


async def test_the_process_says_how_it_is_doing(gateway: RunningGateway) -> None:
    assert (await (await sign_in(gateway, "vera", "member")).ask("GET", "/health"))[0] == 403
    async with streaming(gateway):
        status, health = await operator(gateway).ask("GET", "/health")
    assert (status, health["running"], health["channels"]) == (
        200,
        1,
        {"untested": 1, "healthy": 0, "failing": 0, "cooling_down": 0, "recovering": 0, "draining": 0, "disabled": 0},
    )
    assert health["memory_bytes"] > 20_000_000
    assert health["cpu_s"] > 0
    assert health["connections"] == 2
    assert health["open_files"] > health["connections"]
    assert health["tasks"] > 1
    store = health["store"]
    assert (store["writable"], store["last_commit_ms"] >= 0, store["bytes"] > 0) == (True, True, True)
    assert health["queue"] == {"waiting_rows": 0, "failing": False, "set_aside": 0}
    empty = {"bytes": 0, "files": 0}
    assert (health["media"], health["videos"]) == (empty, {"open": 0, "kept": empty})
    assert health["journal_bytes"] > 0


async def test_a_store_that_cannot_be_written_to_is_said_to_be_so(gateway: RunningGateway) -> None:
    gateway.app[SERVICES].storage.write_queue.failing = True
    _, health = await operator(gateway).ask("GET", "/health")
    gateway.app[SERVICES].storage.write_queue.failing = False
    assert (health["store"]["writable"], health["queue"]["failing"]) == (False, True)


async def test_a_call_that_is_read_or_waits_says_so(gateway: RunningGateway, up: ScriptedUpstream) -> None:
    running = gateway.app[SERVICES].active_requests
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-test-key-of-the-only-caller\r\n"
    body = orjson.dumps(HELLO)
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    await until(lambda: running.calls)
    (call,) = list_running(running, None, asyncio.get_running_loop().time())
    assert (call.phase, call.model, call.channel, call.attempts) == ("reading", "", None, 0)
    writer.write(body)
    await until(lambda: up.received)
    (call,) = list_running(running, None, asyncio.get_running_loop().time())
    assert (call.phase, call.model, call.channel, call.attempts) == ("waiting", "m", "up", 1)
    running.get(call.id, OPERATOR).cancel()
    await reader.readuntil(b"409")
    writer.close()


async def test_an_operator_puts_channels_in_order_and_nobody_else_does(gateway: RunningGateway) -> None:
    root, member = operator(gateway), await sign_in(gateway, "max", "member")
    more = {"provider": "custom", "base_url": "http://127.0.0.1:9/v1", "models": ["m"]}
    for name in ("a", "b"):
        await gateway.app[SERVICES].routing.channels.add({"name": name, **more})
    names = ["b", "up", "a"]
    assert (await member.ask("POST", "/channels/order", {"names": names}))[0] == 403
    status, listed = await root.ask("POST", "/channels/order", {"names": names})
    shown = {channel["name"]: channel["priority"] for channel in listed["data"]}
    assert (status, shown) == (200, {"b": 1, "up": 0, "a": -1})
    status, refused = await root.ask("POST", "/channels/order", {"names": ["a"]})
    assert (status, refused["error"]["param"]) == (400, "names")
    (row,) = await gateway.app[SERVICES].admin.audit_log.list_audit(AuditFilter(action="channel.ordered"), 10)
    assert (row.actor_kind, row.subject, row.address) == ("token", "b, up, a", "127.0.0.1")


async def test_a_cancel_that_cannot_be_put_on_record_is_in_the_log() -> None:
    class Failing(AuditLogRepository):
        async def add_audit(self, row: AuditRow) -> None:  # noqa: ARG002 - whatever it is
            raise StoreUnavailable("the disk is full")

    with capture_logs() as lines:
        await add_audit(Failing(LazyDatabase()), OPERATOR.build_audit_row("request.cancelled", "req_1", 0))
    assert [(line["event"], line["reason"]) for line in lines] == [("audit_row_lost", "request.cancelled by token")]
