"""``Idempotency-Key``: a request with a key is processed once; a repeated request gets the same answer."""

from collections.abc import Awaitable, Callable

import attrs
import structlog

from gateway.domain.idempotency import KEEP_MS, MAX_ANSWER_BYTES, IdempotencyRecord
from gateway.errors import IdempotencyConflict, StoreUnavailable
from gateway.storage.idempotency import IdempotencyRepository

log = structlog.stdlib.get_logger(__name__)


class IdempotencyService:
    """Records requests with an idempotency key, and their answers.

    ``owner``: id of this process. ``expiry_clock``: the clock for the expiry of records; None for ``clock``.
    """

    def __init__(
        self,
        store: IdempotencyRepository,
        owner: str,
        clock: Callable[[], float],
        *,
        expiry_clock: Callable[[], float] | None = None,
    ) -> None:
        self._expiry_clock = expiry_clock or clock
        self._store = store
        self._owner = owner
        self._clock = clock
        self._running_ids: set[str] = set()

    async def open(self) -> None:
        """Mark requests left unfinished by an earlier process as lost.

        Call this only if one process uses the database.
        """
        await self._store.interrupt_replays(self._owner)

    async def sweep(self, before_ms: int) -> int:
        return await self._store.sweep_replays(before_ms)

    async def begin(
        self, key_id: int, name: str, digest: str, request_id: str
    ) -> tuple[IdempotencyRecord, IdempotencyRecord | None]:
        """Record a request. Return its record, and the earlier record with the same key, if any.

        The earlier request is either answered or lost, that is, its outcome is unknown here. If a lost request had no
        effect, ``claim_lost`` claims it for another try. Raises ``IdempotencyConflict`` if the earlier request had
        another ``digest``, is still running, or had an answer that was too large to be kept.
        """
        now_ms = int(self._clock() * 1000)
        own_record = IdempotencyRecord(key_id, name, digest, request_id, now_ms, self._owner)
        self._running_ids.add(request_id)
        has_begun = False
        try:
            earlier_record = await self._store.begin_replay(own_record, int(self._expiry_clock() * 1000) - KEEP_MS)
            has_begun = earlier_record is None
        finally:
            if not has_begun:
                self._running_ids.discard(request_id)
        if earlier_record is None:
            return own_record, None
        if earlier_record.digest != digest:
            raise IdempotencyConflict(
                "This Idempotency-Key was used for another request: another body needs another key",
                param="Idempotency-Key",
                should_retry=False,
            )
        if earlier_record.state == "running" and (
            earlier_record.owner != self._owner or earlier_record.request_id in self._running_ids
        ):
            raise _make_running_error()
        if earlier_record.state == "answered" and not earlier_record.status:
            raise IdempotencyConflict(
                "The request of this Idempotency-Key was answered, and its answer was too large to be kept",
                param="Idempotency-Key",
                should_retry=False,
            )
        return own_record, earlier_record

    async def claim_lost(self, own_record: IdempotencyRecord, lost_record: IdempotencyRecord) -> None:
        """Claim a lost request to process it again. Raises ``IdempotencyConflict`` if it is already claimed."""
        self._running_ids.add(own_record.request_id)
        is_taken = False
        try:
            is_taken = await self._store.take_replay(lost_record, own_record)
        finally:
            if not is_taken:
                self._running_ids.discard(own_record.request_id)
        if not is_taken:
            raise _make_running_error()

    async def record_answer(self, own_record: IdempotencyRecord, *, status: int, media_type: str, body: bytes) -> None:
        """Record the answer. An error of the store is only logged, because the client gets the answer in any case."""
        is_kept = len(body) <= MAX_ANSWER_BYTES
        answered_record = attrs.evolve(
            own_record,
            state="answered",
            status=status if is_kept else 0,
            media_type=media_type,
            body=body if is_kept else b"",
        )
        await self._store_record(self._store.end_replay, answered_record)

    async def mark_lost(self, own_record: IdempotencyRecord) -> None:
        """Mark the request as lost: its outcome is unknown, or recorded elsewhere."""
        await self._store_record(self._store.end_replay, attrs.evolve(own_record, state="lost"))

    async def delete(self, own_record: IdempotencyRecord) -> None:
        """Delete the record: the request failed and may be sent again."""
        await self._store_record(self._store.forget_replay, own_record)

    async def _store_record(
        self, store_change: Callable[[IdempotencyRecord], Awaitable[None]], replay: IdempotencyRecord
    ) -> None:
        try:
            await store_change(replay)
        except StoreUnavailable as fault:
            log.warning("idempotency_record_not_stored", request_id=replay.request_id, error=fault.message)
        finally:
            self._running_ids.discard(replay.request_id)


def _make_running_error() -> IdempotencyConflict:
    return IdempotencyConflict(
        "A request with this Idempotency-Key is being answered right now", param="Idempotency-Key", retry_after_s=1
    )
