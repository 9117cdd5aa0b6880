"""A node registers, beats, hears of changes, is declared dead and comes back; lock and fence keep others out."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import attrs
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from gateway.cluster.membership.backends import LEADER_LOCK, LOCK_SPACE
from gateway.cluster.membership.fence import FencedWriteQueue
from gateway.cluster.membership.node import ClusterNode
from gateway.cluster.membership.notifications import NodeNotifications
from gateway.cluster.membership.session import NodeSession
from gateway.cluster.membership.store_clock import StoreClock
from gateway.cluster.membership.times import ClusterTimes
from gateway.domain.node import Change, Node
from gateway.domain.setting import Setting
from gateway.errors import StoreUnavailable
from gateway.storage.database import Database, DatabaseStartupError
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from gateway.storage.postgres.database import MAX_READERS, open_address
from gateway.storage.postgres.incarnation import begin_generation
from gateway.storage.schema import OLDEST, REVISION
from gateway.storage.settings import SettingRepository
from tests.support.postgres import WAITED_FOR, SharedPostgres
from tests.support.quick_nodes import FREQUENT, MORTAL
from tests.support.request_records import ROW

A, B = "a" * 16, "b" * 16
WITHIN_S = 30
_LAST_BEAT = "SELECT beat FROM beats"
_BEAT_OF = "SELECT beat FROM beats WHERE node = $1"
SETTING = Setting("routing.retry_ratio", 0.5, 1)


class NeverSetEvent(asyncio.Event):
    """An event that is never set: what it would report is lost."""

    def set(self) -> None:
        pass


@attrs.define
class Running:
    """A node in this process."""

    session: NodeSession
    database: Database
    node: ClusterNode
    queue: FencedWriteQueue
    applied: list[Change]
    reloaded: list[int]

    async def apply(self, changes: Sequence[Change]) -> None:
        self.applied += changes

    async def reload(self) -> None:
        self.reloaded.append(self.session.node.epoch)


class Nodes:
    """Starts nodes on one database."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.url = url
        self._stack = stack

    async def start(
        self, name: str, *, follow: bool = True, ahead_s: float = 0.0, times: ClusterTimes = FREQUENT
    ) -> Running:
        notifications = NodeNotifications(name)
        session = NodeSession(Address(self.url, name), Node(name, schema=REVISION), notifications.receive, times)
        database = await open_address(Address(self.url, name), session, None, None)
        self._stack.push_async_callback(database.close)
        queue = FencedWriteQueue(times=times)
        clock = StoreClock(lambda: time.time() + ahead_s, time.monotonic)
        node = ClusterNode(session, notifications, queue, clock, count_requests=lambda: 0)
        self._stack.push_async_callback(node.close)
        await node.open()
        running = Running(session, database, node, queue, [], [])
        if follow:
            await node.follow(running.apply, running.reload)
        return running


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def nodes(url: str) -> AsyncIterator[Nodes]:
    async with AsyncExitStack() as stack:
        yield Nodes(url, stack)


@pytest.fixture
async def observer(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - the database has no event of ours
            await asyncio.sleep(0.01)


async def test_a_change_at_one_node_reaches_every_other_and_is_acknowledged(
    nodes: Nodes, observer: asyncpg.Connection
) -> None:
    await observer.execute("INSERT INTO settings (path, value, changed_ms) VALUES ('before', '1', 1)")
    first, second = await nodes.start(A), await nodes.start(B)
    await SettingRepository(first.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
    await until(lambda: first.applied and second.applied)
    assert {(each.kind, each.id) for each in second.applied} == {("setting", "routing.retry_ratio")}
    newest = await observer.fetchval("SELECT max(sequence) FROM changes")
    async with asyncio.timeout(WITHIN_S):
        seen: list[int] = []
        while seen != [newest] * 2:
            seen = [row[0] for row in await observer.fetch("SELECT seen_change FROM beats")]
    assert second.node.live_count == 2


async def test_a_change_waits_for_no_dead_nodes_claims_and_for_no_other_read(
    nodes: Nodes, observer: asyncpg.Connection
) -> None:
    first, second = await nodes.start(A), await nodes.start(B)
    slow = [asyncio.create_task(second.database.read(text("SELECT pg_sleep(8)"))) for _ in range(MAX_READERS)]
    try:
        # As while it frees what a dead node had claimed.
        async with second.session._control_connection.exclusive(WITHIN_S) as busy:
            await busy.fetchval("SELECT 1")
            await SettingRepository(first.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
            await until(lambda: second.applied)
            await second.database.read_first(text("SELECT 1"))
            running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
            assert await observer.fetchval(running) == MAX_READERS, "it did not wait for the others to end"
    finally:
        await asyncio.gather(*slow, return_exceptions=True)


async def test_a_lost_notification_is_made_up_for_by_the_next_beat(nodes: Nodes) -> None:
    first, second = await nodes.start(A), await nodes.start(B)
    second.session.wake_event = NeverSetEvent()
    await SettingRepository(first.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
    await until(lambda: second.applied)


async def test_what_is_changed_between_registering_and_following_is_applied(nodes: Nodes) -> None:
    node = await nodes.start(A, follow=False)
    await SettingRepository(node.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
    assert node.queue.full, "what it has read may not be in force any longer"
    await node.node.follow(node.apply, node.reload)
    assert (len(node.applied), node.queue.full) == (1, False)


async def test_a_node_whose_changes_cannot_be_applied_moves_its_fence_no_further(nodes: Nodes) -> None:
    node = await nodes.start(A, follow=False)
    allowed, tried = False, asyncio.Event()

    async def apply(changes: Sequence[Change]) -> None:
        if not allowed:
            tried.set()
            raise StoreUnavailable("not now")
        node.applied += changes

    await node.node.follow(apply, node.reload)
    await SettingRepository(node.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
    await asyncio.wait_for(tried.wait(), WITHIN_S)
    before_s = node.queue.valid_until_s
    tried.clear()
    await asyncio.wait_for(tried.wait(), WITHIN_S)
    assert (node.queue.valid_until_s, node.applied) == (before_s, [])
    allowed = True
    await until(lambda: node.queue.valid_until_s > before_s)
    assert len(node.applied) == 1


async def test_a_buried_node_writes_nothing_until_it_has_registered_again_and_read_everything(nodes: Nodes) -> None:
    first, second = await nodes.start(A), await nodes.start(B)
    before_s = second.queue.valid_until_s
    await freeze(second)
    assert await first.session.declare_dead(B, 1)
    assert not await first.session.declare_dead(B, 1), "it is dead already"
    with pytest.raises(StoreUnavailable):
        await SettingRepository(second.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
    wake(second)
    await until(lambda: second.queue.valid_until_s > before_s)
    assert (second.reloaded, second.node.process) == ([2], f"{B}:2")
    await SettingRepository(second.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
    assert not await first.session.declare_dead(B, 1), "it has registered again since"


async def test_a_node_that_is_too_old_for_the_schema_finishes_its_requests_and_any_other_goes_on(
    nodes: Nodes, observer: asyncpg.Connection
) -> None:
    first = await nodes.start(A)
    await until(lambda: first.node.leads)
    await observer.execute("INSERT INTO cluster VALUES ('oldest', $1)", REVISION.encode())
    beaten = "SELECT beat FROM beats WHERE node = $1"

    async def wait_for_beats(number: int = 2) -> None:
        beat = await observer.fetchval(beaten, A)
        async with asyncio.timeout(WITHIN_S):
            while await observer.fetchval(beaten, A) < beat + number:  # noqa: ASYNC110 - the database has no event
                await asyncio.sleep(0.01)

    await wait_for_beats()
    assert not first.queue.fenced
    under_way = 1
    first.node.count_requests = lambda: under_way
    await observer.execute("UPDATE cluster SET value = '9999' WHERE name = 'oldest'")
    first.session.wake_event.set()
    await until(lambda: first.queue.fenced)
    assert not first.node.leads
    assert not first.node.owns("channel")
    served = "SELECT at_ms FROM beats WHERE node = $1"
    served_ms = await observer.fetchval(served, A)
    await wait_for_beats()
    assert await observer.fetchval(served, A) == served_ms, "the other nodes get its share of the work"
    assert (first.queue.fenced, first.node.leads) == (True, False)
    leader = (  # of this database: nodes of other tests lead on the same server
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE locktype = 'advisory' AND classid = $1 AND objid = $2 AND datname = current_database()"
    )
    async with asyncio.timeout(WITHIN_S):
        while await observer.fetchval(leader, LOCK_SPACE, LEADER_LOCK):  # noqa: ASYNC110 - the database has no event of ours
            await asyncio.sleep(0.01)
    first.queue.put(ROW)
    under_way = 0
    await wait_for_beats()
    first.queue.take(1)
    first.session.wake_event.set()
    await until(lambda: not first.session.wake_event.is_set())
    beat = await observer.fetchval(beaten, A)
    first.session.wake_event.set()
    await until(lambda: not first.session.wake_event.is_set())
    assert await observer.fetchval(beaten, A) == beat


async def test_a_node_that_is_outdated_while_it_asks_for_the_lead_does_not_lead(nodes: Nodes) -> None:
    node = await nodes.start(A)
    await until(lambda: node.node.leads)
    node.node._stop_outdated("9999")
    await node.node._update_leadership()
    assert not node.node.leads


async def test_a_migration_says_which_nodes_can_go_on(shared_postgres: SharedPostgres) -> None:
    connection = await asyncpg.connect(await (await shared_postgres.get_server()).make_database())
    assert await connection.fetchval("SELECT value FROM cluster WHERE name = 'oldest'") == OLDEST.encode()
    await connection.close()


async def test_what_a_dead_node_had_claimed_is_free_and_what_others_claimed_is_not(
    nodes: Nodes, observer: asyncpg.Connection
) -> None:
    first = await nodes.start(A)
    await nodes.start(B)
    names = await observer.fetch(
        "SELECT column_name AS name, data_type AS type FROM information_schema.columns WHERE table_name = 'replays'"
    )
    plain = {"bigint": "0", "bytea": "''"}
    for number, owner in enumerate((f"{A}:1", f"{B}:1", f"{B}:9")):
        values = {row["name"]: plain.get(row["type"], "''") for row in names}
        values |= {"key_id": str(number), "owner": f"'{owner}'", "state": "'running'"}
        await observer.execute(
            f"INSERT INTO replays ({', '.join(values)}) VALUES ({', '.join(values.values())})"  # noqa: S608
        )
    assert await first.session.declare_dead(B, 1)
    found = await observer.fetch("SELECT state FROM replays ORDER BY key_id")
    assert [row["state"] for row in found] == ["running", "lost", "lost"]


async def test_one_leader_and_another_one_when_it_has_gone(nodes: Nodes) -> None:
    first = await nodes.start(A)
    await until(lambda: first.node.leads)
    second = await nodes.start(B)
    assert not second.node.leads
    await first.node.close()
    await until(lambda: second.node.leads)
    assert not first.node.leads or first.session.node.epoch == 0


async def test_a_lost_connection_is_made_anew_and_what_came_meanwhile_is_applied(
    nodes: Nodes, observer: asyncpg.Connection
) -> None:
    node = await nodes.start(A)
    await until(lambda: node.node.leads)
    await observer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ ' (control|log)$' "
        "AND datname = current_database()"
    )
    await observer.execute("INSERT INTO settings (path, value, changed_ms) VALUES ('meanwhile', '1', 1)")
    await until(lambda: node.applied)
    assert node.session.node.epoch == 1


async def test_a_copy_of_a_node_and_a_gateway_that_is_no_node_are_refused(nodes: Nodes, url: str) -> None:
    await nodes.start(A)
    with pytest.raises(DatabaseStartupError, match=r"delete the file node\.id"):
        await nodes.start(A)
    with pytest.raises(DatabaseStartupError, match="one gateway uses a database at a time"):
        await open_database(url)


async def test_a_node_is_refused_beside_a_gateway_that_is_none(nodes: Nodes, url: str) -> None:
    alone = await open_database(url)
    try:
        with pytest.raises(DatabaseStartupError, match=r"A gateway without cluster\.enabled uses"):
            await nodes.start(A)
    finally:
        await alone.close()
    await nodes.start(A)


@pytest.mark.parametrize("hidden", [False, True], ids=["known by its timeline", "known by the changes it lacks"])
async def test_behind_a_store_that_has_been_replaced_no_fence_moves_until_what_it_lost_is_stored_and_all_is_read(
    nodes: Nodes, observer: asyncpg.Connection, *, hidden: bool
) -> None:
    node = await nodes.start(A, follow=False)
    steps, fences = list[Any](), list[float]()
    allowed = asyncio.Event()

    async def reload() -> None:
        steps.append("reloaded")

    async def restore() -> None:
        steps.append("restored")
        fences.append(node.queue.valid_until_s)
        if not allowed.is_set():
            raise StoreUnavailable("not now")
        first_beat = await observer.fetchval(_LAST_BEAT)
        async with asyncio.timeout(30):
            # It would be declared dead otherwise; the database has no event of ours.
            while await observer.fetchval(_LAST_BEAT) < first_beat + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    await observer.execute("INSERT INTO settings (path, value, changed_ms) VALUES ('a', '1', 1), ('b', '1', 1)")
    await node.node.follow(node.apply, reload, restore)
    assert (len(node.applied), steps) == (2, [])
    async with observer.transaction():  # the store loses the log, and counts anew
        await observer.execute("DELETE FROM changes; ALTER TABLE changes ALTER sequence RESTART WITH 1")
        if not hidden:
            await begin_generation(observer)
    await observer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'gateway node %' "
        "AND datname = current_database()"
    )
    await until(lambda: len(steps) > 1)
    assert (set(steps), {*fences, node.queue.valid_until_s}) == ({"restored"}, {fences[0]})
    allowed.set()
    await until(lambda: node.queue.valid_until_s > fences[0])
    assert (steps[-2:], node.session.node.epoch) == (["restored", "reloaded"], 1)
    await observer.execute("INSERT INTO settings (path, value, changed_ms) VALUES ('c', '1', 1)")
    await until(lambda: len(node.applied) == 3)


async def replace_store(observer: asyncpg.Connection) -> None:
    await begin_generation(observer)
    await observer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'gateway node %' "
        "AND datname = current_database()"
    )


@pytest.mark.parametrize("starts", [False, True], ids=["both were live", "one starts"])
async def test_a_node_waits_for_what_others_restore_as_long_as_they_send_beats(
    nodes: Nodes, observer: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, *, starts: bool
) -> None:
    monkeypatch.setattr("gateway.cluster.membership.node.RESTORE_S", 2.0)
    times = attrs.evolve(FREQUENT, late_s=2.0)
    is_restoring, may_end = asyncio.Event(), asyncio.Event()

    async def restore() -> None:
        is_restoring.set()
        await may_end.wait()

    slow = await nodes.start(A, follow=False, times=times)
    await slow.node.follow(slow.apply, slow.reload, restore)
    other = None if starts else await nodes.start(B, times=times)
    await replace_store(observer)
    async with asyncio.timeout(WITHIN_S):
        await is_restoring.wait()
    other = other or await nodes.start(B, times=times)
    await until(lambda: other.node.restored_generation == slow.session.generation)
    first_beat = await observer.fetchval(_BEAT_OF, B)
    while await observer.fetchval(_BEAT_OF, B) < first_beat + 10:  # longer than a node is waited for without beats
        assert other.node.others_restore
        await asyncio.sleep(0.01)
    may_end.set()
    await until(lambda: not other.node.others_restore)


async def test_a_node_that_sends_no_beats_is_waited_for_no_longer(
    nodes: Nodes, observer: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.membership.node.RESTORE_S", 0.2)
    times = attrs.evolve(FREQUENT, late_s=0.5)
    silent, other = await nodes.start(A, times=times), await nodes.start(B, times=times)
    await freeze(silent)
    await replace_store(observer)
    await until(lambda: other.node.others_restore)
    await until(lambda: not other.node.others_restore)


@pytest.mark.parametrize("detail", ["{}", '{"store": ""}'], ids=["of version 0.9", "that starts"])
async def test_a_node_that_starts_does_not_wait_for_a_node(
    nodes: Nodes, observer: asyncpg.Connection, detail: str
) -> None:
    await observer.execute(
        "INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms) "
        "VALUES ($1, 1, 'live', '', '', '', '', 1)",
        A,
    )
    await observer.execute(
        "INSERT INTO beats (node, beat, at_ms, seen_change, detail) VALUES ($1, 1, 1, 0, $2::text::jsonb)", A, detail
    )
    assert not (await nodes.start(B)).node.others_restore


async def freeze(node: Running) -> None:
    """As SIGSTOP: its connections stay open, and it does nothing."""
    await node.node._jobs.stop()


def wake(node: Running) -> None:
    node.node._jobs.start("beat", node.node._run)
    node.node._jobs.start("lead", node.node._run_lead)


@pytest.mark.parametrize("freezes", [A, B], ids=["leader", "follower"])
async def test_a_frozen_node_is_declared_dead_whether_it_leads_or_not_and_comes_back(
    nodes: Nodes, observer: asyncpg.Connection, freezes: str
) -> None:
    first = await nodes.start(A, times=MORTAL)
    await until(lambda: first.node.leads)
    second = await nodes.start(B, times=MORTAL)
    frozen, other = (first, second) if freezes == A else (second, first)

    async def find(state: str) -> Any:
        """When the frozen node ended, once it is in this state."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                row = await observer.fetchrow("SELECT state, ended_ms FROM nodes WHERE id = $1", freezes)
                if row["state"] == state:
                    return row["ended_ms"]
                await asyncio.sleep(0.01)

    assert await find("live") is None
    await freeze(frozen)
    assert await find("dead") is not None
    await until(lambda: other.node.leads)
    wake(frozen)
    assert await find("live") is None
    await until(lambda: not frozen.queue.fenced)
    assert frozen.session.node.epoch == 2
    assert not frozen.node.leads


async def test_a_write_that_a_frozen_node_is_in_the_middle_of_holds_nobody_up_for_long(nodes: Nodes) -> None:
    first, second = await nodes.start(A), await nodes.start(B)
    reached, never = asyncio.Event(), asyncio.Event()

    async def stand_still(_: object) -> None:
        reached.set()
        await never.wait()

    stuck = asyncio.create_task(second.database.write(stand_still))
    try:
        await reached.wait()
        await freeze(second)
        await SettingRepository(first.database).change_settings({SETTING.path: SETTING.value}, SETTING.changed_ms)
    finally:
        never.set()
    with pytest.raises(StoreUnavailable):
        await stuck


async def test_what_the_store_has_of_a_node_that_ended_long_ago_is_deleted_unless_it_left_credit(
    nodes: Nodes, observer: asyncpg.Connection
) -> None:
    for number, (state, days) in enumerate((("gone", 31), ("dead", 31), ("dead", 29), ("dead", 31))):
        await observer.execute(
            "INSERT INTO nodes (id, epoch, state, url, version, schema, config_digest, started_ms, ended_ms)"
            " VALUES ($1, 1, $2, '', '', '', '', 0,"
            " (extract(epoch FROM now()) * 1000)::bigint - $3::bigint * 86400000)",
            f"{number}" * 16, state, days,
        )  # fmt: skip
        await observer.execute(
            "INSERT INTO beats (node, beat, at_ms, seen_change) VALUES ($1, 1, 0, 0)", f"{number}" * 16
        )
    await observer.execute(
        "INSERT INTO credit_leases (owner, owner_id, node, start, granted) VALUES (1, 1, $1, 0, 5)", "3" * 16
    )
    with capture_logs() as lines:
        await nodes.start(A)  # the leader, which deletes them at its start
        await until(lambda: "node_deleted" in [line["event"] for line in lines])
    assert sorted(line["node"] for line in lines if line["event"] == "node_deleted") == ["0" * 16, "1" * 16]
    left = [row["node"] for row in await observer.fetch("SELECT node FROM beats ORDER BY node")]
    assert left == ["2" * 16, "3" * 16, A]


@pytest.mark.parametrize(("ahead_s", "warnings"), [(-3600.0, 1), (30.0, 0)])
async def test_a_clock_that_is_wrong_by_more_than_a_minute_is_logged_once(
    nodes: Nodes, ahead_s: float, warnings: int
) -> None:
    with capture_logs() as log:
        node = await nodes.start(A, ahead_s=ahead_s)
        await node.node._beat()
    found = [line["reason"] for line in log if line["event"] == "clock_differs"]
    assert found == ["the database's clock is 3600 s ahead"] * warnings


async def test_only_one_node_starts_at_a_time(nodes: Nodes) -> None:
    first, second = await nodes.start(A), await nodes.start(B)
    order: list[str] = []

    async def begin() -> None:
        async with second.session.start_alone():
            order.append("second")

    async with first.session.start_alone():
        waiting = asyncio.create_task(begin())
        found: Sequence[Any] = ()
        async with asyncio.timeout(WITHIN_S):
            while not found:
                found = await first.database.read(text(WAITED_FOR + "AND objid = 7130002"))
        order.append("first")
    await waiting
    assert order == ["first", "second"]


async def test_a_node_whose_beats_are_late_has_no_share_of_the_work(nodes: Nodes, observer: asyncpg.Connection) -> None:
    first, second = await nodes.start(A), await nodes.start(B)
    names = [f"channel{number}" for number in range(64)]
    await until(lambda: first.node.live_count == second.node.live_count == 2)
    shares = [{name for name in names if each.node.owns(name)} for each in (first, second)]
    assert shares[0] | shares[1] == set(names)
    assert not shares[0] & shares[1]
    second.session.heartbeat = asyncio.Event().wait  # type: ignore[method-assign,assignment]  # it stands still
    heard: list[str] = []
    first.node.notifications.subscribe("members", heard.append)
    await observer.execute(f"UPDATE beats SET at_ms = at_ms - 60000 WHERE node = '{B}'")  # noqa: S608
    await until(lambda: all(first.node.owns(name) for name in names))
    assert (heard, first.node.live_count) == ([""], 2)
    assert first.node.may_be_alive(f"{B}:1")
    assert not first.node.may_be_alive(f"{A}:0")
