"""Deletes media that are too old, and the oldest ones if all together use too many bytes."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.domain.media import MediaRules
from gateway.storage.media_store import MediaStore

FIRST_SWEEP_S = 10.0
SWEEP_EVERY_S = 600.0

log = structlog.stdlib.get_logger(__name__)


class MediaCleanup:
    """Deletes media that are too old, and then the oldest ones until the others fit the limit of bytes.

    Args:
        find_rules: returns the current limits of age and size.
    """

    def __init__(self, store: MediaStore, find_rules: Callable[[], MediaRules], clock: Callable[[], float]) -> None:
        self._store = store
        self._find_rules = find_rules
        self._clock = clock

    async def run(self) -> None:
        await asyncio.sleep(FIRST_SWEEP_S)
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        rules = self._find_rules()
        result = await self._store.sweep(before_s=self._clock() - rules.max_age_s, max_bytes=rules.max_bytes)
        if result.files:
            log.info("media_swept", files=result.files, bytes=result.freed_bytes)
