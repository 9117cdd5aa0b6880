"""Delivers webhooks when they are due, without letting one slow receiver delay others."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import attrs
import structlog

from gateway.domain.webhook import WebhookDelivery
from gateway.errors import StoreUnavailable
from gateway.events import Events
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.videos.events import JobEnded, ShareChanged
from gateway.videos.webhook_sender import WebhookSender

MAX_DELIVERIES = 40
"""Concurrent deliveries. Most of them wait for an answer, which costs only a socket."""
MAX_PER_ACCOUNT = 8
"""Concurrent deliveries per account."""
MAX_PER_HOST = 3
"""Concurrent deliveries of one account to one host."""
CLAIM_MS = 30_000
"""Longer than any delivery, which waits for a place at its host and then for an answer."""
SLOT_WAIT_S = 1.0
"""How long a delivery waits for a place at its host before it is postponed, in seconds."""
PAUSE_S = 0.05
"""The pause before every turn. Deliveries that end close together are then handled in one turn."""
REST_S = 1.0
"""The pause between two turns while deliveries run, or while another process holds the due deliveries."""
MAX_REST_S = 30.0
RETRY_AFTER_S = 1.0

log = structlog.stdlib.get_logger(__name__)


class WebhookWorker:
    """The delivery worker. After a crash a receiver may get an event twice, with the same delivery id.

    An unresponsive receiver occupies its slots until the timeout. An account therefore has few slots, which the store
    enforces when deliveries are claimed, and each of its hosts has even fewer. Further deliveries to a full host are
    postponed by the duration of its deliveries, and deliveries to other hosts go first. Accounts do not share a host's
    slots, because a receiver may be unresponsive to one account only.

    Args:
        events: wakes the worker when a job ends, or when the accounts of this node change.
        owner: name of this process in claims.
        wait_scale: factor for every wait.
        owns: returns whether this node delivers an account's webhooks; None for a single process.
        idle: whether no delivery is pending at the start; the worker then does not read the store before an event or
            ``MAX_REST_S``.
    """

    def __init__(
        self,
        store: WebhookDeliveryRepository,
        webhook_sender: WebhookSender,
        events: Events,
        *,
        owner: str,
        clock: Callable[[], float],
        wait_scale: float = 1.0,
        owns: Callable[[int], bool] | None = None,
        idle: bool = False,
    ) -> None:
        self._owns = owns
        self._share: frozenset[int] | None = None
        self._store = store
        self._webhook_sender = webhook_sender
        self._process = owner
        self._clock = clock
        self._wait_scale = wait_scale
        self._wake_event = asyncio.Event()
        self._hosts: dict[tuple[int, str], _Host] = {}
        self._active_ids: set[str] = set()
        self._is_failing = False
        self._idle = idle
        for kind in (JobEnded, ShareChanged):
            events.subscribe(kind, lambda _: self._wake_event.set())

    async def run(self) -> None:
        """Deliver due webhooks, forever. Deliveries running at cancellation are repeated after their claims expire."""
        async with asyncio.TaskGroup() as group:
            if self._idle:
                await self._wait(MAX_REST_S)
            while True:
                self._wake_event.clear()
                self._forget_hosts()
                await self._wait(await self._start_due_deliveries(group))
                await asyncio.sleep(PAUSE_S * self._wait_scale)

    async def _wait(self, rest_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rest_s * self._wait_scale):
                await self._wake_event.wait()

    async def _start_due_deliveries(self, group: asyncio.TaskGroup) -> float:
        """Start due deliveries as far as slots are free. Returns the seconds until the next turn."""
        try:
            self._share = await self._find_share()
            if free_slots := MAX_DELIVERIES - len(self._active_ids):
                self._start(group, await self._claim(free_slots))
            due_ms = await self._store.find_next_delivery(self._share)  # includes running deliveries
        except StoreUnavailable as error:
            if not self._is_failing:
                log.error("deliveries_not_claimed", error=error.message)  # noqa: TRY400 - the store logged it
            self._is_failing = True
            return RETRY_AFTER_S
        self._is_failing = False
        due_s = MAX_REST_S if due_ms is None else (due_ms - self._now_ms()) / 1000
        return min(max(due_s, REST_S), MAX_REST_S)

    async def _claim(self, limit: int) -> Sequence[WebhookDelivery]:
        now_ms = self._now_ms()
        return await self._store.claim_deliveries(
            self._process,
            now_ms,
            claim_ms=CLAIM_MS,
            max_rows=limit,
            max_per_account=MAX_PER_ACCOUNT,
            accounts=self._share,
        )

    async def _find_share(self) -> frozenset[int] | None:
        """Return the accounts whose webhooks this node delivers, or None for all accounts.

        An account that has moved to this node waits until the previous node has finished its deliveries, because each
        node counts only its own slots at a host.
        """
        if self._owns is None:
            return None
        due_accounts = await self._store.list_due_accounts(self._process, self._now_ms())
        return frozenset(account_id for account_id, busy in due_accounts if not busy and self._owns(account_id))

    def _start(self, group: asyncio.TaskGroup, deliveries: Sequence[WebhookDelivery]) -> None:
        for delivery in deliveries:
            if delivery.id not in self._active_ids:  # else its claim expired before the store accepted its outcome
                self._active_ids.add(delivery.id)
                group.create_task(self._deliver(delivery)).add_done_callback(partial(self._end_delivery, delivery.id))

    def _end_delivery(self, delivery_id: str, _task: asyncio.Task[None]) -> None:
        # A callback, because a task cancelled before its first step runs no ``finally``.
        self._active_ids.discard(delivery_id)
        self._wake_event.set()  # there is room for another delivery

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        """Make one attempt or postpone it, then store the delivery."""
        host = self._hosts.setdefault((delivery.account_id, _find_host(delivery.url)), _Host())
        host.delivery_count += 1
        try:
            if await host.enter(SLOT_WAIT_S * self._wait_scale):
                delivery = await self._send(delivery, host)
            else:
                delivery = host.postpone(delivery, self._now_ms())
            await self._store_outcome(delivery)
        finally:
            host.delivery_count -= 1

    async def _send(self, delivery: WebhookDelivery, host: "_Host") -> WebhookDelivery:
        try:
            started_ms = self._now_ms()
            result = await self._webhook_sender.send(delivery)
            host.last_duration_ms = self._now_ms() - started_ms
            return result
        finally:
            host.leave()

    async def _store_outcome(self, delivery: WebhookDelivery) -> None:
        """Store the outcome, retrying without a time limit: otherwise the event would be delivered twice."""
        is_failing = False
        while True:
            try:
                await self._store.note_delivery(delivery)
                break
            except StoreUnavailable as error:
                if not is_failing:
                    log.error("delivery_not_stored", delivery_id=delivery.id, error=error.message)  # noqa: TRY400 - same
                is_failing = True
            await asyncio.sleep(RETRY_AFTER_S * self._wait_scale)
        if delivery.status == "failed":
            log.warning(
                "delivery_failed",
                delivery_id=delivery.id,
                attempts=delivery.attempts,
                status=delivery.answer,
                error=delivery.error,
            )

    def _forget_hosts(self) -> None:
        now_ms = self._now_ms()
        for key in [
            key for key, host in self._hosts.items() if not host.delivery_count and host.next_turn_ms <= now_ms
        ]:
            del self._hosts[key]

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


class _Host:
    """One host of one account, while it has running or postponed deliveries.

    Attributes:
        last_duration_ms: duration of the last finished attempt.
        next_turn_ms: time by which all postponed deliveries have had their turn (Unix ms).
    """

    def __init__(self) -> None:
        self.delivery_count = 0
        self.last_duration_ms = 0
        self.next_turn_ms = 0
        self._slots = asyncio.Semaphore(MAX_PER_HOST)
        self._is_stuck = False

    async def enter(self, timeout_s: float) -> bool:
        """Take a slot. Return False if none becomes free in time, or if a delivery has just waited without success."""
        if self._is_stuck:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            self._is_stuck = True
            return False
        return True

    def leave(self) -> None:
        self._is_stuck = False
        self._slots.release()

    def postpone(self, delivery: WebhookDelivery, now_ms: int) -> WebhookDelivery:
        """Return the delivery without an attempt, due after the earlier postponed deliveries."""
        duration_ms = max(self.last_duration_ms, round(SLOT_WAIT_S * 1000))
        self.next_turn_ms = max(self.next_turn_ms, now_ms) + duration_ms // MAX_PER_HOST
        return attrs.evolve(delivery, owner="", lease_until_ms=0, due_ms=self.next_turn_ms + duration_ms)


def _find_host(url: str) -> str:
    """Return the key of the slots that an attempt uses: the URL's host, or the whole URL if it has none."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url
