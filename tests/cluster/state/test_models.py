"""Model lists of a cluster: the leader asks, the others use what it has stored, and ask only if nobody does."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import attrs

from gateway.cluster.state.models import ADDED_TIMEOUT_S, FIRST_TIMEOUT_S, SharedModelLists
from gateway.cluster.state.stored_models import RETENTION_MS, ModelListRepository
from gateway.domain.channel import Channel
from gateway.errors import ProviderBadResponse
from gateway.routing.model_catalog import ModelCatalog
from gateway.storage.database import Database
from tests.support.channel_services import NOW, ChannelServices

INTERVAL_S = 600.0
UP = Channel("up", "custom", "http://127.0.0.1:9/v1", sync=True)


@attrs.define
class Cluster:
    """Nodes with one clock on one database."""

    database: Database
    now_s: float = 1_750_000_000.0
    putting: list["asyncio.Task[None]"] = attrs.Factory(list)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self.putting.append(asyncio.create_task(work))

    async def start(self, *channels: Channel, leads: bool = False, models: tuple[str, ...] = ("m",)) -> "Node":
        catalog = ModelCatalog(clock=lambda: float(NOW))
        lists = SharedModelLists(
            catalog,
            ModelListRepository(self.database),
            leads=lambda: leads,
            interval=lambda: INTERVAL_S,
            clock=lambda: self.now_s,
            start=self._start,
        )
        services = ChannelServices(catalog=catalog, note_listing=lists.store_answer)
        services.vendors.lists["up"] = models
        services.channel_service.leads = lambda: leads
        await services.channel_service.declare(channels)
        await lists.load()
        return Node(self, services, lists)


@attrs.define
class Node:
    """One of them."""

    cluster: Cluster
    services: ChannelServices
    lists: SharedModelLists

    async def ask(self, after_s: float = 0.0) -> int:
        """How often the provider is asked by this node, so much later."""
        self.cluster.now_s += after_s
        before = len(self.services.vendors.asked)
        await self.lists.sync_due(self.services.channel_service.sync)
        await asyncio.gather(*self.cluster.putting)
        return len(self.services.vendors.asked) - before

    async def follow(self) -> list[str] | None:
        await self.lists.load({"up"})
        return self.services.offers("up")


async def test_the_leader_asks_once_an_interval_and_the_others_use_its_list(database: Database) -> None:
    cluster = Cluster(database)
    leader, other = await cluster.start(UP, leads=True), await cluster.start(UP)
    assert [await other.ask(), await leader.ask(), await leader.ask()] == [0, 1, 0]
    assert await other.follow() == ["m"]
    assert await leader.ask(INTERVAL_S - 1) == await other.ask() == 0
    assert [await leader.ask(1), await other.ask()] == [1, 0]
    later = await cluster.start(UP, leads=True, models=("n",))
    assert (later.services.offers("up"), await later.ask()) == (["m"], 0), "what is stored is new enough"


async def test_a_node_asks_for_itself_what_nobody_asks(database: Database) -> None:
    cluster = Cluster(database)
    node = await cluster.start(UP)
    assert [await node.ask(), await node.ask(FIRST_TIMEOUT_S - 1), await node.ask(1)] == [0, 0, 1]
    assert [await node.ask(2 * INTERVAL_S), await node.ask(FIRST_TIMEOUT_S)] == [0, 1]


async def test_the_leader_lets_the_node_that_has_added_a_channel_ask_first(database: Database) -> None:
    added = attrs.evolve(UP, origin="stored")
    leader = await Cluster(database).start(added, leads=True)
    assert [await leader.ask(), await leader.ask(ADDED_TIMEOUT_S - 1), await leader.ask(1)] == [0, 0, 1]


async def test_a_failure_is_known_to_all_and_takes_no_model_away(database: Database) -> None:
    cluster = Cluster(database)
    leader, other = await cluster.start(UP, leads=True), await cluster.start(UP)
    await leader.ask()
    await other.follow()
    leader.services.vendors.lists["up"] = ProviderBadResponse("It is broken.")
    assert await leader.ask(INTERVAL_S) == 1
    for node in (other, await cluster.start(UP)):
        assert await node.follow() == ["m"]
        assert node.services.catalog.find_sync_status(UP).error == "It is broken."
    leader.services.vendors.lists["up"] = ("m", "n")
    await leader.ask(INTERVAL_S)
    assert (await other.follow(), other.services.catalog.find_sync_status(UP).error) == (["m", "n"], None)


async def test_a_list_read_twice_counts_an_absence_once(database: Database) -> None:
    cluster = Cluster(database)
    leader, other = await cluster.start(UP, leads=True, models=("m", "n")), await cluster.start(UP)
    await leader.ask()
    await other.follow()
    leader.services.vendors.lists["up"] = ("m",)
    await leader.ask(INTERVAL_S)
    for _ in range(3):
        assert await other.follow() == ["m", "n"]
    await leader.ask(INTERVAL_S)
    assert await other.follow() == ["m"]


async def test_the_list_of_another_provider_under_the_same_name_is_not_used(database: Database) -> None:
    cluster = Cluster(database)
    leader = await cluster.start(UP, leads=True)
    await leader.ask()
    elsewhere = await cluster.start(attrs.evolve(UP, base_url="http://127.0.0.1:8/v1"))
    found = await cluster.start(attrs.evolve(UP, origin="local"))
    assert (await elsewhere.follow(), await found.follow()) == (None, None)
    assert await found.ask() == 1, "only this node has it"
    assert await (await cluster.start(UP)).follow() == ["m"]


async def test_old_lists_are_deleted(database: Database) -> None:
    cluster = Cluster(database)
    await (await cluster.start(UP, leads=True)).ask()
    store = ModelListRepository(database)
    await store.sweep(int(cluster.now_s * 1000) + RETENTION_MS)
    assert len(await store.list_models()) == 1
    await store.sweep(int(cluster.now_s * 1000) + RETENTION_MS + 1)
    assert not await store.list_models()


async def test_a_channel_that_is_removed_is_forgotten(database: Database) -> None:
    leader = await Cluster(database).start(UP, leads=True)
    assert (await leader.ask(), list(leader.lists._last_request_ms)) == (1, ["up"])
    await leader.services.channel_service.declare(())
    assert (await leader.ask(), list(leader.lists._last_request_ms)) == (0, [])
