"""Deletions that meet moves and other deletions: nothing of a deleted body is left, whatever the order of the steps."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import delete, select
from typing_extensions import override

from gateway.domain.kept_body import BodyFilter
from gateway.storage.bodies import segments
from gateway.storage.bodies.bucket_segments import BucketSegments
from gateway.storage.bodies.index import BodyEntry, BodyIndex
from gateway.storage.bodies.segment_store import FolderSegments
from gateway.storage.bodies.segments import Location
from gateway.storage.bodies.shared_bodies import LOST_AFTER_S, StoreNotOwned
from gateway.storage.bucket.client import Bucket
from gateway.storage.database import Database
from gateway.storage.media_location import BucketAddress, parse_location
from gateway.storage.schema_bodies import bodies, body_drafts, body_segments, body_store_marks
from tests.support.body_stores import NOW_S, Clock, add_accounts, keep, make_owner, open_bodies, share
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.media_stores import KINDS as PLACE_KINDS
from tests.support.media_stores import open_bucket
from tests.support.s3_server import S3Server, start_s3_server
from tests.support.segment_stores import SharedBucket, SharedFolder, SharedPlace, move_all, open_moving_node, open_place

MARKER = "marker-of-one-prompt"
WITHIN_S = 20.0
Hook = Callable[[], Awaitable[None]]


async def do_nothing() -> None:
    """The hook of a step that nothing meets."""


class HookedFolder(FolderSegments):
    """A folder that runs a hook at some of its steps."""

    after_put: Hook = staticmethod(do_nothing)
    after_create: Hook = staticmethod(do_nothing)
    before_remove: Hook = staticmethod(do_nothing)

    @override
    async def create(self) -> None:
        await super().create()
        await self.after_create()

    @override
    async def put(self, name: str, path: Path, size: int) -> None:
        await super().put(name, path, size)
        await self.after_put()

    @override
    async def remove(self, names: Sequence[str]) -> None:
        await self.before_remove()
        await super().remove(names)


class HookedBucket(BucketSegments):
    """A bucket that runs a hook at some of its steps."""

    after_put: Hook = staticmethod(do_nothing)
    before_erase: Hook = staticmethod(do_nothing)
    after_erase: Hook = staticmethod(do_nothing)
    before_remove: Hook = staticmethod(do_nothing)
    after_remove: Hook = staticmethod(do_nothing)

    @override
    async def put(self, name: str, path: Path, size: int) -> None:
        await super().put(name, path, size)
        await self.after_put()

    @override
    async def erase(self, name: str, new_name: str, size: int, locations: Sequence[Location]) -> str:
        await self.before_erase()
        result = await super().erase(name, new_name, size, locations)
        await self.after_erase()
        return result

    @override
    async def remove(self, names: Sequence[str]) -> None:
        await self.before_remove()
        await super().remove(names)
        await self.after_remove()


class ShortBucket(Bucket):
    """A bucket whose answers miss their last bytes."""

    @override
    async def read(self, name: str, start: int, stop: int) -> bytes | None:
        content = await super().read(name, start, stop)
        return None if content is None else content[:-10]


@pytest.fixture
async def server() -> AsyncIterator[S3Server]:
    async with start_s3_server() as started:
        yield started


@pytest.fixture(autouse=True)
async def payers(database: Database) -> None:
    await add_accounts(database, 1, 2)


@pytest.fixture
def hooked(tmp_path: Path) -> tuple[HookedFolder, SharedFolder]:
    place = SharedFolder(tmp_path / "copies", tmp_path / "shared")
    return HookedFolder(tmp_path / "shared"), place


@SQLITE_ONLY
async def test_a_segment_that_another_node_has_just_renamed_is_erased_there(
    database: Database, server: S3Server, tmp_path: Path
) -> None:
    place = SharedBucket(tmp_path / "copies", server)
    buckets = [HookedBucket(open_bucket(server), "s3://bucket") for _ in range(2)]
    first, second = (open_moving_node(database, tmp_path / name, one) for name, one in zip("ab", buckets, strict=True))
    for number, text in enumerate(("first", MARKER, "left"), 1):
        keep(first, make_owner(number), text)
    await move_all(first)
    has_listed, is_renamed = asyncio.Event(), asyncio.Event()
    deletions: list[asyncio.Task[object]] = []

    async def begin_second() -> None:
        if not deletions:
            deletions.append(asyncio.create_task(second.delete(BodyFilter(request_id="req_0002"))))
            await has_listed.wait()

    async def wait_for_first() -> None:
        has_listed.set()
        await is_renamed.wait()

    async def end_second() -> None:
        is_renamed.set()
        await asyncio.wait(deletions)

    buckets[0].after_erase, buckets[0].after_remove = begin_second, end_second
    buckets[1].before_erase = wait_for_first
    await first.delete(BodyFilter(request_id="req_0001"))
    await deletions[0]
    assert place.find(MARKER) == []
    assert place.find("left")
    for store in (first, second):
        await store.close()


@SQLITE_ONLY
async def test_the_former_object_is_removed_although_the_deletion_ended_before(
    database: Database, server: S3Server, tmp_path: Path
) -> None:
    place = SharedBucket(tmp_path / "copies", server)
    bucket = HookedBucket(open_bucket(server), "s3://bucket")
    store = open_moving_node(database, tmp_path / "a", bucket)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2), "neighbour")
    await move_all(store)

    async def fail() -> None:
        raise OSError("the process ends here")

    bucket.before_remove = fail
    with pytest.raises(OSError, match="ends here"):
        await store.delete(BodyFilter(request_id="req_0001"))
    assert len(place.list_segments()) == 2
    again = open_moving_node(database, tmp_path / "b", BucketSegments(open_bucket(server), "s3://bucket"))
    assert (await again.delete(BodyFilter(request_id="req_0001"))).pending == 0
    assert place.find(MARKER) == []
    assert place.find("neighbour")
    assert len(place.list_segments()) == 1
    for opened in (store, again):
        await opened.close()


async def end_process() -> None:
    raise OSError("the process ends here")


def open_hooked(kind: str, server: S3Server, tmp_path: Path) -> tuple[HookedFolder | HookedBucket, SharedPlace]:
    if kind == "bucket":
        return HookedBucket(open_bucket(server), "s3://bucket"), SharedBucket(tmp_path / "copies", server)
    place = SharedFolder(tmp_path / "copies", tmp_path / "shared")
    return HookedFolder(tmp_path / "shared"), place


@SQLITE_ONLY
@pytest.mark.parametrize("place_kind", PLACE_KINDS)
async def test_a_copy_whose_maker_was_killed_has_nothing_that_is_deleted_later(
    database: Database, server: S3Server, place_kind: str, tmp_path: Path
) -> None:
    hooked_store, place = open_hooked(place_kind, server, tmp_path)
    store = open_moving_node(database, tmp_path / "a", hooked_store)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2), "neighbour")
    hooked_store.after_put = end_process
    with pytest.raises(OSError, match="ends here"):
        await move_all(store)
    assert (len(place.list_segments()), len(place.find(MARKER))) == (1, 1)
    again = open_moving_node(database, tmp_path / "a", place.open())
    assert (await again.delete(BodyFilter(request_id="req_0001"))).pending == 0
    assert place.list_segments() == []  # at once, and not after an hour
    await move_all(again)
    assert (len(place.list_segments()), place.find(MARKER)) == (1, [])
    assert place.find("neighbour")
    for opened in (store, again):
        await opened.close()


@SQLITE_ONLY
async def test_an_erased_copy_whose_maker_was_killed_is_removed_by_the_next_deletion(
    database: Database, server: S3Server, tmp_path: Path
) -> None:
    place = SharedBucket(tmp_path / "copies", server)
    buckets = [HookedBucket(open_bucket(server), "s3://bucket") for _ in range(2)]
    killed, other = (open_moving_node(database, tmp_path / name, one) for name, one in zip("ab", buckets, strict=True))
    for number, text in enumerate(("first", MARKER, "left"), 1):
        keep(killed, make_owner(number), text)
    await move_all(killed)
    buckets[0].after_erase = end_process
    with pytest.raises(OSError, match="ends here"):
        await killed.delete(BodyFilter(request_id="req_0001"))
    assert len(place.find(MARKER)) == 2
    assert (await other.delete(BodyFilter(request_id="req_0002"))).pending == 0  # also while that node is away
    assert (len(place.list_segments()), place.find(MARKER)) == (1, [])
    assert place.find("left")
    for opened in (killed, other):
        await opened.close()


@SQLITE_ONLY
async def test_a_copy_that_arrives_after_it_was_given_up_is_removed_although_its_maker_was_killed(
    database: Database, server: S3Server, tmp_path: Path
) -> None:
    place = SharedBucket(tmp_path / "copies", server)
    bucket = HookedBucket(open_bucket(server), "s3://bucket")
    killed, other = (
        open_moving_node(database, tmp_path / name, one) for name, one in (("a", bucket), ("b", place.open()))
    )
    for number, text in enumerate(("first", MARKER, "left"), 1):
        keep(killed, make_owner(number), text)
    await move_all(killed)
    (former,) = place.list_segments()

    async def arrive_late() -> None:
        late = {name: stored for name, stored in server.objects.items() if name.endswith(".segment")}
        late = {name: stored for name, stored in late.items() if not name.endswith(former)}
        await other.delete(BodyFilter(request_id="req_0002"))
        assert place.find(MARKER) == []
        server.objects.update(late)
        await end_process()

    bucket.after_erase = arrive_late
    with pytest.raises(OSError, match="ends here"):
        await killed.delete(BodyFilter(request_id="req_0001"))
    assert place.find(MARKER)
    await other.sweep()
    assert (len(place.list_segments()), place.find(MARKER)) == (1, [])
    assert place.find("left")
    assert len(await database.read(select(body_drafts))) == 1
    folder = tmp_path / "c" / "bodies"
    later = open_bodies(
        database,
        folder,
        clock=Clock(NOW_S + 2 * LOST_AFTER_S),
        node="c",
        shared=share(database, folder, place.open(), node="c"),
    )
    await later.sweep()
    assert await database.read(select(body_drafts)) == []
    for opened in (killed, other, later):
        await opened.close()


@SQLITE_ONLY
@pytest.mark.parametrize("has_own_key", [False, True], ids=["new node", "node that was one before"])
async def test_a_node_that_was_a_single_gateway_reads_what_it_had_not_moved(
    database: Database, hooked: tuple[HookedFolder, SharedFolder], tmp_path: Path, *, has_own_key: bool
) -> None:
    folder, _ = hooked
    if has_own_key:
        former = open_moving_node(database, tmp_path / "a", folder)
        keep(former, make_owner(3), "of a node")
        await move_all(former)
        await former.close()
    single = open_bodies(
        database,
        tmp_path / "a" / "bodies",
        shared=share(database, tmp_path / "a" / "bodies", folder, node=""),
        former_node="a",
    )
    keep(single, make_owner(1), MARKER)
    await single.write_waiting()  # and ends without a move
    node = open_moving_node(database, tmp_path / "a", folder)
    keep(node, make_owner(2), "new")
    await node.write_waiting()
    for _ in range(2):  # from the disk, and from the shared store
        for number in (1, 2, 3) if has_own_key else (1, 2):
            assert await node.read(f"req_{number:04}") is not None
        await node.move_finished()
    assert list((tmp_path / "a" / "bodies").glob("*.segment")) == []
    for opened in (node, single):
        await opened.close()


@SQLITE_ONLY
@pytest.mark.parametrize("place_kind", PLACE_KINDS)
async def test_a_restored_copy_removes_nothing_of_the_original(
    database: Database, place_kind: str, tmp_path: Path
) -> None:
    async with open_place(place_kind, tmp_path) as place:
        original = open_moving_node(database, tmp_path / "a", place.open())
        keep(original, make_owner(1), MARKER)
        keep(original, make_owner(2, account_id=2), "neighbour")
        await move_all(original)
        await database.change(delete(body_store_marks))  # as a restored database has none
        place.age(LOST_AFTER_S + 60)
        unknown = (await database.read(select(body_segments)))[0]
        await database.change(delete(body_segments))  # as of what was moved since
        before = {path: path.is_file() and path.read_bytes() for path in place.copy().rglob("*")}
        restored = open_moving_node(database, tmp_path / "b", place.open())
        await restored.sweep()
        assert "another database" in restored.problem
        with pytest.raises(StoreNotOwned, match="remove bodies/owner"):
            await restored.delete(BodyFilter(account_id=2))
        keep(restored, make_owner(3), "stays on its disk")
        with pytest.raises(StoreNotOwned):
            await move_all(restored)
        after = {path: path.is_file() and path.read_bytes() for path in place.copy().rglob("*")}
        assert {path: content for path, content in after.items() if path in before} == before
        assert unknown.name in place.list_segments()
        for opened in (original, restored):
            await opened.close()


@SQLITE_ONLY
async def test_an_erasure_that_has_begun_is_over_before_its_segment_is_copied(
    database: Database, hooked: tuple[HookedFolder, SharedFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, place = hooked
    store = open_moving_node(database, tmp_path / "a", folder)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2), "neighbour")
    await store.write_waiting()
    has_begun, may_end, is_copied = threading.Event(), threading.Event(), asyncio.Event()
    overwrite = segments.overwrite_frames

    def overwrite_later(path: Path, locations: Iterable[Location]) -> None:
        has_begun.set()
        may_end.wait(WITHIN_S)
        overwrite(path, locations)

    async def begin_deletion() -> None:
        deletions.append(asyncio.create_task(store.delete(BodyFilter(request_id="req_0001"))))
        await asyncio.to_thread(has_begun.wait, WITHIN_S)

    async def note_copy() -> None:
        is_copied.set()

    deletions: list[asyncio.Task[object]] = []
    monkeypatch.setattr(segments, "overwrite_frames", overwrite_later)
    store.shared = share(database, tmp_path / "a" / "bodies", folder, node="a")  # which has not prepared it yet
    folder.after_create, folder.after_put = begin_deletion, note_copy
    moving = asyncio.create_task(store.move_finished())
    with suppress(TimeoutError):  # no copy is made now: the move waits for the deletion
        await asyncio.wait_for(is_copied.wait(), 0.5)
    may_end.set()
    await asyncio.gather(moving, *deletions)
    await move_all(store)
    assert place.find(MARKER) == []
    assert place.find("neighbour")
    await store.close()


@SQLITE_ONLY
async def test_deletions_of_other_bodies_do_not_stop_the_moves(
    database: Database, hooked: tuple[HookedFolder, SharedFolder], tmp_path: Path
) -> None:
    folder, place = hooked
    store = open_moving_node(database, tmp_path / "a", folder, max_bytes=100)
    for number in (1, 2):
        keep(store, make_owner(number), f"text {number}")
    await store.write_waiting()
    numbers = iter(range(10, 40))

    async def delete_another() -> None:
        number = next(numbers)
        keep(store, make_owner(number), "deleted at once")
        await store.delete(BodyFilter(request_id=f"req_{number:04}"))

    folder.after_put = delete_another
    await store.move_finished()
    assert len(place.list_segments()) == 2
    await store.close()


@SQLITE_ONLY
async def test_bodies_are_read_while_a_copy_is_discarded(
    database: Database, hooked: tuple[HookedFolder, SharedFolder], tmp_path: Path
) -> None:
    folder, place = hooked
    store = open_moving_node(database, tmp_path / "a", folder)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2), "neighbour")
    await store.write_waiting()
    reads = 0

    async def delete_first() -> None:
        await store.delete(BodyFilter(request_id="req_0001"))

    async def read_another() -> None:
        nonlocal reads
        async with asyncio.timeout(WITHIN_S):
            assert await store.read("req_0002") is not None
        reads += 1

    folder.after_put, folder.before_remove = delete_first, read_another
    await store.move_finished()
    assert (reads, place.list_segments()) == (1, [])
    await store.close()


@SQLITE_ONLY
async def test_a_part_of_a_segment_never_replaces_the_whole(
    database: Database, server: S3Server, tmp_path: Path
) -> None:
    place = SharedBucket(tmp_path / "copies", server)
    store = open_moving_node(database, tmp_path / "a", BucketSegments(open_bucket(server), "s3://bucket"))
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2), "neighbour")
    await move_all(store)
    address = parse_location(server.media_url)
    assert isinstance(address, BucketAddress)
    other = open_moving_node(database, tmp_path / "b", BucketSegments(ShortBucket(address), "s3://bucket"))
    with pytest.raises(OSError, match="of a segment"):
        await other.delete(BodyFilter(request_id="req_0001"))
    await store.sweep()
    assert place.find(MARKER) == []
    assert place.find("neighbour")
    for opened in (store, other):
        await opened.close()


async def test_a_row_that_is_stored_again_stays_deleted(database: Database) -> None:
    index = BodyIndex(database, "a")
    owner = make_owner(1, end_user="ann", session="s")
    entry = BodyEntry(owner, int(NOW_S * 1000) + 1_000, "a", Location(1, 0, 100))
    await index.add([entry])
    await index.mark_deleted(BodyFilter(request_id=owner.request_id))
    await index.add([entry])  # by a writer that has not learnt of its commit
    row = (await database.read(select(bodies)))[0]
    assert (row.expires_ms, row.end_user, row.session, row.segment) == (0, "", "", 1)


@SQLITE_ONLY
async def test_deleted_rows_without_bodies_of_a_node_that_is_gone_are_removed(
    database: Database, tmp_path: Path
) -> None:
    gone = open_bodies(database, tmp_path / "gone", node="gone")
    gone.note_loss(make_owner(1), "memory")
    await gone.write_waiting()
    await gone.close()
    store = open_bodies(database, tmp_path / "a", node="a")
    assert (await store.delete(BodyFilter(request_id="req_0001"))).requests == 1
    await store.sweep()
    assert (await store.describe()).pending == 0
    await store.close()
