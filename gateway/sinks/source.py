"""Reads what a sink delivers: pages of the request log after a cursor, and the bodies that are kept."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from fnmatch import fnmatchcase

import attrs

from gateway.config.sink_schema import SinkFilter
from gateway.domain.kept_body import BodyPart
from gateway.domain.request_log import RequestFilter, RequestRecord, has_failed
from gateway.frozen import frozen
from gateway.sinks.batch import DeliveryFailed, SinkEntry
from gateway.storage.request_log import RequestLogRepository

PAGE_ROWS = 200
MAX_BATCH_BYTES = 2 * 1024 * 1024
"""Maximum size of a batch's bodies. Receivers of OTLP commonly take 4 MiB; texts of streams are sent twice."""
PARALLEL_READS = 8
RUNNING_POLL_S = 0.5
MAX_RUNNING_POLLS = 240
"""How many times a page waits for running requests: a client may take two minutes to read its answer."""
SETTLED_FOR_S = 30.0
"""Minimum age of rows that a cluster delivers with bodies: until then, nodes may still be moving the bodies."""


@attrs.define(eq=False)
class SinkPage:
    """A page of the request log after ``cursor``.

    Attributes:
        next_cursor: the cursor after the page.
        pending_ids: the matching requests that are not dealt with yet.
        first_ms: when the page's first matching row was settled, in Unix milliseconds; None without one.
        last_ms: when the page's last row was settled, whether the row matches or not; None without rows.
        has_more: whether there are rows after the page.
        batches: the number of batches that are dealt with.
        bare_ids: requests whose bodies the receiver refused: they are delivered without bodies.
        unsure_ids: requests that were refused before the receiver took any of the page.
        refusal: the last refusal.
    """

    cursor: str
    next_cursor: str
    pending_ids: list[str]
    first_ms: int | None
    last_ms: int | None
    has_more: bool
    batches: int = 0
    delivered: int = 0
    refused: int = 0
    bare_ids: set[str] = attrs.Factory(set)
    unsure_ids: list[str] = attrs.Factory(list)
    refusal: DeliveryFailed = attrs.Factory(lambda: DeliveryFailed(""))

    def drop(self, request_ids: Collection[str]) -> None:
        """Note that requests are dealt with."""
        done_ids = set(request_ids)
        self.pending_ids = [request_id for request_id in self.pending_ids if request_id not in done_ids]

    def take_up_unsure(self) -> bool:
        """Make ``unsure_ids`` pending again if the receiver has taken a request since; return whether any became so."""
        if not self.delivered or not self.unsure_ids:
            return False
        self.pending_ids, self.unsure_ids = self.unsure_ids, []
        self.bare_ids.clear()
        return True


class KeptBodies:
    """The kept bodies of requests, for sinks with ``fields = "full"``.

    Args:
        read: returns the kept bodies of a request; empty if there are none or they cannot be read. Raises
            ``DeliveryFailed`` if they cannot be read yet.
        is_running: returns whether the bodies of a request are still being collected on this node.
        settled_for_s: for how long rows must have been settled; 0 if no other node keeps bodies.
    """

    def __init__(
        self,
        read: Callable[[str], Awaitable[Sequence[BodyPart]]],
        is_running: Callable[[str], bool],
        clock: Callable[[], float],
        settled_for_s: float = 0.0,
    ) -> None:
        self.read = read
        self._is_running = is_running
        self._clock = clock
        self._settled_for_s = settled_for_s

    async def await_requests(self, page: "SinkPage", pause: Callable[[float], Awaitable[None]]) -> None:
        """Wait until the bodies of the pending requests are complete, for ``MAX_RUNNING_POLLS`` polls at most.

        The client of a settled request may still be reading its answer, and nodes of a cluster may be moving bodies.
        """
        for _ in range(MAX_RUNNING_POLLS):
            age_s = self._clock() - (page.last_ms or 0) / 1000
            is_settled = age_s >= self._settled_for_s or age_s < -self._settled_for_s  # the clock went back
            if is_settled and not any(map(self._is_running, page.pending_ids)):
                return
            await pause(RUNNING_POLL_S)


def matches(sink_filter: SinkFilter, row: RequestRecord) -> bool:
    """Return whether a sink with this filter delivers ``row``."""
    return (
        (not sink_filter.accounts or row.account in sink_filter.accounts)
        and (not sink_filter.models or any(fnmatchcase(row.model, glob) for glob in sink_filter.models))
        and (not sink_filter.routes or row.route in sink_filter.routes)
        and (not sink_filter.tags or not set(sink_filter.tags).isdisjoint(row.tags.split(",")))
        and (not sink_filter.only_errors or has_failed(row))
    )


@frozen(eq=False)
class SinkSource:
    """Reads the rows and bodies for a sink.

    Attributes:
        matches: returns whether the sink delivers a row.
        bodies: None if the sink delivers no bodies.
        pause: waits the given seconds.
    """

    log: RequestLogRepository
    matches: Callable[[RequestRecord], bool]
    bodies: KeptBodies | None = None
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def find_newest(self) -> str:
        """Return the cursor after every row that is stored now."""
        return (await self.log.list_requests(RequestFilter(), 1)).newest

    async def read_page(self, cursor: str) -> SinkPage:
        """Return the next page. Raises ``InvalidRequest`` if ``cursor`` is none of this database."""
        page = await self.log.list_requests(RequestFilter(after=cursor), PAGE_ROWS)
        rows = {stored.row.id: stored.row for stored in page if self.matches(stored.row)}
        times_ms = [row.settled_ms for row in rows.values()]
        last_ms = page.rows[-1].row.settled_ms if page.rows else None
        first_ms = min(times_ms, default=None)
        return SinkPage(cursor, page.next or cursor, [*rows], first_ms, last_ms, page.more)

    async def load_batch(self, page: SinkPage) -> list[SinkEntry]:
        """Return the first pending requests, as many as ``MAX_BATCH_BYTES`` of bodies allow; none if they were deleted.

        Raises ``DeliveryFailed`` if bodies cannot be read yet.
        """
        if self.bodies is not None:
            await self.bodies.await_requests(page, self.pause)
        return await self.load(page, page.pending_ids)

    async def load(self, page: SinkPage, request_ids: Sequence[str]) -> list[SinkEntry]:
        """Return the first of ``request_ids`` as they are stored now, as many as ``MAX_BATCH_BYTES`` of bodies allow.

        Requests that were deleted meanwhile are dropped from ``page``: the result is empty if all were. Raises
        ``DeliveryFailed`` if bodies cannot be read yet.
        """
        bodies_by_id = await self._read_bodies(request_ids, page.bare_ids)
        rows = {stored.row.id: stored.row for stored in await self.log.list_by_ids([*bodies_by_id])}
        page.drop(bodies_by_id.keys() - rows.keys())
        return [
            SinkEntry(rows[request_id], bodies) for request_id, bodies in bodies_by_id.items() if request_id in rows
        ]

    async def _read_bodies(
        self, request_ids: Sequence[str], bare_ids: Collection[str]
    ) -> dict[str, Sequence[BodyPart]]:
        """Return the bodies of the first requests: of as many as ``MAX_BATCH_BYTES`` allow, but at least of one."""
        bodies_by_id: dict[str, Sequence[BodyPart]] = {}
        size = 0
        for start in range(0, len(request_ids), PARALLEL_READS):
            chunk = request_ids[start : start + PARALLEL_READS]
            chunk_bodies = await asyncio.gather(*(self._read(request_id, bare_ids) for request_id in chunk))
            for request_id, bodies in zip(chunk, chunk_bodies, strict=True):
                size += sum(len(body.content) for body in bodies)
                if bodies_by_id and size > MAX_BATCH_BYTES:
                    return bodies_by_id
                bodies_by_id[request_id] = bodies
        return bodies_by_id

    async def _read(self, request_id: str, bare_ids: Collection[str]) -> Sequence[BodyPart]:
        if self.bodies is None or request_id in bare_ids:
            return ()
        return await self.bodies.read(request_id)
