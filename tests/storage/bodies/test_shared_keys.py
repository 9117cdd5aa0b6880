"""Data keys in a shared store: destroyed by another node, away after a restart, or with unreadable segments."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from gateway.domain.kept_body import BodyFilter, BodyPart
from gateway.errors import StoreUnavailable
from gateway.storage.bodies import bucket_segments, data_keys
from gateway.storage.bodies.body_store import KEYS_FOLDER
from gateway.storage.bodies.data_keys import FolderKeyFiles, MovedKeyFiles
from gateway.storage.bodies.errors import BodiesOutOfReach, SegmentUnreadable
from gateway.storage.bodies.index import BodyIndex
from gateway.storage.bodies.shared_bodies import SharedBodies
from gateway.storage.bodies.shared_keys import SharedDataKeys
from gateway.storage.database import Database
from gateway.storage.encryption import DecryptionFailed
from tests.support.body_stores import add_accounts, find_marker, keep, make_owner, make_parts, open_bodies
from tests.support.database_kinds import SQLITE_ONLY
from tests.support.gateway_process import eventually
from tests.support.media_stores import KINDS as PLACE_KINDS
from tests.support.segment_stores import SharedFolder, move_all, open_moving_node, open_place

MARKER = "marker-of-one-prompt"
WITHIN_S = 20.0


@pytest.fixture(autouse=True)
async def payers(database: Database) -> None:
    await add_accounts(database, 1, 2)


async def fail(*_: object) -> None:
    raise StoreUnavailable("The database does not answer")


@pytest.fixture
def shared_folder(tmp_path: Path) -> SharedFolder:
    return SharedFolder(tmp_path / "copies", tmp_path / "shared")


@SQLITE_ONLY
async def test_what_is_sealed_while_its_key_is_destroyed_is_never_shown_as_kept(
    database: Database, shared_folder: SharedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, place = shared_folder.open(), shared_folder
    first, second = (open_moving_node(database, tmp_path / name, folder) for name in "ab")
    keep(first, make_owner(1), MARKER)
    await move_all(first)  # its key is in memory now
    is_sealing, may_seal = threading.Event(), threading.Event()

    def build_late() -> Sequence[BodyPart]:
        is_sealing.set()
        may_seal.wait(WITHIN_S)
        return make_parts("of a request that ran meanwhile")

    first.keep(make_owner(2), 0, build_late)
    writing = asyncio.create_task(first.write_waiting())
    await asyncio.to_thread(is_sealing.wait, WITHIN_S)
    await second.delete(BodyFilter(account_id=1))
    with monkeypatch.context() as patched:
        patched.setattr(BodyIndex, "hide_unmoved", fail)  # the database ends between the two
        may_seal.set()
        with pytest.raises(StoreUnavailable):
            await writing
    assert [await store.read("req_0002") for store in (first, second)] == [None, None]
    await first.sweep()
    assert (await first.describe()).pending == 0
    keep(first, make_owner(3), "later")
    await move_all(first)
    assert place.find("later")
    assert await second.read("req_0003") is not None
    for opened in (first, second):
        await opened.close()


@SQLITE_ONLY
async def test_a_node_forgets_a_destroyed_key_although_it_keeps_nothing_new(
    database: Database, shared_folder: SharedFolder, tmp_path: Path
) -> None:
    folder = shared_folder.open()
    first, second = (open_moving_node(database, tmp_path / name, folder) for name in "ab")
    keep(first, make_owner(1), MARKER)
    keep(first, make_owner(2, account_id=2), "neighbour")
    await move_all(first)
    assert first.shared is not None
    assert first.shared.keys.list_accounts_here() == {1, 2}
    await second.delete(BodyFilter(account_id=1))
    await first.move_finished()  # which it calls every few seconds
    assert first.shared.keys.list_accounts_here() == {2}
    for opened in (first, second):
        await opened.close()


@SQLITE_ONLY
@pytest.mark.parametrize("place_kind", PLACE_KINDS)
async def test_nothing_is_lost_if_the_store_is_away_right_after_a_restart(
    database: Database, place_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_segments, "KEY_PAUSE_S", 0.0)
    keys = FolderKeyFiles(tmp_path / "a" / "bodies" / KEYS_FOLDER)
    async with open_place(place_kind, tmp_path) as place:
        stores = [open_moving_node(database, tmp_path / "a", place.open())]
        keep(stores[-1], make_owner(1), "before")
        await move_all(stores[-1])
        await stores[-1].close()
        place.break_down()
        for number in (2, 3):  # a restart in the middle of the outage, too
            stores.append(open_moving_node(database, tmp_path / "a", place.open()))
            keep(stores[-1], make_owner(number), f"{MARKER} {number}")
            keep(stores[-1], make_owner(number + 10, account_id=2), f"of a new account {number}")
            await stores[-1].write_waiting()
            assert (await stores[-1].describe()).lost == 0
            for shown in range(2, number + 1):
                for owner in (shown, shown + 10):
                    assert await stores[-1].read(f"req_{owner:04}") is not None
            with pytest.raises(BodiesOutOfReach):
                await stores[-1].read("req_0001")
            await stores[-1].close()
        place.repair()
        again, other = (open_moving_node(database, tmp_path / name, place.open()) for name in "ab")
        keep(again, make_owner(4), "after")
        await again.write_waiting()
        await again.move_finished()
        for number in (1, 2, 3, 4, 12, 13):
            assert await other.read(f"req_{number:04}") is not None
        assert keys.list_accounts() == []
        await other.delete(BodyFilter(account_id=1))
        assert place.find(MARKER) == []
        assert place.find("of a new account 3")
        for opened in (*stores, again, other):
            await opened.close()


@SQLITE_ONLY
async def test_what_cannot_be_written_yet_is_deleted_too(database: Database, tmp_path: Path) -> None:
    single = open_bodies(database, tmp_path / "a" / "bodies")
    keep(single, make_owner(1), "adopted later")
    await single.write_waiting()
    await single.close()
    place = SharedFolder(tmp_path / "copies", tmp_path / "shared")
    place.break_down()
    shutil.rmtree(tmp_path / "shared")  # not even a mount point: the node cannot adopt what it was before
    node = open_moving_node(database, tmp_path / "a", place.open())
    keep(node, make_owner(2, end_user="ann"), MARKER)
    keep(node, make_owner(3, end_user="ben"), "neighbour")
    with pytest.raises(OSError, match="shared"):
        await node.delete(BodyFilter(end_users=frozenset({"ann"})))
    (tmp_path / "shared").mkdir()
    place.repair()
    await node.write_waiting()
    assert await node.read("req_0002") is None
    assert await node.read("req_0003") is not None
    assert node.memory.used == 0
    await node.close()


@SQLITE_ONLY
async def test_a_segment_that_cannot_be_read_is_told_from_a_store_that_does_not_answer(
    database: Database, shared_folder: SharedFolder, tmp_path: Path
) -> None:
    folder, place = shared_folder.open(), shared_folder
    store = open_moving_node(database, tmp_path / "a", folder)
    keep(store, make_owner(1), MARKER)
    await move_all(store)
    (name,) = place.list_segments()
    path = tmp_path / "shared" / "bodies" / "segments" / name
    path.unlink()
    path.mkdir()  # as root reads every file
    with pytest.raises(SegmentUnreadable, match=name):
        await store.read("req_0001")
    place.break_down()
    with pytest.raises(BodiesOutOfReach) as caught:
        await store.read("req_0001")
    assert not isinstance(caught.value, SegmentUnreadable)
    place.repair()
    await store.close()


@SQLITE_ONLY
@pytest.mark.parametrize("restarts", [False, True], ids=["runs on", "restarts"])
async def test_a_key_of_an_outage_is_destroyed_by_the_deletion_of_another_node(
    database: Database, shared_folder: SharedFolder, tmp_path: Path, *, restarts: bool
) -> None:
    place = shared_folder
    cut_off, other = (open_moving_node(database, tmp_path / name, place.open()) for name in "ab")
    keep(other, make_owner(1, account_id=2), "neighbour")
    await move_all(other)
    place.break_down()
    keep(cut_off, make_owner(2), MARKER)
    await cut_off.write_waiting()
    older = tmp_path / "older"
    shutil.copytree(tmp_path / "a" / "bodies", older, ignore=shutil.ignore_patterns(KEYS_FOLDER))
    keys = tmp_path / "a" / "bodies" / KEYS_FOLDER
    assert find_marker(older, MARKER.encode(), keys), "the search finds what is there"
    if restarts:
        await cut_off.close()
    place.repair()
    await other.delete(BodyFilter(account_id=1))
    again = open_moving_node(database, tmp_path / "a", place.open()) if restarts else cut_off
    keep(again, make_owner(3), "later")
    await move_all(again)
    assert await other.read("req_0003") is not None
    assert place.find(MARKER, segments=older) == []
    assert find_marker(older, MARKER.encode(), keys) == []
    for opened in (cut_off, other, again):
        await opened.close()


def fail_to_decrypt(*_: object) -> None:
    raise DecryptionFailed("body-key:1")


@SQLITE_ONLY
@pytest.mark.parametrize(
    ("part", "method", "failure", "problem"),
    [
        (BodyIndex, "find_key_versions", fail, "does not answer"),
        (SharedDataKeys, "list_outage_keys", fail_to_decrypt, "cannot be opened"),
    ],
    ids=["database", "key"],
)
async def test_what_fails_is_the_problem_of_the_moves(
    database: Database,
    shared_folder: SharedFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    part: type[object],
    method: str,
    failure: Callable[..., object],
    problem: str,
) -> None:
    store = open_moving_node(database, tmp_path / "a", shared_folder.open())
    keep(store, make_owner(1), MARKER)
    await store.write_waiting()

    async def has_problem() -> bool:
        return problem in store.problem

    async def has_none() -> bool:
        return store.problem == ""

    with monkeypatch.context() as patched:
        patched.setattr(part, method, failure)
        moving = asyncio.create_task(store.run_moves())
        await eventually(has_problem, WITHIN_S)
    await eventually(has_none, WITHIN_S)
    await store.close()
    await moving


async def test_versions_of_more_accounts_than_a_statement_can_name(database: Database) -> None:
    index, asked = BodyIndex(database, "a", shares_keys=True), range(1, 40_001)
    for account_id in (1, 9, 50_000):
        await index.mark_deleted(BodyFilter(account_id=account_id), key_account_id=account_id)
    assert await index.list_pending_keys() == {1, 9, 50_000}
    await index.remove_key_versions()
    for account_id in (1, 9):
        await index.end_key_destruction(account_id)
    assert await index.find_key_versions(asked) == {1: 1, 9: 1}
    await index.hide_unmoved(asked)
    await index.remove_key_versions()  # there is no account 9, and that of 50,000 is pending
    assert await index.find_key_versions([1, 9, 50_000]) == {1: 1, 50_000: 0}


@SQLITE_ONLY
async def test_only_the_leader_ends_what_another_node_may_be_doing(
    database: Database, shared_folder: SharedFolder, tmp_path: Path
) -> None:
    store = open_moving_node(database, tmp_path / "a", shared_folder.open())
    keep(store, make_owner(1), MARKER)
    await move_all(store)
    index = BodyIndex(database, "b", shares_keys=True)
    await index.mark_deleted(BodyFilter(account_id=1), key_account_id=1)
    assert store.shared is not None
    for leads, pending in ((False, {1}), (False, {1}), (True, {1}), (True, set())):
        store.shared.leads = partial(bool, leads)
        await store.sweep()
        assert await index.list_pending_keys() == pending
    await store.close()


@SQLITE_ONLY
async def test_a_deletion_that_runs_on_another_node_is_not_repeated(
    database: Database, shared_folder: SharedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_folder.open()
    leader, other = (open_moving_node(database, tmp_path / name, folder) for name in "ab")
    keep(other, make_owner(1), MARKER)
    await move_all(other)
    destroy_keys = SharedBodies.destroy_keys
    repeated = list[SharedBodies]()

    async def sweep_meanwhile(shared: SharedBodies, account_id: int) -> None:
        if shared is other.shared:
            await leader.sweep()
        else:
            repeated.append(shared)
        await destroy_keys(shared, account_id)

    monkeypatch.setattr(SharedBodies, "destroy_keys", sweep_meanwhile)
    assert (await other.delete(BodyFilter(account_id=1))).requests == 1
    keep(other, make_owner(2), "later")
    await move_all(other)
    await leader.sweep()
    assert repeated == []
    assert await leader.read("req_0002") is not None
    assert await BodyIndex(database, "a", shares_keys=True).find_key_versions([1]) == {1: 1}
    for opened in (leader, other):
        await opened.close()


@SQLITE_ONLY
async def test_a_sweep_does_not_repeat_a_deletion_of_its_own_process(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_bodies(database, tmp_path / "bodies")
    keep(store, make_owner(1), MARKER)
    await store.write_waiting()
    mark_deleted = BodyIndex.mark_deleted

    async def sweep_after(index: BodyIndex, body_filter: BodyFilter, *more: Any, **named: Any) -> int:
        marked = await mark_deleted(index, body_filter, *more, **named)
        if named.get("key_account_id") is not None:
            await store.sweep()
        return marked

    monkeypatch.setattr(BodyIndex, "mark_deleted", sweep_after)
    await store.delete(BodyFilter(account_id=1))
    assert await BodyIndex(database, "").find_key_versions([1]) == {1: 1}
    await store.close()


@SQLITE_ONLY
async def test_what_a_killed_process_has_sealed_with_a_destroyed_key_is_erased_by_the_next(
    database: Database, shared_folder: SharedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared_folder.open()
    killed, other = (open_moving_node(database, tmp_path / name, folder) for name in "ab")
    keep(killed, make_owner(1), MARKER)
    await move_all(killed)  # its key is in memory now
    is_sealing, may_seal = threading.Event(), threading.Event()

    def build_late() -> Sequence[BodyPart]:
        is_sealing.set()
        may_seal.wait(WITHIN_S)
        return make_parts("of a request that ran meanwhile")

    killed.keep(make_owner(2), 0, build_late)
    keep(killed, make_owner(3, account_id=2), "neighbour")
    writing = asyncio.create_task(killed.write_waiting())
    await asyncio.to_thread(is_sealing.wait, WITHIN_S)
    await other.delete(BodyFilter(account_id=1))
    with monkeypatch.context() as patched:
        patched.setattr(BodyIndex, "hide_unmoved", fail)  # the process is killed between the two
        may_seal.set()
        with pytest.raises(StoreUnavailable):
            await writing
    again = open_moving_node(database, tmp_path / "a", folder)
    keep(again, make_owner(4), "with a new key")
    await move_all(again)
    await again.sweep()
    stored = await again.describe()
    assert (stored.requests, stored.pending) == (2, 0)
    assert await other.read("req_0002") is None
    assert shared_folder.find("neighbour")
    assert shared_folder.find("with a new key")
    for opened in (again, other, killed):
        await opened.close()


@SQLITE_ONLY
async def test_a_node_knows_keys_and_versions_of_a_bounded_number_of_accounts(
    database: Database, shared_folder: SharedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_keys, "MAX_KEYS_IN_MEMORY", 5)
    folder, account_ids = shared_folder.open(), range(1, 41)
    await add_accounts(database, *account_ids)
    first, second = (open_moving_node(database, tmp_path / name, folder) for name in "ab")
    assert first.shared is not None
    for account_id in account_ids:
        keep(first, make_owner(account_id, account_id=account_id), f"of {account_id}")
        await first.write_waiting()
    await first.move_finished()
    assert len(first.shared.keys.list_accounts_here()) == 5
    assert len(first.shared.keys._versions) <= 10
    for account_id in (1, 40):  # one whose key was forgotten, and one whose key is in memory
        await second.delete(BodyFilter(account_id=account_id))
        keep(first, make_owner(100 + account_id, account_id=account_id), "later")
    await move_all(first)
    for account_id in account_ids:
        found = await second.read(make_owner(account_id).request_id)
        assert (found is None) is (account_id in {1, 40})
    for account_id in (1, 40):
        assert await second.read(make_owner(100 + account_id).request_id) is not None
    for opened in (first, second):
        await opened.close()


class LateKeyFiles(FolderKeyFiles):
    """A folder of keys in which the first reader comes late: another one has come in between."""

    other: threading.Thread | None = None

    @override
    def read(self, account_id: int) -> bytes | None:
        if self.other is not None and self.other.ident is None:
            self.other.start()
            self.other.join(0.3)  # ends before only if two use the keys at once
        return super().read(account_id)


@SQLITE_ONLY
def test_a_key_that_moves_is_found_by_two_readers_at_once(tmp_path: Path) -> None:
    local = LateKeyFiles(tmp_path / "local")
    local.write(1, b"sealed")
    moved = MovedKeyFiles(FolderKeyFiles(tmp_path / "store"), local)
    local.other = threading.Thread(target=moved.read, args=(1,))
    assert moved.read(1) == b"sealed"
    local.other.join()
    assert moved.read(1) == b"sealed"


@SQLITE_ONLY
def test_a_destroyed_key_that_another_one_has_just_removed_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "1.dead").symlink_to(folder / "removed")  # listed, and gone when it is opened
    (folder / "2.dead").write_bytes(b"sealed")
    FolderKeyFiles(folder).remove_dead()
    assert list(folder.iterdir()) == []
