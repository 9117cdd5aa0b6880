"""Deletes old idempotency records, webhook deliveries, video jobs, batches, responses, members' sessions and links."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.domain.idempotency import KEEP_MS
from gateway.errors import StoreUnavailable
from gateway.proxy.idempotency import IdempotencyService
from gateway.routing.kept_responses import KeptResponses
from gateway.routing.response_owners import ResponseOwners
from gateway.storage.batches import BatchRepository
from gateway.storage.members import MemberRepository
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository

FIRST_DELAY_S = 30.0
SWEEP_INTERVAL_S = 3_600.0
DELIVERY_RETENTION_MS = 30 * 24 * 3_600 * 1000
BATCH_RETENTION_MS = 30 * 24 * 3_600 * 1000
"""How long batches are kept after their creation."""
VIDEO_RETENTION_MS = 30 * 24 * 3_600 * 1000
"""How long video jobs are kept after their files expire."""
MAX_JOBS = 100
"""Maximum number of videos deleted in one commit. Other writers wait for at most one such commit."""

log = structlog.stdlib.get_logger(__name__)


class RecordCleanup:
    """Deletes old records every hour.

    Args:
        idempotency: records, kept for a day.
        deliveries: kept for a month after they ended.
        videos: kept for a month after they failed or their files expired.
        members: their sessions and the links for members, deleted when they have expired.
        owners: response owners, kept as long as providers keep responses.
        kept_responses: deleted at the end of their time.
        batches: kept for a month; a batch that has not ended stays.
    """

    def __init__(
        self,
        idempotency: IdempotencyService,
        deliveries: WebhookDeliveryRepository,
        videos: VideoRepository,
        members: MemberRepository,
        clock: Callable[[], float],
        *,
        owners: ResponseOwners | None = None,
        kept_responses: KeptResponses | None = None,
        batches: BatchRepository | None = None,
    ) -> None:
        self._batches = batches
        self._kept_responses = kept_responses
        self._owners = owners
        self._idempotency = idempotency
        self._deliveries = deliveries
        self._videos = videos
        self._members = members
        self._clock = clock

    async def run(self) -> None:
        await asyncio.sleep(FIRST_DELAY_S)
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_INTERVAL_S)

    async def sweep(self) -> None:
        now_ms = int(self._clock() * 1000)
        try:
            rows = await self._idempotency.sweep(now_ms - KEEP_MS)
            rows += await self._deliveries.sweep_deliveries(now_ms - DELIVERY_RETENTION_MS)
            rows += await self._sweep_videos(now_ms - VIDEO_RETENTION_MS)
            rows += await self._members.sweep_sessions(now_ms)
            rows += await self._owners.sweep(now_ms) if self._owners is not None else 0
            rows += await self._kept_responses.sweep(now_ms) if self._kept_responses is not None else 0
            rows += await self._batches.sweep_batches(now_ms - BATCH_RETENTION_MS) if self._batches is not None else 0
        except StoreUnavailable as error:
            log.warning("records_not_swept", error=error.message)
            return
        if rows:
            log.info("records_swept", rows=rows)

    async def _sweep_videos(self, before_ms: int) -> int:
        total_count = deleted_count = await self._videos.sweep_ended(before_ms, MAX_JOBS)
        while deleted_count == MAX_JOBS:
            total_count += (deleted_count := await self._videos.sweep_ended(before_ms, MAX_JOBS))
        return total_count
