"""The last changes of a node outlive it, and are dropped when the database has had them for some time."""

from pathlib import Path

import pytest

from gateway.cluster.journal.kept_journal import KEPT_S
from gateway.cluster.kept.kept_changes import ChangeFile
from gateway.errors import StoreUnavailable


class Store:
    """What a node knows of its database, and the time."""

    generation, timeline, now_s = "one", "7:1", 1000.0

    def open(self, path: Path | None) -> ChangeFile:
        return ChangeFile(path, lambda: self.generation, lambda: self.timeline, lambda: self.now_s)


def test_the_last_state_of_each_key_is_kept_over_a_kill(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "changes"
    path.touch()  # as the data folder makes it
    killed = store.open(path)
    killed.keep("video", "b", {"job": 1})
    killed.keep("video", "a", {"job": 1, "prompt": "p", "row": None})
    killed.keep("video", "a", {"job": 2, "prompt": None, "row": 5})
    path.write_bytes(path.read_bytes() + b'[1000.0,"video","c')  # it was killed while it wrote
    left = [("video", "b", {"job": 1}), ("video", "a", {"job": 2, "prompt": "p", "row": 5})]
    assert killed.list_changes() == store.open(path).list_changes() == left
    assert store.open(None).list_changes() == []


def test_what_was_changed_long_ago_is_dropped_unless_the_database_may_lack_it(tmp_path: Path) -> None:
    store, path = Store(), tmp_path / "changes"
    file = store.open(path)
    file.keep("video", "a", {"job": 1})
    file.close()
    store.now_s += KEPT_S + 1
    store.generation = "two"
    again = store.open(path)
    assert again.lost
    with pytest.raises(StoreUnavailable):
        again.check()
    again.close()
    again = store.open(path)
    assert again.lost
    assert [key for _, key, _ in again.list_changes()] == ["a"]
    again.confirm(store.timeline)
    again.check()
    again.close()
    assert store.open(path).list_changes() == []


def test_a_promotion_is_noticed_until_everything_is_restored() -> None:
    store = Store()
    file = store.open(None)
    file.check()
    store.timeline = "7:2"
    with pytest.raises(StoreUnavailable):
        file.check()
    file.confirm("7:2")
    file.check()
