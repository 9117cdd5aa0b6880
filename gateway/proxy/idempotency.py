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

    ``owner``: id of this process. ``clock``: returns Unix seconds. ``expiry``: the clock for the expiry of records;
    None for ``clock``.
    """

    def __init__(
        self,
        store: IdempotencyRepository,
        owner: str,
        clock: Callable[[], float],
        *,
        expiry: Callable[[], float] | None = None,
    ) -> None:
        self._expiry = expiry or clock
        self._store = store
        self._owner = owner
        self._clock = clock
        self._running: set[str] = set()

    async def open(self) -> None:
        """Mark requests left unfinished by an earlier process as lost. Only for the single process of a database."""
        await self._store.interrupt_replays(self._owner)

    async def sweep(self, before_ms: int) -> int:
        return await self._store.sweep_replays(before_ms)

    async def begin(
        self, key_id: int, name: str, digest: str, request_id: str
    ) -> tuple[IdempotencyRecord, IdempotencyRecord | None]:
        """Record a request. Return its record, and the earlier record with the same key, if any.

        The earlier request is either answered or lost, that is, its outcome is unknown here. If a lost request had no
        effect, ``claim_lost`` claims it for another try. Raises ``IdempotencyConflict``, ``StoreUnavailable``.
        """
        now_ms = int(self._clock() * 1000)
        mine = IdempotencyRecord(key_id, name, digest, request_id, now_ms, self._owner)
        self._running.add(request_id)
        begun = False
        try:
            known = await self._store.begin_replay(mine, int(self._expiry() * 1000) - KEEP_MS)
            begun = known is None
        finally:
            if not begun:
                self._running.discard(request_id)
        if known is None:
            return mine, None
        if known.digest != digest:
            raise IdempotencyConflict(
                "This Idempotency-Key was used for another request: another body needs another key",
                param="Idempotency-Key",
                should_retry=False,
            )
        if known.state == "running" and (known.owner != self._owner or known.request_id in self._running):
            raise _make_running()
        if known.state == "answered" and not known.status:
            raise IdempotencyConflict(
                "The request of this Idempotency-Key was answered, and its answer was too large to be kept",
                param="Idempotency-Key",
                should_retry=False,
            )
        return mine, known

    async def claim_lost(self, mine: IdempotencyRecord, lost: IdempotencyRecord) -> None:
        """Claim a lost request to process it again. Raises ``IdempotencyConflict`` if it is already claimed."""
        self._running.add(mine.request_id)
        taken = False
        try:
            taken = await self._store.take_replay(lost, mine)
        finally:
            if not taken:
                self._running.discard(mine.request_id)
        if not taken:
            raise _make_running()

    async def record_answer(self, mine: IdempotencyRecord, *, status: int, media_type: str, body: bytes) -> None:
        """Record the answer. Never raises: the client gets its answer even if recording fails."""
        kept = len(body) <= MAX_ANSWER_BYTES
        answered = attrs.evolve(
            mine, state="answered", status=status if kept else 0, media_type=media_type, body=body if kept else b""
        )
        await self._store_record(self._store.end_replay, answered)

    async def mark_lost(self, mine: IdempotencyRecord) -> None:
        """Mark the request as lost: its outcome is unknown, or recorded elsewhere."""
        await self._store_record(self._store.end_replay, attrs.evolve(mine, state="lost"))

    async def delete(self, mine: IdempotencyRecord) -> None:
        """Delete the record: the request failed and may be sent again."""
        await self._store_record(self._store.forget_replay, mine)

    async def _store_record(
        self, verb: Callable[[IdempotencyRecord], Awaitable[None]], replay: IdempotencyRecord
    ) -> None:
        try:
            await verb(replay)
        except StoreUnavailable as fault:
            log.warning("idempotency_record_not_stored", request_id=replay.request_id, error=fault.message)
        finally:
            self._running.discard(replay.request_id)


def _make_running() -> IdempotencyConflict:
    return IdempotencyConflict(
        "A request with this Idempotency-Key is being answered right now", param="Idempotency-Key", retry_after_s=1
    )
