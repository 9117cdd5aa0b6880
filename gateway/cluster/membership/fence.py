"""The fence: a node that has not reached the store for some seconds takes no new requests.

By then another node may have revoked a key, or declared this node dead.
"""

import asyncio
import time
from collections.abc import Callable

from gateway.billing.write_queue import MAX_QUEUED, WriteQueue
from gateway.cluster.membership.times import TIMES, ClusterTimes
from gateway.errors import StoreUnavailable

_RETRY_AFTER_S = 2


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_boot_time() -> float:
    """Return the seconds since the machine started, including time in suspension."""
    return time.clock_gettime(_BOOT_TIME)


class FencedWriteQueue(WriteQueue):
    """The write queue of a node. It refuses requests after ``valid_until_s`` (by ``read_boot_time``).

    While rows cannot be stored, it still accepts requests for ``ClusterTimes.ride_through_s`` seconds, as long as less
    than half of the queue is used.

    Attributes:
        when_fenced: functions to call as soon as the node is fenced.
    """

    def __init__(self, max_rows: int = MAX_QUEUED, times: ClusterTimes = TIMES) -> None:
        self._failing_since_s: float | None = None
        self._ride_through_s = times.ride_through_s
        super().__init__(max_rows)
        self.valid_until_s = 0.0
        self.when_fenced: list[Callable[[], object]] = []
        self._timer: asyncio.TimerHandle | None = None

    def open_until(self, until_s: float) -> None:
        """Move the fence: take requests until ``until_s``, by ``read_boot_time``."""
        self.valid_until_s = until_s
        self._watch()

    def close(self) -> None:
        """Take no requests until ``open_until``."""
        self.valid_until_s = 0.0
        self._watch()

    @property
    def fenced(self) -> bool:
        return read_boot_time() >= self.valid_until_s

    @property
    def failing(self) -> bool:
        return self._failing_since_s is not None

    @failing.setter
    def failing(self, failing: bool) -> None:
        if not failing:
            self._failing_since_s = None
        elif self._failing_since_s is None:
            self._failing_since_s = read_boot_time()

    @property
    def full(self) -> bool:
        return self.fenced or len(self._rows) >= self._max_rows or (self.failing and self._is_failing_long)

    @property
    def crowded(self) -> bool:
        return self.fenced or 2 * len(self._rows) >= self._max_rows or (self.failing and self._is_failing_long)

    @property
    def can_recover(self) -> bool:
        return not self.failing and not self.fenced

    def check_room(self) -> None:
        if self.fenced:
            raise StoreUnavailable("The gateway has lost touch with its store", retry_after_s=_RETRY_AFTER_S)
        super().check_room()

    def _watch(self) -> None:
        """Call ``when_fenced`` when the node is fenced, unless the fence moves before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        remaining_s = self.valid_until_s - read_boot_time()
        if remaining_s > 0:
            self._timer = asyncio.get_running_loop().call_later(remaining_s, self._watch)
            return
        for callback in self.when_fenced:
            callback()

    @property
    def _is_failing_long(self) -> bool:
        since_s = self._failing_since_s or 0.0
        return read_boot_time() - since_s >= self._ride_through_s or 2 * len(self._rows) >= self._max_rows
