"""Writes request rows to the store: group commit, without a linger. Batches form while a commit is in flight."""

import asyncio

import structlog

from gateway.domain.fault import StoreUnavailable
from gateway.domain.request import RequestLog
from gateway.flow.settlement import RowQueue

BATCH = 500
RETRY_AFTER_S = 1.0

log = structlog.stdlib.get_logger(__name__)


class FlushRequests:
    """The job between ``RowQueue`` and ``RequestLog``.

    Args:
        queue: rows of requests that have ended.
        requests: where they are stored.
    """

    def __init__(self, queue: RowQueue, requests: RequestLog) -> None:
        self._queue = queue
        self._requests = requests
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Store rows as they come, for ever. A store that fails is asked again; no row is dropped."""
        while True:
            await self._queue.wait()
            if not await self.flush():
                await asyncio.sleep(RETRY_AFTER_S)

    async def flush(self) -> bool:
        """Store one batch after another until none is left. False where the store failed; the rows are kept."""
        async with self._lock:
            while rows := self._queue.take(BATCH):
                stored = False
                try:
                    await self._requests.add_requests(rows)
                    stored = True
                except StoreUnavailable as fault:
                    log.error("requests_not_stored", rows=len(self._queue) + len(rows), error=fault.message)  # noqa: TRY400
                    return False
                finally:
                    if not stored:
                        self._queue.put_back(rows)
        return True
