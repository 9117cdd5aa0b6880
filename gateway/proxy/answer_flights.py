"""Answers that equal requests share: cached ones, and those of requests that are under way.

Of equal requests at one moment, one asks the provider, and the others wait for its answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

import orjson

from gateway.domain.cache_rules import CacheResult
from gateway.domain.cached_answer import CachedAnswer
from gateway.storage.answer_cache import AnswerCache

MAX_WAIT_S = 60.0
"""How long a request waits for the answer to an equal one before it asks a provider itself."""

_MAX_KNOWN_DELETIONS = 1_000


class Flight:
    """A request that asks a provider, and the equal ones that wait for its answer.

    Attributes:
        waiting: the number of requests that wait.
    """

    __slots__ = ("_answer", "_digest", "_flights", "waiting")

    def __init__(self, flights: dict[str, "Flight"], digest: str) -> None:
        self._flights = flights
        self._digest = digest
        self._answer: asyncio.Future[CachedAnswer | None] = asyncio.get_running_loop().create_future()
        self.waiting = 0

    async def wait(self) -> CachedAnswer | None:
        """Return the answer; None if no answer may be shared, or none comes within ``MAX_WAIT_S``."""
        self.waiting += 1
        try:
            await asyncio.wait({self._answer}, timeout=MAX_WAIT_S)
        finally:
            self.waiting -= 1
        return self._answer.result() if self._answer.done() else None

    def end(self, answer: CachedAnswer | None) -> None:
        """Give the waiting requests the answer; None: each asks a provider itself. Later calls change nothing."""
        if self._flights.get(self._digest) is self:
            del self._flights[self._digest]
        if not self._answer.done():
            self._answer.set_result(answer)


class AnswerFlights:
    """The flights of this node, by the digest of their requests."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}

    def find(self, digest: str) -> Flight | None:
        return self._flights.get(digest)

    def start(self, digest: str) -> Flight:
        """Start the flight of a digest, which must have none yet."""
        flight = self._flights[digest] = Flight(self._flights, digest)
        return flight


class CachedAnswers:
    """The cache of answers of this node.

    ``publish`` notifies the other nodes of a cluster of a deletion; None for a single gateway.

    Attributes:
        counts: the number of requests by where their answer came from, since the start.
        recorded_bytes: the size of the answers that are being recorded.
    """

    def __init__(self, store: AnswerCache, publish: Callable[[str], None] | None) -> None:
        self.store = store
        self.flights = AnswerFlights()
        self.counts: dict[CacheResult, int] = {"hit": 0, "joined": 0, "miss": 0}
        self.recorded_bytes = 0
        self._publish = publish
        self._deletions: set[asyncio.Task[int]] = set()
        self._known_deletions: deque[tuple[float, int | None, Collection[str]]] = deque()
        self._oldest_known_at = 0.0

    def was_forgotten(self, account_id: int, end_user: str, started_at: float) -> bool:
        """Return whether the answers of a user were deleted since ``started_at``, in seconds of the event loop.

        Also true for a request that is older than the known deletions.
        """
        return bool(end_user) and (
            started_at <= self._oldest_known_at
            or any(
                started_at <= deleted_at and account in {None, account_id} and end_user in users
                for deleted_at, account, users in self._known_deletions
            )
        )

    async def delete(
        self, *, account_id: int | None = None, end_users: Collection[str] | None = None, before_ms: int | None = None
    ) -> int:
        """Delete answers as ``AnswerCache.delete`` does, return how many, and have the other nodes delete theirs."""
        if self._publish is not None:
            users = None if end_users is None else sorted(end_users)
            # Nodes of a version before know no third value.
            before = [] if before_ms is None else [before_ms]
            self._publish(orjson.dumps([account_id, users, *before]).hex())
        self._note_deletion(account_id, end_users)
        return await self.store.delete(account_id=account_id, end_users=end_users, before_ms=before_ms)

    def delete_here(self, name: str) -> None:
        """Delete the answers that another node's notification ``name`` describes, in the background."""
        account_id, end_users, *before = orjson.loads(bytes.fromhex(name))
        self._note_deletion(account_id, end_users)
        before_ms = before[0] if before else None
        deleting = self.store.delete(account_id=account_id, end_users=end_users, before_ms=before_ms)
        task = asyncio.ensure_future(deleting)
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    def _note_deletion(self, account_id: int | None, end_users: Collection[str] | None) -> None:
        if end_users is not None:
            self._known_deletions.append((asyncio.get_running_loop().time(), account_id, end_users))
            if len(self._known_deletions) > _MAX_KNOWN_DELETIONS:
                self._oldest_known_at = self._known_deletions.popleft()[0]

    async def close(self) -> None:
        await self.store.close()
