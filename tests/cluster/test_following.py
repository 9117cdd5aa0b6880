"""What other nodes have changed is tried again while the store is away, and not for ever if that is no help."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.background import TaskSet
from gateway.domain.node import Change
from gateway.errors import StoreUnavailable
from gateway.services.changes import MOST_FAILURES, ChangeFollower


class Store:
    """Lists and channels that cannot be read. The node notices after ``away`` reads that it is in touch again."""

    def __init__(self, away: int = 0) -> None:
        self.reads = 0
        self._away = away
        self.background = TaskSet()
        routing = SimpleNamespace(model_lists=self, channels=self)
        services: Any = SimpleNamespace(routing=routing, background=self.background)
        self.follower = ChangeFollower(services, self)  # type: ignore[arg-type]
        self.follower.again_s = 0.0

    @property
    def figures(self) -> Any:
        return SimpleNamespace(fenced=self.reads <= self._away)

    async def load(self, _: Collection[str] | None) -> None:
        self.reads += 1
        raise StoreUnavailable("The gateway's store cannot be read")

    async def adopt_stored(self) -> None:
        await self.load(None)

    async def change(self, kind: Any) -> int:
        """Return how often it is tried to follow a change."""
        before = self.reads
        await self.follower.apply([Change(1, kind, "up")])
        await self.background.wait()
        return self.reads - before


async def test_a_node_that_reads_everything_anew_makes_the_balances_that_are_missing() -> None:
    """A gateway that is no node may have deleted them while this one was declared dead."""
    made: list[Any] = []

    async def write(work: Any) -> None:
        made.append(work)

    async def reload() -> None:
        made.append("keys")
        raise StoreUnavailable("enough")

    services: Any = SimpleNamespace(
        billing=SimpleNamespace(keeper=None),
        storage=SimpleNamespace(database=SimpleNamespace(credit=SimpleNamespace(open_missing="missing"), write=write)),
        auth=SimpleNamespace(api_keys=SimpleNamespace(reload=reload)),
    )
    with pytest.raises(StoreUnavailable):
        await ChangeFollower(services, Store()).reload()  # type: ignore[arg-type]
    assert made == ["missing", "keys"]


async def test_what_cannot_be_read_is_given_up_and_tried_again_by_the_next_change() -> None:
    store = Store()
    with capture_logs() as log:
        tried = [await store.change(kind) for kind in ("channel", "channel", "model_list")]
    assert tried == [MOST_FAILURES] * 3
    jobs = [line["job"] for line in log if line["event"] == "change_not_followed"]
    assert jobs == ["follow_channels", "follow_channels", "load_models"]


async def test_as_long_as_the_node_is_out_of_touch_it_tries_again() -> None:
    assert await Store(away=100).change("channel") == 100 + MOST_FAILURES
