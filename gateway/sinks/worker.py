"""Delivers the rows of requests to one sink, at least once, page by page in the order in which they were stored."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from gateway.domain.sink import SinkState
from gateway.errors import InvalidRequest, StoreUnavailable
from gateway.sinks.batch import BatchRefused, DeliveryFailed, Send, SinkAnswer, SinkBatch, SinkEntry
from gateway.sinks.source import SinkPage, SinkSource
from gateway.storage.sinks import Progress, SinkRepository

POLL_S = 2.0
"""How often a sink looks for new rows."""
BUCKET_POLL_S = 60.0
"""How often a sink with a bucket looks for new rows: each delivery may add an object."""
MAX_BACKOFF_S = 300.0
STORE_RETRY_S = 5.0
SAVE_INTERVAL_S = 60.0
"""How often the cursor is stored if it has only passed rows that do not match."""
MAX_SPLIT_ATTEMPTS = 40
"""Maximum number of attempts for one batch, to find the requests that the receiver refuses."""
OLDEST_CURSOR = "0"
_MAX_DOUBLINGS = 10
_FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of code that reads a row or a body of an unexpected form. ``RuntimeError`` includes too deep nesting."""

log = structlog.stdlib.get_logger(__name__)


class SinkWorker:
    """Delivers to one sink. In a cluster one process runs the worker, and for a moment two may do so.

    A request may then be delivered twice, with the same id. A process advances the cursor in the database only from
    where it has read it, so neither process moves it back.

    Args:
        poll_s: how often to look for new rows, in seconds.
        pause: waits the given seconds.

    Attributes:
        source: reads the rows and their bodies.
        state: the state as this process read it last; None while it does not run.
    """

    def __init__(
        self,
        name: str,
        source: SinkSource,
        send: Send,
        states: SinkRepository,
        *,
        poll_s: float,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.send = send
        self.state: SinkState | None = None
        self.source = source
        self._states = states
        self._poll_s = poll_s
        self._clock = clock
        self._pause = pause
        self._page: SinkPage | None = None
        self._waiting_ms: int | None = None
        self._passed_cursor = ("", "")
        self._saved_s = 0.0
        self._failures = 0

    async def run(self) -> None:
        """Deliver what is stored, forever."""
        try:
            while True:
                await self._pause(await self.step())
        finally:
            self.state = None

    async def step(self) -> float:
        """Deliver at most one page; return the seconds until the next step."""
        try:
            has_more = await self._deliver_page()
        except DeliveryFailed as error:
            return await self._note_failure(error)
        except StoreUnavailable:  # which has an alert of its own
            return STORE_RETRY_S
        except _FAULTS as error:  # the sink must say that it does not get on
            return await self._note_failure(_describe_fault(error))
        self._failures = 0
        return 0.0 if has_more else self._poll_s

    async def _deliver_page(self) -> bool:
        """Deliver a page; return whether there are more rows. Raises ``DeliveryFailed``."""
        state = self.state = await self._find_state()
        page = self._page
        if page is None or page.cursor != state.cursor:
            page = self._page = await self._read_page(state)
            self._waiting_ms = page.first_ms
        while page.pending_ids or page.take_up_unsure():
            entries = await self.source.load_batch(page)
            if entries:
                await self._deliver_batch(page, entries)
                page.batches += 1
        self._page = None
        if page.unsure_ids:
            raise page.refusal
        await self._save(state, page)
        return page.has_more

    async def _find_state(self) -> SinkState:
        """Return the stored state. A new sink begins after the newest row."""
        states = await self._states.list_states([self.name])
        return states[0] if states else await self._states.begin(self.name, await self.source.find_newest())

    async def _read_page(self, state: SinkState) -> SinkPage:
        """Return the next page after the stored cursor. Rows that are known to need no delivery are passed over.

        If the cursor is none of this database, begins again at the oldest row and raises ``StoreUnavailable``.
        """
        stored_cursor, passed_cursor = self._passed_cursor
        cursor = passed_cursor if stored_cursor == state.cursor else state.cursor
        try:
            page = await self.source.read_page(cursor)
        except InvalidRequest:  # the rows were copied from a database of another kind
            log.warning("sink_begins_again", job=self.name, reason="its cursor is none of this database")
            await self._states.restart(self.name, OLDEST_CURSOR)
            raise StoreUnavailable("The cursor of the sink was replaced", retry_after_s=1) from None
        page.cursor = state.cursor
        return page

    async def _save(self, state: SinkState, page: SinkPage) -> None:
        """Store the cursor after ``page``. If nothing was delivered, do so at most once per ``SAVE_INTERVAL_S``."""
        now_s = self._clock()
        waiting_ms = page.last_ms if page.has_more else None
        is_quiet = not (page.delivered or page.refused or state.error or state.waiting_ms or waiting_ms)
        if is_quiet and (page.next_cursor == state.cursor or abs(now_s - self._saved_s) < SAVE_INTERVAL_S):
            self._passed_cursor = (state.cursor, page.next_cursor)
            return
        self._saved_s = now_s
        progress = Progress(page.next_cursor, page.delivered, page.refused, waiting_ms)
        await self._states.advance(state, progress, int(now_s * 1000))

    async def _deliver_batch(self, page: SinkPage, entries: Sequence[SinkEntry]) -> None:
        """Deliver ``entries``. If the receiver refuses them, try ever smaller parts, and one alone without bodies.

        Every part is read again before its attempt. A refused request is given up only if the receiver takes another
        one of the page: otherwise it may refuse everything. Raises ``DeliveryFailed``.
        """
        parts = deque([[entry.row.id for entry in entries]])
        for attempt in range(MAX_SPLIT_ATTEMPTS):
            if not parts:
                return
            request_ids = parts.popleft()
            part = await self.source.load(page, request_ids) if attempt else entries
            if not part:
                continue
            try:
                answer = await self._send_batch(SinkBatch(page.cursor, page.batches, part))
            except BatchRefused as error:
                page.refusal = error
                middle = len(request_ids) // 2
                if middle:
                    parts.extendleft((request_ids[middle:], request_ids[:middle]))
                elif part[0].bodies:
                    page.bare_ids.update(request_ids)
                    parts.appendleft(request_ids)
                else:
                    self._put_aside(page, request_ids)
                continue
            page.delivered += len(part) - answer.refused
            self._note_refused(page, answer.refused, answer.text)
            page.drop([entry.row.id for entry in part])
        if parts:
            raise page.refusal

    async def _send_batch(self, batch: SinkBatch) -> SinkAnswer:
        """Make one attempt. Raises ``BatchRefused`` also for a batch that cannot be encoded: one request may be why."""
        try:
            return await self.send(batch)
        except _FAULTS as error:
            fault = _describe_fault(error)
            raise BatchRefused(str(fault)) from error

    def _put_aside(self, page: SinkPage, request_ids: Sequence[str]) -> None:
        page.drop(request_ids)
        if page.delivered:
            self._note_refused(page, len(request_ids), str(page.refusal))
        else:
            page.unsure_ids += request_ids

    def _note_refused(self, page: SinkPage, refused: int, reason: str) -> None:
        if refused:
            page.refused += refused
            log.warning("sink_refused_rows", job=self.name, rows=refused, error=reason)

    async def _note_failure(self, error: DeliveryFailed) -> float:
        """Note a failed attempt; return the seconds until the next one."""
        if not self._failures:
            log.warning("sink_not_delivered", job=self.name, error=str(error))
        self._failures += 1
        with suppress(StoreUnavailable):
            await self._states.note_failure(self.name, str(error), self._waiting_ms)
        backoff_s = 2.0 ** min(self._failures, _MAX_DOUBLINGS)
        return min(max(backoff_s, error.retry_after_s), MAX_BACKOFF_S)


def _describe_fault(error: Exception) -> DeliveryFailed:
    """Log an error of the gateway itself; return a failure without its text, which may have parts of bodies."""
    log.warning("sink_failed", exc_info=error)
    return DeliveryFailed(f"the gateway failed: {type(error).__name__}")
