"""Kept bodies of a node in a backup: whichever gateway opens the restored folder has them."""

import shutil
from pathlib import Path

import pytest

from gateway.storage.backup import BackupSource, write_backup
from gateway.storage.data_folder import NODE_ID
from gateway.storage.open import open_database
from gateway.storage.restore import restore_backup
from tests.support.body_stores import add_accounts, keep, make_owner, make_parts, open_bodies, share
from tests.support.segment_stores import SharedFolder

NODE, OTHER_NODE = "a" * 16, "b" * 16


async def keep_bodies(data: Path, database_path: Path) -> None:
    """Two requests that a node has kept, and one of another node, whose segments are not in this folder."""
    data.mkdir()
    shutil.move(database_path, data / "gateway.db")
    (data / NODE_ID).write_text(NODE)
    database = await open_database(f"sqlite:///{data / 'gateway.db'}")
    await add_accounts(database, 1)
    for node, numbers in ((NODE, (1, 2)), (OTHER_NODE, (3,))):
        folder = data / "bodies" if node == NODE else data.parent / "other"
        store = open_bodies(database, folder, node=node)
        for number in numbers:
            keep(store, make_owner(number), f"text {number}")
        await store.write_waiting()
        await store.close()
    await database.close()


@pytest.mark.parametrize("node", ["", "c" * 16], ids=["single gateway", "another node"])
async def test_the_first_start_after_a_restore_keeps_what_was_restored(
    database_path: Path, tmp_path: Path, node: str
) -> None:
    data, target = tmp_path / "data", tmp_path / "restored"
    await keep_bodies(data, database_path)
    write_backup(BackupSource(data, data / "gateway.db", bodies=True), tmp_path / "b.gwb")
    manifest = restore_backup(tmp_path / "b.gwb", target)
    assert manifest["kept_bodies"] == {"requests": 2, "damaged": 0}
    shutil.copytree(data / "bodies" / "keys", target / "bodies" / "keys")
    database = await open_database(f"sqlite:///{target / 'gateway.db'}")
    store = open_bodies(database, target / "bodies", node=node)
    await store.sweep()
    for number in (1, 2):
        found = await store.read(f"req_{number:04}")
        assert found is not None
        assert found[1] == make_parts(f"text {number}")
    await store.close()
    await database.close()


async def test_bodies_in_a_shared_store_are_read_again_after_a_restore(database_path: Path, tmp_path: Path) -> None:
    place = SharedFolder(tmp_path / "copies", tmp_path / "shared")
    data, target = tmp_path / "data", tmp_path / "restored"
    await keep_bodies(data, database_path)
    database = await open_database(f"sqlite:///{data / 'gateway.db'}")
    store = open_bodies(
        database, data / "bodies", node=NODE, shared=share(database, data / "bodies", place.open(), node=NODE)
    )
    await store.move_finished()
    await store.close()
    await database.close()
    source = BackupSource(data, data / "gateway.db", bodies=True, bodies_url=place.url)
    manifest = write_backup(source, tmp_path / "b.gwb")
    assert manifest["bodies_store"] == place.url
    assert not any(name.startswith("bodies") for name in manifest["members"])
    assert "kept_bodies" not in restore_backup(tmp_path / "b.gwb", target)
    restored, folder = await open_database(f"sqlite:///{target / 'gateway.db'}"), target / "bodies"
    again = open_bodies(restored, folder, shared=share(restored, folder, place.open(), node=""))
    await again.sweep()
    found = await again.read("req_0001")
    assert found is not None
    assert found[1] == make_parts("text 1")
    await again.close()
    await restored.close()
