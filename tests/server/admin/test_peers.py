"""What a node asks of another on behalf of an actor, whatever a client has put into the path."""

from collections.abc import AsyncIterator
from urllib.parse import unquote

import aiohttp
import asyncpg
import attrs
import pytest
from yarl import URL

from gateway.cluster.rings import Rings
from gateway.domain.audit_log import OPERATOR, Actor
from gateway.errors import InvalidRequest, NotFound
from gateway.server.actor_header import ACTOR_HEADER, format_actor, parse_actor
from gateway.server.admin.operation import PREFIX
from gateway.server.context import SERVICES
from gateway.server.peers import Peers, build_path
from gateway.storage.database import open_database
from tests.support.fault_scene import site
from tests.support.gateway import RunningGateway
from tests.support.postgres import SharedPostgres
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.started_gateways import StartGateway

OTHER = "0123456789abcdef"
_NODE = """
INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms)
VALUES ($1, 1, 'live', $2, '', '', '', 0)
"""
_BEAT = "INSERT INTO beats (node, beat, at_ms, seen_change) VALUES ($1, 1, 0, 0)"
_BODY = b'{"data":[],"cancelled":true}'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
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
    alone = services.admin
    peers = Peers("f" * 16, database, alone.token, Rings("f" * 16, _send_nowhere))
    services.admin = attrs.evolve(alone, peers=peers)
    yield gateway
    services.admin = alone
    await peers.close()
    await database.close()


async def _send_nowhere(messages: object) -> None:
    """No ring is sent."""


async def ask(gateway: RunningGateway, method: str, path: str, actor: Actor = OPERATOR) -> int:
    """Ask with the admin token on behalf of an actor; ``path`` goes out as it is."""
    headers = {"Authorization": f"Bearer {gateway.admin_token}", ACTOR_HEADER: format_actor(actor)}
    url = URL(f"{gateway.url}{PREFIX}{path}", encoded=True)
    async with aiohttp.ClientSession() as client, client.request(method, url, headers=headers) as response:
        return response.status


async def test_no_other_node_is_asked_for_what_is_no_id_of_a_request(
    gateway: RunningGateway, other: ScriptedUpstream
) -> None:
    for hostile in HOSTILE:
        assert await ask(gateway, "POST", f"/running/{hostile}/cancel") == 404, hostile
    assert not other.received
    assert await ask(gateway, "POST", "/running/req_0123456789abcdef01234567/cancel") == 200
    (asked,) = other.received
    assert asked.path == f"{PREFIX}/running/req_0123456789abcdef01234567/cancel?node=own"
    assert parse_actor(asked.headers[ACTOR_HEADER.lower()]) == Actor("token", address="127.0.0.1")


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


@pytest.mark.parametrize("segments", [("channels", ".."), ("running", ".", "cancel"), ("running", "", "cancel")])
def test_a_segment_that_moves_elsewhere_is_refused(segments: tuple[str, ...]) -> None:
    with pytest.raises(NotFound):
        build_path(segments)


async def test_a_node_does_at_most_what_the_actor_may(gateway: RunningGateway) -> None:
    """The other node's token alone decides nothing."""
    stranger = Actor("member", "eve", 2, 2, scope=2)
    assert await ask(gateway, "GET", "/health?node=own") == 200
    assert await ask(gateway, "GET", "/health?node=own", stranger) == 403
    assert await ask(gateway, "GET", "/running?node=own", stranger) == 200


@pytest.mark.parametrize("actor", [OPERATOR, Actor("member", "boss", 1, 1), Actor("member", "eve", 2, 2, scope=2)])
async def test_no_actor_is_named_for_what_nodes_do_not_ask_each_other(gateway: RunningGateway, actor: Actor) -> None:
    """Otherwise the token's holder would make changes under a member's name."""
    for method, path in (("GET", "/keys/1"), ("DELETE", "/keys/1"), ("GET", "/accounts"), ("POST", "/accounts")):
        assert await ask(gateway, method, f"{path}?node=own", actor) == 403, path
    assert await ask(gateway, "GET", "/keys/1") == 200, "it is still there"


async def test_only_a_node_speaks_for_an_actor(gateway: RunningGateway) -> None:
    stranger = Actor("member", "eve", 2, 2, scope=2)
    assert await ask(gateway, "GET", "/keys/1", stranger) == 200, "nothing says that a node asks"
    services = gateway.app[SERVICES]
    among_others = services.admin
    services.admin = attrs.evolve(among_others, peers=None)
    assert await ask(gateway, "GET", "/keys/1?node=own", stranger) == 200, "there is no other node"
    services.admin = among_others


@pytest.mark.parametrize(
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
