"""A server that has replaced another one grants credit when every node has set its leases anew, or after a while."""

from collections.abc import AsyncIterator, Collection

import attrs
import pytest

from gateway.cluster.credit.authority import PostgresCreditAuthority
from gateway.cluster.credit.grant_gate import CreditHeldBack, GrantGate
from gateway.domain.balance import DAY_S, parse_day
from gateway.domain.credit import BalanceId, CreditRequest
from gateway.events import Events
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.incarnation import begin_generation, read_generation
from tests.support.credit_nodes import insert
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.postgres import SharedPostgres

KEY: BalanceId = ("key", 11)
TODAY = parse_day(20_000 * DAY_S)


@attrs.define
class Node:
    """What the gate knows of a node."""

    id: str
    restored_generation: str = ""
    expected_nodes: Collection[str] = ()


class Servers:
    """One database that counts as another one after ``replace``, and nodes that use it."""

    def __init__(self, store: CreditStore) -> None:
        self.store = store
        self.nodes: list[PostgresCreditAuthority] = []

    async def replace(self) -> str:
        """Return the generation of the database, which has changed."""
        await begin_generation(self.store.connection)
        for node in self.nodes:
            await node.close()  # it connects again
        return await read_generation(self.store.connection)

    def open(self, node: Node) -> PostgresCreditAuthority:
        gate = GrantGate(node)
        self.nodes.append(PostgresCreditAuthority(Address(self.store.url), node.id, lambda: 2, Events(), gate=gate))
        return self.nodes[-1]

    async def register(self, node: str, generation: str = "") -> None:
        await insert(self.store.connection, "nodes", id=node, state="live")
        await insert(self.store.connection, "beats", node=node)
        await self.report(node, generation)

    async def report(self, node: str, generation: str) -> None:
        detail = "jsonb_build_object('store', $2::text)"
        await self.store.connection.execute(f"UPDATE beats SET detail = {detail} WHERE node = $1", node, generation)  # noqa: S608


@pytest.fixture
async def servers(shared_postgres: SharedPostgres) -> AsyncIterator[Servers]:
    async with open_credit_store(shared_postgres) as store:
        await (await open_database(store.url)).close()
        await store.add_owner(KEY, 1_000, "lifetime")
        await store.open(KEY, "lifetime", TODAY)
        made = Servers(store)
        yield made
        for node in made.nodes:
            await node.close()


async def take(node: PostgresCreditAuthority) -> int:
    (grant,) = await node.take([CreditRequest(KEY, 1, 10, 10)], TODAY)
    return grant.granted_nanos


async def test_credit_waits_for_the_leases_of_every_node(servers: Servers) -> None:
    node = Node("a", await servers.replace(), ("a", "c"))
    authority = servers.open(node)
    assert await take(authority) == 10  # the first server
    await servers.register("a")
    await servers.register("b", node.restored_generation)
    new = await servers.replace()
    with pytest.raises(CreditHeldBack):
        await authority.find_leases()
    node.restored_generation = new
    assert [lease.granted_nanos for lease in await authority.find_leases()] == [10]
    for reporter in ("b", "c"):  # the database does not know the second one: it has lost that one's registration
        for _ in range(2):
            with pytest.raises(CreditHeldBack):
                await take(authority)
        if reporter == "c":
            await servers.register(reporter)
        await servers.report(reporter, new)
    assert await take(authority) == 10
    await servers.store.connection.execute("UPDATE beats SET detail = '{}'")
    assert await take(servers.open(Node("d", new))) == 10  # another node finds that the wait is over


async def test_a_node_that_does_not_come_back_is_waited_for_until_it_is_fenced(servers: Servers) -> None:
    await take(servers.open(Node("a", await servers.replace())))
    await servers.register("b")
    authority = servers.open(Node("a", await servers.replace()))
    for _ in range(2):
        with pytest.raises(CreditHeldBack):
            await take(authority)
    connection = servers.store.connection
    wait_ms = await connection.fetchval(
        "SELECT split_part(convert_from(value, 'UTF8'), ' ', 1)::bigint - extract(epoch FROM clock_timestamp()) * 1000"
        " FROM cluster WHERE name = 'granting'"
    )
    assert 5_000 < wait_ms <= 10_000
    await connection.execute(
        "UPDATE cluster SET value = convert_to(regexp_replace(convert_from(value, 'UTF8'), '^[0-9]+', '1'), 'UTF8')"
        " WHERE name = 'granting'"
    )
    assert await take(authority) == 10
