"""What other nodes have changed is tried again until the store lets it, less often after many failures."""

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from gateway.background import TaskSet
from gateway.cluster.changes import MAX_FAILURES, ChangeFollower
from gateway.domain.node import Change
from gateway.errors import StoreUnavailable


class Store:
    """Lists and channels that cannot be read until the ``good``-th time. Up to ``away`` reads the node is fenced."""

    def __init__(self, good: int = 1, away: int = 0) -> None:
        self.names: list[Collection[str] | None] = []
        self._good = good
        self._away = away
        self.background = TaskSet()
        self.follower = self.follow(None, None)
        self.follower.retry_s = self.follower.slow_retry_s = 0.0

    def follow(self, storage: Any, api_keys: Any) -> ChangeFollower:
        node, routing = cast("Any", self), cast("Any", SimpleNamespace(model_lists=self, channels=self))
        start, absent = self.background.start, cast("Any", None)
        return ChangeFollower(
            node, storage, routing, api_keys=api_keys, reloader=absent, keeper=None, start=start, bring_back=absent
        )

    @property
    def figures(self) -> Any:
        return SimpleNamespace(fenced=len(self.names) <= self._away)

    async def load(self, names: Collection[str] | None) -> None:
        self.names.append(names)
        if len(self.names) < self._good:
            raise StoreUnavailable("The gateway's store cannot be read")

    async def adopt_stored(self) -> Collection[Any]:
        await self.load(None)
        return ()

    async def change(self, kind: Any, *ids: str) -> Sequence[str]:
        """Make changes, one after the other; return the jobs that are logged as failing."""
        with capture_logs() as log:
            for each in ids or ("up",):
                await self.follower.apply([Change(1, kind, each)])
            await self.background.wait()
        return [line["job"] for line in log if line["event"] == "change_not_followed"]


async def test_a_node_that_reads_everything_anew_makes_the_balances_that_are_missing() -> None:
    """A gateway that is no node may have deleted them while this one was declared dead."""
    made: list[Any] = []

    async def write(work: Any) -> None:
        made.append(work)

    async def reload() -> None:
        made.append("keys")
        raise StoreUnavailable("enough")

    storage = SimpleNamespace(
        database=SimpleNamespace(credit=SimpleNamespace(open_missing_balances="missing"), write=write)
    )
    with pytest.raises(StoreUnavailable):
        await Store().follow(storage, SimpleNamespace(reload=reload)).reload()
    assert made == ["missing", "keys"]


@pytest.mark.parametrize(("kind", "job"), [("channel", "follow_channels"), ("model_list", "load_models")])
async def test_what_cannot_be_read_is_logged_once_and_tried_again_until_it_can(kind: str, job: str) -> None:
    store = Store(good=3 * MAX_FAILURES)
    assert await store.change(kind) == [job]
    assert len(store.names) >= 3 * MAX_FAILURES
    assert await store.change(kind) == []


async def test_after_many_failures_it_is_tried_less_often() -> None:
    store = Store(good=1000)
    store.follower.slow_retry_s = 3600.0
    await store.follower.apply([Change(1, "channel", "up")])
    async with asyncio.timeout(30):
        while len(store.names) < MAX_FAILURES:  # noqa: ASYNC110 - the follower has no event of ours
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(store.names) == MAX_FAILURES
    await store.background.close(0.0)


async def test_lists_that_change_while_the_store_refuses_are_read_together() -> None:
    store = Store(good=5)
    await store.change("model_list", "up", "down")
    assert store.names[-1] == {"up", "down"}
    assert len(store.names) == 5


async def test_a_node_that_is_out_of_touch_logs_no_failure_of_its_own() -> None:
    assert await Store(good=100, away=100).change("channel") == []
