"""The last changes of a node outlive it, and are dropped when the database has had them for some time."""

from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.journal.kept_journal import RETENTION_S
from gateway.cluster.kept.kept_changes import MAX_STATE_BYTES, ChangeFile
from gateway.errors import StoreUnavailable


class Store:
    """What a node knows of its database, and the time."""

    generation, timeline, now_s = "one", "7:1", 1000.0

    def open(self, path: Path | None) -> ChangeFile:
        return ChangeFile(
            path, lambda: self.generation, lambda: self.timeline, find_restoring=lambda: False, now=lambda: self.now_s
        )


def list_states(file: ChangeFile) -> list[Any]:
    return [(each.kind, each.key, each.state) for each in file.list_changes()]


def test_the_last_state_of_each_key_is_kept_over_a_kill(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "changes"
    path.touch()  # as the data folder makes it
    killed = store.open(path)
    killed.keep("video", "b", {"job": 1})
    killed.keep("video", "a", {"job": 1, "prompt": "p", "row": None})
    killed.keep("video", "a", {"job": 2, "prompt": None, "row": 5})
    path.write_bytes(path.read_bytes() + b'[1000.0,"video","c')  # it was killed while it wrote
    left = [("video", "b", {"job": 1}), ("video", "a", {"job": 2, "prompt": "p", "row": 5})]
    assert list_states(killed) == list_states(store.open(path)) == left
    assert list_states(store.open(None)) == []


def test_what_was_changed_long_ago_is_dropped_unless_the_database_may_lack_it(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "changes"
    file = store.open(path)
    file.keep("video", "a", {"job": 1})
    file.close()
    store.now_s += RETENTION_S + 1
    store.generation = "two"
    again = store.open(path)
    assert again.database_lacks_changes
    with pytest.raises(StoreUnavailable):
        again.check()
    again.close()
    again = store.open(path)
    assert again.database_lacks_changes
    assert [each.key for each in again.list_changes()] == ["a"]
    again.confirm(store.timeline)
    again.check()
    again.close()
    assert list_states(store.open(path)) == []


def test_a_promotion_is_noticed_until_everything_is_restored() -> None:
    store = Store()
    file = store.open(None)
    file.check()
    store.timeline = "7:2"
    with pytest.raises(StoreUnavailable):
        file.check()
    file.confirm("7:2")
    file.check()


def test_a_file_that_is_full_of_old_states_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "changes"
    path.touch()
    file = store.open(path)
    for number in range(6):
        store.now_s += RETENTION_S / 2
        file.keep("file", f"{number}", {"row": "x" * 1000})
    sizes = [each.stat().st_size for each in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 5 * 1000
    left = [each.key for each in file.list_changes()]
    assert left == [each.key for each in store.open(path).list_changes()] == ["3", "4", "5"]


def test_states_beyond_the_memory_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    path.touch()
    file = Store().open(path)
    for number in range(10):
        file.keep("file", f"{number}", {"row": "x" * (MAX_STATE_BYTES - 100)})
    file.keep("file", "large", {"row": "x" * MAX_STATE_BYTES})
    assert [each.key for each in file.list_changes()] == [f"{number}" for number in range(2, 10)]
    assert [each.key for each in file.list_changes(9)] == ["9"]
    assert [each.key for each in Store().open(path).list_changes()] == [f"{number}" for number in range(2, 10)]


def test_what_other_nodes_may_bring_back_is_not_missing() -> None:
    restoring = [True]
    file = ChangeFile(None, lambda: "", lambda: "", find_restoring=lambda: restoring[0])
    with pytest.raises(StoreUnavailable):
        file.check()
    restoring[0] = False
    file.check()
