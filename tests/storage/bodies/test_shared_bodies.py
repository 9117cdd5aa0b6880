"""Bodies in a shared folder or a bucket: every node reads them, and what was deleted is gone there, too."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import func, select
from typing_extensions import override

from gateway.domain.kept_body import BodyFilter
from gateway.storage.bodies.body_store import KEYS_FOLDER, BodyStore
from gateway.storage.bodies.data_keys import DataKeys
from gateway.storage.bodies.errors import BodiesNotShared, BodiesUnreadable
from gateway.storage.bodies.segment_store import FolderSegments, make_segment_name
from gateway.storage.bodies.shared_bodies import LOST_AFTER_S
from gateway.storage.database import Database
from gateway.storage.schema_bodies import bodies, body_segments
from tests.support.body_stores import (
    BOUNDS,
    MASTER,
    NOW_S,
    Clock,
    add_accounts,
    find_marker,
    keep,
    make_owner,
    open_bodies,
    share,
)
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.gateway_process import eventually
from tests.support.media_stores import KINDS
from tests.support.segment_stores import SharedFolder, SharedPlace, open_place

MARKER = "marker-of-one-prompt"
WITHIN_S = 60.0
OpenNode = Callable[..., BodyStore]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SharedPlace]:
    async with open_place(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
async def open_node(database: Database, place: SharedPlace, tmp_path: Path) -> AsyncIterator[OpenNode]:
    await add_accounts(database, 1, 2)
    opened: list[BodyStore] = []

    def open_one(node: str, max_backlog_bytes: int = 10**9, **options: Any) -> BodyStore:
        folder = tmp_path / node / "bodies"
        shared = share(database, folder, place.open(), node=node, max_backlog_bytes=max_backlog_bytes)
        store = open_bodies(database, folder, node=node, shared=shared, **options)
        opened.append(store)
        return store

    yield open_one
    place.repair()
    for store in opened:
        await store.close()


async def move(store: BodyStore) -> None:
    await store.write_waiting()
    await store.move_finished()


async def read_texts(store: BodyStore, numbers: Sequence[int]) -> list[str | None]:
    """What is shown of requests; None: nothing."""
    texts: list[str | None] = []
    for number in numbers:
        found = await store.read(f"req_{number:04}")
        texts.append(None if found is None else found[1][0].content.decode()[8:-2])
    return texts


async def test_every_node_reads_what_another_one_has_moved(open_node: OpenNode, tmp_path: Path) -> None:
    first, second = open_node("a"), open_node("b")
    keep(first, make_owner(1), MARKER)
    await first.write_waiting()
    assert await read_texts(first, [1]) == [MARKER]  # from its own disk
    with pytest.raises(BodiesNotShared, match="ask again in some seconds"):
        await second.read("req_0001")
    assert await second.list_kept(["req_0001"]) == set()
    assert (await first.describe()).unmoved_bytes > 0
    await first.move_finished()
    assert list((tmp_path / "a" / "bodies").glob("*")) == []
    for store in (first, second):
        assert await read_texts(store, [1]) == [MARKER]
        assert await store.list_kept(["req_0001"]) == {"req_0001"}
        described = await store.describe()
        assert (described.unmoved_bytes, described.problem, described.bytes > 0) == (0, "", True)
    keep(first, make_owner(2), "later")
    await move(first)
    assert await read_texts(second, [1, 2]) == [MARKER, "later"]


@pytest.mark.parametrize("body_filter", [BodyFilter(request_id="req_0001"), BodyFilter(account_id=1)])
async def test_what_a_node_deletes_is_gone_from_the_store_whoever_moved_it(
    open_node: OpenNode, place: SharedPlace, tmp_path: Path, body_filter: BodyFilter
) -> None:
    first, second = open_node("a"), open_node("b")
    keep(first, make_owner(1), MARKER)
    keep(first, make_owner(2, account_id=2), "neighbour")
    await move(first)
    keep(first, make_owner(3), f"{MARKER} of a segment of its own")
    await move(first)
    older = tmp_path / "older"
    shutil.copytree(place.copy() / "bodies" / "segments", older)
    assert place.find(MARKER), "the search finds what is there"
    deleted = await second.delete(body_filter)
    assert deleted.pending == 0
    if body_filter.account_id is None:
        await second.delete(BodyFilter(request_id="req_0003"))
    assert place.find(MARKER) == []
    assert place.find("neighbour")
    assert await read_texts(second, [1, 2, 3]) == [None, "neighbour", None]
    assert bool(place.find(MARKER, segments=older)) is (body_filter.account_id is None)
    assert len(place.list_segments()) == 1  # the other one has nothing left
    assert find_marker(tmp_path / "a", MARKER.encode(), tmp_path / "none") == []


@SQLITE_ONLY
async def test_a_node_makes_a_new_key_after_another_one_has_destroyed_its_key(open_node: OpenNode) -> None:
    first, second = open_node("a"), open_node("b")
    keep(first, make_owner(1), MARKER)
    await move(first)
    await second.delete(BodyFilter(account_id=1))
    keep(first, make_owner(2), "of a later request")
    await move(first)
    assert await read_texts(second, [2]) == ["of a later request"]
    assert await read_texts(first, [1, 2]) == [None, "of a later request"]


async def test_what_is_not_moved_yet_is_erased_by_its_node(open_node: OpenNode, place: SharedPlace) -> None:
    first, second = open_node("a"), open_node("b")
    keep(first, make_owner(1), MARKER)
    keep(first, make_owner(2), "neighbour")
    await first.write_waiting()
    assert (await second.delete(BodyFilter(request_id="req_0001"))).pending == 1
    await first.move_finished()  # before its sweep: the frame is moved, and nobody sees it
    assert await read_texts(second, [1, 2]) == [None, "neighbour"]
    await first.sweep()
    assert place.find(MARKER) == []
    assert (await second.describe()).pending == 0


async def test_two_nodes_that_erase_parts_of_one_segment_bring_nothing_back(
    open_node: OpenNode, place: SharedPlace
) -> None:
    nodes = [open_node(name) for name in "abc"]
    for number in range(1, 5):
        keep(nodes[0], make_owner(number), f"{MARKER} {number}" if number < 4 else "left")
    await move(nodes[0])
    filters = [BodyFilter(request_id=f"req_000{number}") for number in (1, 2, 3)]
    await asyncio.gather(*(node.delete(one) for node, one in zip(nodes, filters, strict=True)))
    await nodes[1].sweep()
    assert place.find(MARKER) == []
    assert await read_texts(nodes[2], [1, 4]) == [None, "left"]
    assert len(place.list_segments()) == 1


@SQLITE_ONLY
async def test_a_lost_store_loses_nothing_until_the_backlog_is_full(open_node: OpenNode, place: SharedPlace) -> None:
    store = open_node("a", max_backlog_bytes=3_000, max_segment_bytes=1_000)
    keep(store, make_owner(1), "before")
    await move(store)
    place.break_down()
    number = 2
    while (await store.describe()).lost == 0:
        keep(store, make_owner(number), f"text {number} " + "".join(chr(97 + number * 7 % 26) for _ in range(200)))
        await store.write_waiting()
        with pytest.raises(OSError, match=r"missing|not answer"):
            await store.move_finished()
        number += 1
        assert number < 60
    assert 3_000 <= (await store.describe()).unmoved_bytes < 4_000
    kept = [f"req_{one:04}" for one in range(2, number - 1)]
    assert [await store.read(one) is not None for one in kept] == [True] * len(kept)  # from the local disk
    lost = await store.read(f"req_{number - 1:04}")
    assert lost is not None
    assert (lost[0].loss, lost[1]) == ("store", [])
    with pytest.raises(BodiesUnreadable):
        await store.read("req_0001")
    place.repair()
    await move(store)
    assert (await store.describe()).unmoved_bytes == 0
    keep(store, make_owner(90), "after")
    await move(store)
    assert await read_texts(store, [1, 90]) == ["before", "after"]


@SQLITE_ONLY
async def test_a_lost_store_is_a_problem_until_it_answers_again(open_node: OpenNode, place: SharedPlace) -> None:
    store = open_node("a")
    keep(store, make_owner(1), "first")
    await move(store)
    jobs = [asyncio.create_task(store.run()), asyncio.create_task(store.run_moves())]
    place.break_down()
    keep(store, make_owner(2), "second")
    await eventually(lambda: _has_problem(store), WITHIN_S)
    assert await read_texts(store, [2]) == ["second"]
    place.repair()
    await eventually(lambda: _has_moved(store), WITHIN_S)
    await store.close()
    await asyncio.gather(*jobs)


async def _has_problem(store: BodyStore) -> bool:
    return bool(store.problem)


async def _has_moved(store: BodyStore) -> bool:
    return not store.problem and not (await store.describe()).unmoved_bytes


async def test_a_deletion_that_does_not_reach_the_store_goes_on(open_node: OpenNode, place: SharedPlace) -> None:
    first, second = open_node("a"), open_node("b")
    keep(first, make_owner(1), MARKER)
    keep(first, make_owner(2, account_id=2), "neighbour")
    await move(first)
    place.break_down()
    with pytest.raises(OSError, match=r"missing|not answer"):
        await second.delete(BodyFilter(account_id=1))
    assert await second.read("req_0001") is None
    place.repair()
    assert place.find(MARKER)
    await second.sweep()
    await first.sweep()  # destroys its key of the account that has nothing any more
    assert place.find(MARKER) == []
    assert [path.name for path in (place.copy() / "bodies" / "keys").rglob("*.key")] == ["2.key"]


async def test_the_leader_removes_what_absent_nodes_have_left(
    open_node: OpenNode, place: SharedPlace, database: Database
) -> None:
    clock = Clock()
    gone = open_node("gone", clock=clock)
    keep(gone, make_owner(1), MARKER)
    await move(gone)
    await gone.close()
    leader = open_node("a", clock=clock)
    await leader.sweep()
    assert await read_texts(leader, [1]) == [MARKER]
    clock.now_s = NOW_S + BOUNDS.keep_ms / 1000 + 3_600
    await leader.sweep()
    assert place.list_segments() == []
    for table in (bodies, body_segments):
        assert (await database.read(select(func.count()).select_from(table)))[0][0] == 0


@SQLITE_ONLY
async def test_the_oldest_segments_make_room(open_node: OpenNode, place: SharedPlace) -> None:
    clock = Clock()
    bounds = attrs.evolve(BOUNDS, max_bytes=700)
    store = open_node("a", clock=clock, find_bounds=lambda: bounds)
    for number in range(1, 6):
        clock.now_s += 1
        keep(store, make_owner(number), f"text {number}")
        await move(store)
    bounds = attrs.evolve(BOUNDS, max_bytes=(await store.describe()).bytes // 2)
    await store.sweep()
    assert await read_texts(store, [1, 5]) == [None, "text 5"]
    assert len(place.list_segments()) == 2


@SQLITE_ONLY
async def test_a_copy_that_a_killed_node_left_is_removed(
    open_node: OpenNode, place: SharedPlace, tmp_path: Path
) -> None:
    store = open_node("a")
    keep(store, make_owner(1), "kept")
    await move(store)
    lost = tmp_path / "lost"
    lost.write_bytes(b"frames")
    await place.open().put(make_segment_name(), lost, 6)
    place.age(LOST_AFTER_S + 60)
    await place.open().put(make_segment_name(), lost, 6)  # may be that of a node that runs
    assert len(place.list_segments()) == 3
    await store.sweep()
    assert len(place.list_segments()) == 2
    assert await read_texts(store, [1]) == ["kept"]


@SQLITE_ONLY
async def test_what_was_kept_before_moves_to_the_store_with_its_keys(
    database: Database, open_node: OpenNode, place: SharedPlace, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "bodies"
    local = open_bodies(database, folder, node="a")
    keep(local, make_owner(1), MARKER)
    await local.write_waiting()
    await local.close()
    assert DataKeys(folder / KEYS_FOLDER, MASTER).list_accounts() == [1]
    first, second = open_node("a"), open_node("b")
    keep(first, make_owner(2), "new")
    await move(first)
    assert await read_texts(second, [1, 2]) == [MARKER, "new"]
    assert DataKeys(folder / KEYS_FOLDER, MASTER).list_accounts() == []
    await second.delete(BodyFilter(account_id=1))
    assert place.find(MARKER) == find_marker(folder, MARKER.encode(), folder / KEYS_FOLDER) == []


class PausedFolder(FolderSegments):
    """A store that runs ``meanwhile`` while it copies a segment."""

    def __init__(self, folder: Path, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(folder)
        self.meanwhile = meanwhile

    @override
    async def put(self, name: str, path: Path, size: int) -> None:
        await super().put(name, path, size)
        await self.meanwhile()


@SQLITE_ONLY
async def test_what_is_erased_while_it_is_moved_does_not_come_back(database: Database, tmp_path: Path) -> None:
    await add_accounts(database, 1)
    place = SharedFolder(tmp_path / "copies", tmp_path / "shared")
    calls = 0

    async def delete_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await store.delete(BodyFilter(request_id="req_0001"))

    folder = tmp_path / "a" / "bodies"
    shared = share(database, folder, PausedFolder(tmp_path / "shared", delete_once), node="a")
    store = open_bodies(database, folder, node="a", shared=shared)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2), "neighbour")
    await move(store)
    assert place.find(MARKER) == place.list_segments() == []
    await move(store)
    assert (place.find(MARKER), calls) == ([], 2)
    assert await read_texts(store, [1, 2]) == [None, "neighbour"]
    await store.close()
