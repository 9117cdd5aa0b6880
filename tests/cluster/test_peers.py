"""What a node asks of another on behalf of an actor, whatever a client has put into the path."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import aiohttp
import asyncpg
import attrs
import pytest
from structlog.testing import capture_logs
from yarl import URL

from gateway.cluster.membership.notifications import NodeNotifications
from gateway.cluster.membership.signature import EVERY_NODE, SIGNATURE_HEADER, NodeRequest, NodeSigner
from gateway.cluster.peers import (
    CANCEL,
    MAX_ANSWER_BYTES,
    PeerAnswer,
    PeerAnswers,
    Peers,
    Timelines,
    build_path,
    find_problem,
)
from gateway.domain.audit_log import OPERATOR, Actor
from gateway.errors import InvalidRequest, NotFound
from gateway.server.actor_header import ACTOR_HEADER, format_actor, parse_actor
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.storage.nodes import list_nodes
from gateway.storage.open import open_database
from tests.support.fault_scene import site
from tests.support.gateway import RunningGateway
from tests.support.part_services import replace_admin
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import Received, ScriptedUpstream
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

OTHER = "0123456789abcdef"
UNKNOWN = Timelines(str, lambda _: None)
OWN = "f" * 16
MASTER_KEY = b"m" * 32
_NODE = """
INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms)
VALUES ($1, 1, 'live', $2, '', '', '', 0)
"""
_BEAT = "INSERT INTO beats (node, beat, at_ms, seen_change) VALUES ($1, 1, 0, 0)"
_BODY = b'{"data":[],"cancelled":true}'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_LARGE = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[%s0]" % (b"0," * (MAX_ANSWER_BYTES // 2))
HOSTILE = (
    "..%2Fbatches%2Fbatch_1",
    "..%2fvideos%2fvideo_1",
    "%2E%2E%2Fvideos%2Fvideo_1",
    "..%5Cvideos%5Cvideo_1",
    "..%252Fvideos%252Fvideo_1",
    "x%2F..%2F..%2Fvideos%2Fvideo_1",
    ".%2E",
    "%2E",
    "%20",
    "req_0123456789abcdef01234567%3Fnode=x%23",
    "req_0123456789abcdef01234567%2F..",
    "req_0123456789abcdef01234567%0D%0A",
    "REQ_0123456789ABCDEF01234567",
    "%00",
)


@pytest.fixture
async def other() -> AsyncIterator[ScriptedUpstream]:
    """The other node: it agrees to everything."""
    async with ScriptedUpstream([_ANSWER]) as upstream:
        yield upstream


@pytest.fixture
async def gateway(
    gateway_with: StartGateway, shared_postgres: SharedPostgres, other: ScriptedUpstream
) -> AsyncIterator[RunningGateway]:
    """A gateway that knows of another node."""
    gateway = await gateway_with(site(account=[{"name": "acme"}, {"name": "other"}]))
    url = await shared_postgres.empty()
    connection = await asyncpg.connect(url)
    await connection.execute(_NODE, OTHER, other.base_url.removesuffix("/v1"))
    await connection.execute(_BEAT, OTHER)
    await connection.close()
    database, services = await open_database(url), gateway.app[SERVICES]
    signer = NodeSigner(MASTER_KEY, services.clock)
    peers = Peers(OWN, database, signer, NodeNotifications(OWN), UNKNOWN)
    with replace_admin(services, peers=peers):
        yield gateway
    await peers.close()
    await database.close()


async def send(
    gateway: RunningGateway, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
) -> int:
    """Send a request to the admin API, and return the status; ``path`` goes out as it is."""
    url = URL(f"{gateway.url}{PREFIX}{path}", encoded=True)
    async with aiohttp.ClientSession() as client, client.request(method, url, headers=headers, data=body) as response:
        return response.status


async def ask(gateway: RunningGateway, method: str, path: str) -> int:
    """Ask with the admin token."""
    return await send(gateway, method, path, {"Authorization": f"Bearer {gateway.admin_token}"})


async def ask_as_node(
    gateway: RunningGateway, method: str, path: str, actor: Actor, answer: Mapping[str, Any] = {}
) -> int:
    """Ask as another node does; ``answer`` is signed instead of what is sent."""
    text = format_actor(actor)
    true = NodeRequest(OWN, method, f"{PREFIX}{path}", text)
    signature = NodeSigner(MASTER_KEY, gateway.app[SERVICES].clock).sign(attrs.evolve(true, **answer))
    return await send(gateway, method, path, {ACTOR_HEADER: text, SIGNATURE_HEADER: signature})


async def test_no_other_node_is_asked_for_what_is_no_id_of_a_request(
    gateway: RunningGateway, other: ScriptedUpstream
) -> None:
    for hostile in HOSTILE:
        assert await ask(gateway, "POST", f"/running/{hostile}/cancel") == 404, hostile
    assert not other.received
    assert await ask(gateway, "POST", "/running/req_0123456789abcdef01234567/cancel") == 200
    (asked,) = other.received
    assert asked.path == f"{PREFIX}/running/req_0123456789abcdef01234567/cancel?node=own"
    actor = asked.headers[ACTOR_HEADER.lower()]
    assert parse_actor(actor) == Actor("token", address="127.0.0.1")
    services = gateway.app[SERVICES]
    assert services.admin.token not in str(asked), "no secret leaves the process"
    signed = NodeRequest(OTHER, "POST", asked.path, actor)
    assert NodeSigner(MASTER_KEY, services.clock).check(asked.headers[SIGNATURE_HEADER.lower()], signed)


async def test_a_name_is_one_segment_of_what_another_node_is_asked(
    gateway: RunningGateway, other: ScriptedUpstream
) -> None:
    for name in ("..%2Fkeys", "a%2Fb", "a%3Fnode=x", "a%23", "%252F", "..;%2Fkeys"):
        assert await ask(gateway, "GET", f"/channels/{name}?node={OTHER}") == 200, name
        path, _, query = other.received[-1].path.partition("?")
        assert (unquote(path.removeprefix(f"{PREFIX}/channels/")), query) == (unquote(name), "node=own")
        assert path.count("/") == PREFIX.count("/") + 2
    asked = len(other.received)
    for name in ("%2E%2E", ".%2e", "."):
        assert await ask(gateway, "GET", f"/channels/{name}?node={OTHER}") == 404, name
    for node in ("..", "..%2F..", f"{OTHER}%2F..", "http:%2F%2F127.0.0.1", "%00", ""):
        assert await ask(gateway, "GET", f"/health?node={node}") == 404, node
    assert len(other.received) == asked


@table_rows("segments", [("channels", ".."), ("running", ".", "cancel"), ("running", "", "cancel")])
def test_a_segment_that_moves_elsewhere_is_refused(segments: tuple[str, ...]) -> None:
    with pytest.raises(NotFound):
        build_path(segments)


async def test_a_node_does_at_most_what_the_actor_may(gateway: RunningGateway) -> None:
    """The other node's signature alone decides nothing."""
    stranger = Actor("member", "eve", 2, 2, scope=2)
    assert await ask_as_node(gateway, "GET", "/health?node=own", OPERATOR) == 200
    assert await ask_as_node(gateway, "GET", "/health?node=own", stranger) == 403
    assert await ask_as_node(gateway, "GET", "/running?node=own", stranger) == 200


@pytest.mark.parametrize("actor", [OPERATOR, Actor("member", "boss", 1, 1), Actor("member", "eve", 2, 2, scope=2)])
async def test_no_actor_is_named_for_what_nodes_do_not_ask_each_other(gateway: RunningGateway, actor: Actor) -> None:
    """Otherwise what a node signs could become a change under a member's name."""
    for method, path in (("GET", "/keys/1"), ("DELETE", "/keys/1"), ("GET", "/accounts"), ("POST", "/accounts")):
        assert await ask_as_node(gateway, method, f"{path}?node=own", actor) == 403, path
    assert await ask_as_node(gateway, "GET", "/running", actor) == 403, "nodes ask each other only for their own"
    assert await ask(gateway, "GET", "/keys/1") == 200, "it is still there"


async def test_only_a_node_speaks_for_an_actor(gateway: RunningGateway) -> None:
    token = {"Authorization": f"Bearer {gateway.admin_token}"}
    stranger = {ACTOR_HEADER: format_actor(Actor("member", "eve", 2, 2, scope=2))}
    assert await send(gateway, "GET", "/health?node=own", token | stranger) == 200, "the token's holder is the operator"
    assert await send(gateway, "GET", "/running?node=own", stranger) == 401
    with replace_admin(gateway.app[SERVICES], peers=None):
        assert await ask_as_node(gateway, "GET", "/running?node=own", OPERATOR) == 401, "there is no other node"


RUNNING = "/running?node=own"


@pytest.mark.parametrize(
    "body",
    [
        {"receiver": OTHER}, {"receiver": EVERY_NODE}, {"method": "POST"}, {"path": f"{PREFIX}/running"},
        {"path": f"{PREFIX}/health?node=own"}, {"path": f"{PREFIX}/running?node=own&account=1"}, {"method": "get"},
        {"path": f"{PREFIX}/running?node=%6Fwn"}, {"path": f"{PREFIX}/runnin%67?node=own"},
        {"path": f"{PREFIX}//running?node=own"}, {"path": f"{PREFIX}/running/?node=own"},
        {"path": f"http://127.0.0.1{PREFIX}{RUNNING}"}, {"path": f"{PREFIX}{RUNNING}#"},
        {"actor": f"{format_actor(OPERATOR)} "}, {"actor": format_actor(Actor("member", "eve", 2, 2, scope=2))},
        {"body": "x"},
    ],
)  # fmt: skip
async def test_each_part_of_a_request_between_nodes_is_signed(gateway: RunningGateway, body: dict[str, Any]) -> None:
    body = {name: value.encode() if name == "body" else value for name, value in body.items()}
    assert await ask_as_node(gateway, "GET", RUNNING, OPERATOR, body) == 401
    assert await ask_as_node(gateway, "GET", RUNNING, OPERATOR) == 200, "it is the difference that is refused"


async def test_a_signature_counts_once_for_a_short_time_and_for_no_body(gateway: RunningGateway) -> None:
    text = format_actor(OPERATOR)
    node_request, now_s = NodeRequest(OWN, "GET", f"{PREFIX}{RUNNING}", text), gateway.app[SERVICES].clock

    def sign(key: bytes, late_s: float) -> dict[str, str]:
        return {ACTOR_HEADER: text, SIGNATURE_HEADER: NodeSigner(key, lambda: now_s() - late_s).sign(node_request)}

    once = sign(MASTER_KEY, 20)
    assert [await send(gateway, "GET", RUNNING, once) for _ in range(2)] == [200, 401]
    for key, late_s in ((MASTER_KEY, 40), (MASTER_KEY, -40), (b"n" * 32, 0)):
        assert await send(gateway, "GET", RUNNING, sign(key, late_s)) == 401
    for wrong in ("", "x", "1.2.3", f"{'9' * 400}.{'0' * 32}.{'0' * 64}", sign(MASTER_KEY, 0)[SIGNATURE_HEADER] + "0"):
        assert await send(gateway, "GET", RUNNING, {**once, SIGNATURE_HEADER: wrong}) == 401, wrong
    for header in (SIGNATURE_HEADER.lower(), SIGNATURE_HEADER.upper()):
        fresh = sign(MASTER_KEY, 0)
        assert await send(gateway, "GET", RUNNING, {ACTOR_HEADER.upper(): text, header: fresh[SIGNATURE_HEADER]}) == 200
    chunked, none = {"Transfer-Encoding": "chunked"}, {"Content-Length": "0"}
    for more, body, status in (({}, b"{}", 400), (chunked, b"{}", 400), (chunked, b"", 400), (none, None, 200)):
        assert await send(gateway, "GET", RUNNING, sign(MASTER_KEY, 0) | more, body) == status, (more, body)


def test_a_signature_counts_once_if_the_clock_is_set_back() -> None:
    now_s = 1_000.0
    receiver = NodeSigner(MASTER_KEY, lambda: now_s)
    node_request = NodeRequest(OWN, "GET", RUNNING, "")
    signature = receiver.sign(node_request)
    assert receiver.check(signature, node_request)
    for later_s in (31, 29, -29, 0):
        now_s = 1_000 + later_s
        assert receiver.check(receiver.sign(node_request), node_request), "another one counts"
        assert not receiver.check(signature, node_request), later_s


async def test_a_cancellation_that_rings_is_signed(gateway: RunningGateway) -> None:
    rung: asyncio.Queue[str] = asyncio.Queue()

    async def send(messages: Sequence[str]) -> None:
        rung.put_nowait(messages[0])

    signer, notifications = NodeSigner(MASTER_KEY, gateway.app[SERVICES].clock), NodeNotifications(OTHER)
    peers = Peers(OTHER, gateway.app[SERVICES].storage.database, signer, notifications, UNKNOWN)
    peers.notify_cancel("req_1", OPERATOR)
    sending = asyncio.create_task(notifications.run(send))
    message = (await rung.get()).partition(f"\n{CANCEL} ")[2]
    sending.cancel()
    for wrong in ("", "req_1", "req_1:!:x", "req_1:e30=:", message.replace("req_1", "req_2"), f"{message}0"):
        with pytest.raises(InvalidRequest):
            peers.parse_cancel(wrong)
    assert peers.parse_cancel(message) == ("req_1", OPERATOR)
    await peers.close()


HTTP = "http://10.0.0.1:8080"


@table_rows(
    ("url", "safely", "insecurely"),
    [
        ("https://node.example.com", True, True), ("http://127.0.0.1:8080", True, True), ("http://[::1]:1", True, True),
        ("https://proxy.example.com/node1", True, True), ("http://localhost:8080", True, True), (HTTP, False, True),
        ("http://127.0.0.1.example.com", False, True), ("http://127.0.0.1@example.com", False, False),
        ("http://[::1", False, False), ("http://127.0.0.1:99999", False, False), ("file:///etc/passwd", False, False),
        ("127.0.0.1:8080", False, False), ("http://", False, False), ("https://host/?x=", False, False),
        ("https://host/#x", False, False), ("https://a\u2100.example.com", False, False), ("\n", False, False),
    ],
)  # fmt: skip
def test_nodes_ask_each_other_over_https_or_on_one_machine(url: str, safely: bool, insecurely: bool) -> None:
    assert [not find_problem(url, insecure=each) for each in (False, True)] == [safely, insecurely]


async def test_a_malformed_row_stops_no_work_of_others(
    shared_postgres: SharedPostgres, other: ScriptedUpstream
) -> None:
    """The table of nodes may hold anything that the database takes."""
    async with (
        ScriptedUpstream([_ANSWER.replace(_BODY, b"x" * len(_BODY))]) as mad,
        ScriptedUpstream([_LARGE]) as large,
    ):
        url = await shared_postgres.empty()
        connection = await asyncpg.connect(url)
        urls = {"a" * 16: HTTP, "x:y": "http://[::1", "": "\n" * 500, "d" * 16: mad.base_url, "e" * 16: large.base_url}
        await (await open_database(url)).close()
        for node, address in {OTHER: other.base_url.removesuffix("/v1"), **urls}.items():
            await connection.execute(_NODE, node, address)
            await connection.execute(_BEAT, node)
        await connection.execute("UPDATE nodes SET started_ms = 9223372036854775807 WHERE id = 'x:y'")
        await connection.execute("UPDATE beats SET at_ms = -9223372036854775808 WHERE node = 'x:y'")
        for detail in ('{"clock_offset_ms":"x","waiting_rows":1e999,"leads":5}', "[]", f'{{"leads":"{"y" * 5000}"}}'):
            await connection.execute("UPDATE beats SET detail = $1 WHERE node = 'x:y'", detail)
            database = await open_database(url)
            assert {node.leads for node in await list_nodes(database)} == {False}
            await database.close()
        database = await open_database(url)
        peers = Peers(OWN, database, NodeSigner(MASTER_KEY, time.time), NodeNotifications(OWN), UNKNOWN)
        with capture_logs() as logs:
            for _ in range(2):
                answers = await peers.ask_all("GET", ("running",), OPERATOR)
                assert (set(answers.by_node), set(answers.unanswered)) == ({OTHER}, set(urls))
        assert [each["event"] for each in logs].count("node_skipped") == 3, (
            "one line each, however often they are skipped"
        )
        await peers.close()
        await database.close()
        await connection.close()


async def test_a_node_that_hangs_holds_up_no_answer_of_another(
    shared_postgres: SharedPostgres, other: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.peers.FIND_TIMEOUT_S", 600.0)
    gate = asyncio.Event()

    async def hang(_: Received) -> None:
        await gate.wait()

    async with ScriptedUpstream([hang]) as hung:
        url = await shared_postgres.empty()
        await (await open_database(url)).close()
        connection = await asyncpg.connect(url)
        for node, upstream in (("a" * 16, hung), (OTHER, other)):
            await connection.execute(_NODE, node, upstream.base_url.removesuffix("/v1"))
            await connection.execute(_BEAT, node)
        database = await open_database(url)
        peers = Peers(OWN, database, NodeSigner(MASTER_KEY, time.time), NodeNotifications(OWN), UNKNOWN)
        async with (
            asyncio.timeout(40),
            peers.open_paths("GET", "/v1/streams/x", OPERATOR, 200) as answers,
        ):  # < the 45 s
            assert [(answer.status, await answer.read()) for answer in answers] == [(200, _BODY)]
        monkeypatch.setattr("gateway.cluster.peers.FIND_TIMEOUT_S", 0.5)
        async with asyncio.timeout(40), peers.open_paths("GET", "/v1/streams/x", OPERATOR, 404) as answers:
            assert [answer.status for answer in answers] in ([200], [])
        gate.set()
        await peers.close()
        await database.close()
        await connection.close()


def test_what_is_no_item_of_a_list_is_left_out() -> None:
    item = {"id": "req_1", "started_at": "2026-01-01T00:00:00Z"}
    bodies: list[dict[str, Any]] = [{"data": 5}, {}, {"data": [5, None, {}, {"id": 1, "started_at": "x"}, item]}]
    answers = PeerAnswers({str(number): PeerAnswer(200, body) for number, body in enumerate(bodies)})
    assert answers.list_items() == [item]


@table_rows(
    "wrong",
    [
        "", "x", "[]", "{}", "5", '{"kind": 5}', '{"kind": "root"}', '{"kind": "member", "scope": "x"}',
        '{"kind": "member", "scope": true}', '{"kind": "member", "scope": 1e30}', '{"kind": "member", "member_id": -1}',
        '{"kind": "member", "name": null}', '{"kind": "member", "role": "administrator"}',
        '{"kind": "member", "account_id": 9223372036854775808}',
    ],
)  # fmt: skip
def test_what_is_no_actor_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=ACTOR_HEADER):
        parse_actor(wrong)
