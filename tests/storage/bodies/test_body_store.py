"""The store of bodies: what is kept is shown whole, and what was deleted is gone."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from sqlalchemy import delete, select, update

from gateway.domain.kept_body import BodyFilter, BodyPart, DeletedBodies
from gateway.storage.bodies.body_store import KEYS_FOLDER, BodyStore
from gateway.storage.bodies.data_keys import DataKeys
from gateway.storage.bodies.errors import BodiesUnreadable
from gateway.storage.bodies.waiting import MAX_BATCH_REQUESTS
from gateway.storage.database import Database
from gateway.storage.schema import accounts
from gateway.storage.schema_bodies import bodies
from tests.support.body_stores import (
    BOUNDS,
    Clock,
    add_accounts,
    find_marker,
    keep,
    make_owner,
    make_parts,
    open_bodies,
)
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.gateway_process import eventually

MARKER = "marker-of-one-prompt"
DAY_S = 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bodies"


@pytest.fixture(autouse=True)
async def payers(database: Database) -> None:
    await add_accounts(database, 1, 2, 3)


async def read_texts(store: BodyStore, numbers: Sequence[int]) -> list[str | None]:
    """What is shown of requests; None: nothing."""
    texts: list[str | None] = []
    for number in numbers:
        found = await store.read(f"req_{number:04}")
        texts.append(None if found is None else found[1][0].content.decode()[8:-2])
    return texts


async def test_bodies_are_shown_as_they_were_kept(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    owner = make_owner(1, end_user="ann", session="s")
    keep(store, owner, "hello")
    assert store.memory.used > 0
    found = await store.read("req_0001")
    assert found is not None
    assert (found[0].owner, found[1]) == (owner, make_parts("hello"))
    assert store.memory.used == 0
    assert await store.read("req_0002") is None
    await store.close()
    assert find_marker(folder.parent, b'"ask":"hello"', folder / "nothing") == []  # sealed
    again = open_bodies(database, folder)
    assert await read_texts(again, [1]) == ["hello"]
    described = await again.describe()
    assert (described.requests, described.lost, described.problem, described.waiting_bytes) == (1, 0, "", 0)
    assert described.oldest_ms == owner.started_ms
    await again.close()


@pytest.mark.parametrize(
    ("body_filter", "gone"),
    [
        (BodyFilter(request_id="req_0001"), [1]),
        (BodyFilter(account_id=2), [3, 4]),
        (BodyFilter(key_id=7), [2]),
        (BodyFilter(end_users=frozenset({"ann", "x"})), [1, 3]),
        (BodyFilter(end_users=frozenset({"ann"}), account_id=2), [3]),
        (BodyFilter(session="s"), [4]),
        (BodyFilter(before_ms=make_owner(3).started_ms), [1, 2]),
        (BodyFilter(account_id=3), []),
    ],
    ids=lambda value: "" if isinstance(value, list) else repr(value)[11:40],
)
async def test_what_matches_is_deleted(
    database: Database, folder: Path, body_filter: BodyFilter, gone: list[int]
) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1, end_user="ann"), f"{MARKER} 1")
    keep(store, make_owner(2, key_id=7), f"{MARKER} 2")
    keep(store, make_owner(3, account_id=2, end_user="ann"), f"{MARKER} 3")
    keep(store, make_owner(4, account_id=2, session="s"), f"{MARKER} 4")
    assert await store.delete(body_filter) == DeletedBodies(len(gone))
    expected = [None if number in gone else f"{MARKER} {number}" for number in (1, 2, 3, 4)]
    assert await read_texts(store, [1, 2, 3, 4]) == expected
    await store.close()


async def test_a_deletion_needs_a_condition(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    with pytest.raises(ValueError, match="condition"):
        await store.delete(BodyFilter())
    await store.close()


@SQLITE_ONLY
@pytest.mark.parametrize("body_filter", [BodyFilter(request_id="req_0001"), BodyFilter(account_id=1)])
async def test_nothing_of_deleted_bodies_is_left_in_any_file(
    database: Database, folder: Path, body_filter: BodyFilter
) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2, account_id=2), "another")
    assert await read_texts(store, [1]) == [MARKER]
    assert find_marker(folder.parent, MARKER.encode()) == ["00000001.segment"]  # the search finds what is there
    await store.delete(body_filter)
    assert find_marker(folder.parent, MARKER.encode()) == []
    assert find_marker(folder.parent, b"another") == ["00000001.segment"]
    await store.close()


@SQLITE_ONLY
async def test_old_copies_of_segments_cannot_be_unsealed_after_an_account_was_deleted(
    database: Database, folder: Path
) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), MARKER)
    await store.write_waiting()
    copy = folder.parent / "copy"
    copy.mkdir()
    (copy / "00000001.segment").write_bytes((folder / "00000001.segment").read_bytes())
    assert find_marker(copy, MARKER.encode(), folder / "keys") == ["00000001.segment"]
    await store.delete(BodyFilter(account_id=1))
    assert find_marker(copy, MARKER.encode(), folder / "keys") == []
    keep(store, make_owner(2), "later")  # with a new data key
    assert await read_texts(store, [2]) == ["later"]
    assert find_marker(copy, MARKER.encode(), folder / "keys") == []
    await store.close()


async def test_a_deletion_that_was_interrupted_goes_on(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2), "stays")
    await store.close()
    await database.change(update(bodies).where(bodies.c.request_id == "req_0001").values(expires_ms=0))
    again = open_bodies(database, folder)
    assert await read_texts(again, [1]) == [None]
    await again.sweep()
    assert [row.request_id for row in await database.read(select(bodies))] == ["req_0002"]
    assert find_marker(folder, MARKER.encode(), folder / "keys") == []
    assert await read_texts(again, [2]) == ["stays"]
    await again.close()


async def test_a_sweep_erases_what_was_kept_of_deleted_accounts(database: Database, folder: Path) -> None:
    """Also of a request that ran while its account was deleted, and that was kept afterwards."""
    store = open_bodies(database, folder)
    keep(store, make_owner(1), MARKER)
    keep(store, make_owner(2, account_id=2), "stays")
    await store.write_waiting()
    await database.change(delete(accounts).where(accounts.c.id == 1))
    await store.sweep()
    assert await read_texts(store, [1, 2]) == [None, "stays"]
    keep(store, make_owner(3), MARKER)
    await store.write_waiting()
    await store.sweep()
    assert await read_texts(store, [3, 2]) == [None, "stays"]
    await store.close()
    assert find_marker(folder.parent, MARKER.encode()) == []
    assert not (folder / KEYS_FOLDER / "1.key").exists()


async def test_a_deletion_goes_on_after_a_data_key_that_could_not_be_destroyed(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), MARKER)

    def fail(keys: DataKeys, account_id: int) -> bool:
        raise OSError(f"no key of {account_id}: {keys}")

    with monkeypatch.context() as patch:
        patch.setattr(DataKeys, "destroy", fail)
        with pytest.raises(OSError, match="no key of 1"):
            await store.delete(BodyFilter(account_id=1))
    assert await read_texts(store, [1]) == [None]
    await store.sweep()
    await store.close()
    assert find_marker(folder.parent, MARKER.encode()) == []
    assert not (folder / KEYS_FOLDER / "1.key").exists()


async def test_a_key_whose_destruction_was_interrupted_is_removed(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), MARKER)
    await store.write_waiting()
    key = folder / KEYS_FOLDER / "1.key"
    key.rename(key.with_suffix(".dead"))  # as a kill leaves it
    await store.close()
    again = open_bodies(database, folder)
    keep(again, make_owner(2), "new")
    assert await read_texts(again, [2]) == ["new"]
    await again.sweep()
    assert [path.name for path in (folder / KEYS_FOLDER).iterdir()] == ["1.key"]
    with pytest.raises(BodiesUnreadable):
        await again.read("req_0001")
    await again.close()


async def test_a_shorter_time_holds_for_what_is_kept_already(database: Database, folder: Path) -> None:
    clock, bounds = Clock(), [BOUNDS]
    store = open_bodies(database, folder, clock=clock, find_bounds=lambda: bounds[0])
    keep(store, make_owner(1), MARKER)
    await store.write_waiting()
    await store.sweep()
    clock.now_s += 2 * DAY_S
    assert await read_texts(store, [1]) == [MARKER]
    bounds[0] = attrs.evolve(BOUNDS, keep_ms=DAY_S * 1000)
    await store.sweep()
    assert await read_texts(store, [1]) == [None]
    await store.close()
    assert find_marker(folder.parent, MARKER.encode()) == []


async def test_a_node_takes_over_what_it_kept_as_a_single_gateway(database: Database, folder: Path) -> None:
    single = open_bodies(database, folder)
    keep(single, make_owner(1), MARKER)
    await single.close()
    node = open_bodies(database, folder, node="a")
    assert await read_texts(node, [1]) == [MARKER]
    await node.close()


async def test_deleted_rows_name_no_user_and_those_of_absent_nodes_end(database: Database, tmp_path: Path) -> None:
    clock = Clock()
    first, second = (
        open_bodies(database, tmp_path / "a", node="a"),
        open_bodies(database, tmp_path / "b", node="b", clock=clock),
    )
    keep(first, make_owner(1, end_user="ann", session="s"), MARKER)
    keep(first, make_owner(2, end_user="ann", session="s"), "expires")
    await first.close()  # and never comes back
    await second.delete(BodyFilter(request_id="req_0001"))
    rows = await database.read(select(bodies).order_by(bodies.c.request_id))
    assert [(row.end_user, row.session) for row in rows] == [("", ""), ("ann", "s")]
    clock.now_s += 15 * DAY_S
    await second.sweep()
    assert [row.request_id for row in await database.read(select(bodies))] == ["req_0001"]
    await second.close()


async def test_another_node_deletes_its_own(database: Database, tmp_path: Path) -> None:
    first = open_bodies(database, tmp_path / "1", node="a")
    second = open_bodies(database, tmp_path / "2", node="b")
    keep(first, make_owner(1), MARKER)
    await first.write_waiting()
    with pytest.raises(BodiesUnreadable, match="node a"):
        await second.read("req_0001")
    assert await second.delete(BodyFilter(account_id=1)) == DeletedBodies(1, pending=1)
    assert await first.read("req_0001") is None
    await first.sweep()
    assert find_marker(tmp_path / "1", MARKER.encode(), tmp_path / "1" / "keys") == []
    assert list((tmp_path / "1").rglob("*.key")) == []
    assert await second.delete(BodyFilter(account_id=1)) == DeletedBodies(0)
    await first.close()
    await second.close()


async def test_expired_bodies_are_hidden_at_once_and_removed_with_their_segment(
    database: Database, folder: Path
) -> None:
    clock = Clock()
    store = open_bodies(database, folder, clock=clock, max_segment_bytes=1)
    keep(store, make_owner(1), "old")
    store.note_loss(make_owner(3), "memory")
    await store.write_waiting()
    clock.now_s += 6 * DAY_S
    keep(store, attrs.evolve(make_owner(2), started_ms=int(clock.now_s * 1000)), "new")
    await store.write_waiting()
    await store.sweep()
    assert await read_texts(store, [1, 2]) == ["old", "new"]
    clock.now_s += 1.5 * DAY_S
    assert await read_texts(store, [1, 2]) == [None, "new"]
    await store.sweep()
    assert sorted(path.name for path in folder.glob("*.segment")) == ["00000002.segment"]
    assert [row.request_id for row in await database.read(select(bodies))] == ["req_0002"]
    await store.close()


async def test_the_oldest_segments_make_room(database: Database, folder: Path) -> None:
    bounds = attrs.evolve(BOUNDS, max_bytes=1000)
    store = open_bodies(database, folder, find_bounds=lambda: bounds, max_segment_bytes=1)
    for number in range(1, 9):
        keep(store, make_owner(number), f"text {number}")
    await store.write_waiting()
    await store.sweep()
    described = await store.describe()
    assert 600 < described.bytes <= 1000
    shown = await read_texts(store, range(1, 9))
    kept = [text for text in shown if text]
    assert shown == [None] * (8 - len(kept)) + kept
    assert kept[-1] == "text 8"
    assert described.requests == len(kept)
    await store.close()


async def test_a_body_that_was_damaged_is_not_shown(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), "one")
    keep(store, make_owner(2), "two")
    await store.write_waiting()
    path = folder / "00000001.segment"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(BodiesUnreadable, match="checksum"):
        await store.read("req_0001")
    assert await read_texts(store, [2]) == ["two"]
    await store.close()


async def test_another_master_key_shows_nothing(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), "one")
    await store.close()
    key_path = folder / "keys" / "1.key"
    key_path.write_bytes(bytes(61))
    again = open_bodies(database, folder)
    with pytest.raises(BodiesUnreadable):
        await again.read("req_0001")
    await again.close()


async def test_requests_of_which_nothing_is_kept_are_noted(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    store.note_loss(make_owner(1), "memory")

    def fail() -> list[BodyPart]:
        raise ValueError

    store.memory.used += 10
    store.keep(make_owner(2), 10, fail)
    keep(store, make_owner(3), "fine")
    found = [await store.read(f"req_{number:04}") for number in (1, 2, 3)]
    assert [entry and (entry[0].loss, len(entry[1])) for entry in found] == [("memory", 0), ("fault", 0), (None, 2)]
    assert (await store.describe()).lost == 2
    assert store.memory.used == 0
    await store.close()


async def test_a_folder_that_cannot_be_opened_is_described_as_a_problem(database: Database, folder: Path) -> None:
    blocker = folder / "00000007.segment"
    blocker.mkdir(parents=True)  # a file that the disk does not let go
    store = open_bodies(database, folder)
    assert "00000007.segment" in (await store.describe()).problem
    blocker.rmdir()
    assert (await store.describe()).problem == ""
    await store.close()


async def test_an_unwritable_folder_loses_bodies_until_it_can_be_written_again(
    database: Database, folder: Path
) -> None:
    store = open_bodies(database, folder)
    keep(store, make_owner(1), "first")
    await store.write_waiting()
    moved = folder.rename(folder.parent / "moved")
    folder.write_text("not a folder")
    new_account = make_owner(2, account_id=2)  # its data key has no folder
    keep(store, new_account, "second")
    await store.write_waiting()
    assert "ot a directory" in (await store.describe()).problem
    folder.unlink()
    moved.rename(folder)
    keep(store, make_owner(3), "third")
    assert await read_texts(store, [1, 3]) == ["first", "third"]
    assert (await store.describe()).problem == ""
    found = await store.read("req_0002")
    assert found is not None
    assert found[0].loss == "disk"
    await store.close()


async def test_a_cancelled_writer_leaves_no_frame_without_its_row(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    for number in range(300):
        keep(store, make_owner(number), "text" * 100)
    writing = asyncio.create_task(store.write_waiting())
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    assert writing.cancelled()
    assert store.memory.used == 0
    assert len(await database.read(select(bodies))) == 300
    await store.close()


async def test_the_job_writes_and_sweeps(database: Database, folder: Path) -> None:
    store = open_bodies(database, folder)
    job = asyncio.create_task(store.run())
    keep(store, make_owner(1), "one")

    async def is_stored() -> bool:
        return bool(await database.read(select(bodies)))

    await eventually(is_stored, 20)
    assert store.memory.used == 0
    assert await read_texts(store, [1]) == ["one"]
    job.cancel()
    await asyncio.wait([job])
    await store.close()


async def test_a_full_batch_does_not_wait_for_more(
    database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.storage.bodies.body_store.WRITE_DELAY_S", 3_600.0)
    store = open_bodies(database, folder)
    job = asyncio.create_task(store.run())

    async def are_stored() -> bool:
        return store.memory.used == 0

    for count in (1, MAX_BATCH_REQUESTS):  # the job writes the first ones without a delay
        for number in range(count):
            keep(store, make_owner(number), "one")
        await eventually(are_stored, 20)
    job.cancel()
    await asyncio.wait([job])
    await store.close()
