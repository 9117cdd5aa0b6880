"""Tells callers' servers what has become of their videos: as soon as it is due, and no one at another's cost."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import attrs
import structlog

from gateway.domain.webhook import WebhookDelivery
from gateway.errors import StoreUnavailable
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.videos.webhook_sender import WebhookSender

MOST = 40
"""Deliveries in hand. Most of them wait for an answer, which costs a socket."""
EACH = 8
"""Of one account."""
AT_ONE_HOST = 3
"""Of one account at one host."""
LEASE_MS = 30_000
"""Longer than a delivery is in hand: it waits for a place at its host, and then for an answer."""
PLACE_S = 1.0
"""How long a place at a host is waited for, before the delivery makes room for others'."""
PAUSE_S = 0.05
"""Before every look: what ends together makes room together."""
REST_S = 1.0
"""Between two looks while there is something in hand, or somebody else has what is due."""
LONGEST_REST_S = 30.0
RETRY_AFTER_S = 1.0

log = structlog.stdlib.get_logger(__name__)


class WebhookWorker:
    """The job. Whoever is told twice can tell by the delivery's id: after a crash it happens.

    A receiver that does not answer is waited for. So an account has a few places and no more, which the store sees to
    as it hands deliveries out; and one host has fewer still of these. What else an account has due at that host is put
    off to when it would be its turn, by the time that host's deliveries take, and what is due elsewhere comes first.
    Accounts share no host's places: a receiver may be silent to one of them only.

    Args:
        store: where deliveries live.
        teller: makes the attempts.
        owner: this process, as leases name it.
        clock: Unix seconds.
        pace: what waits are multiplied by.

    Attributes:
        idle: there is nothing in the store at the start, which is not asked until somebody wakes the job.
    """

    def __init__(
        self,
        store: WebhookDeliveryRepository,
        webhook_sender: WebhookSender,
        owner: str,
        clock: Callable[[], float],
        pace: float = 1.0,
    ) -> None:
        self._store = store
        self._webhook_sender = webhook_sender
        self._owner = owner
        self._clock = clock
        self._pace = pace
        self._woken = asyncio.Event()
        self._hosts: dict[tuple[int, str], _Host] = {}
        self._hand: set[str] = set()
        self._failing = False
        self.idle = False

    def wake(self) -> None:
        """A job has ended, and there may be something to tell."""
        self._woken.set()

    async def run(self) -> None:
        """Tell what is due, for ever. What is under way when it is cancelled is told again once its lease is over."""
        async with asyncio.TaskGroup() as group:
            if self.idle:
                await self._rest(LONGEST_REST_S)
            while True:
                self._woken.clear()
                self._forget_hosts()
                provider_retry_after_s = await self._look(group)
                await self._rest(provider_retry_after_s)
                await asyncio.sleep(PAUSE_S * self._pace)

    async def _rest(self, provider_retry_after_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(provider_retry_after_s * self._pace):
                await self._woken.wait()

    async def _look(self, group: asyncio.TaskGroup) -> float:
        """Take on what is due, as far as there is room; seconds until the next look, where nobody wakes it before."""
        try:
            if room := MOST - len(self._hand):
                self._take_on(group, await self._claim(room))
            due_ms = await self._store.find_next_delivery()  # what is in hand is still due
        except StoreUnavailable as fault:
            if not self._failing:
                log.error("deliveries_not_claimed", error=fault.message)  # noqa: TRY400 - the store has said why
            self._failing = True
            return RETRY_AFTER_S
        self._failing = False
        due_s = LONGEST_REST_S if due_ms is None else (due_ms - self._now_ms()) / 1000
        return min(max(due_s, REST_S), LONGEST_REST_S)

    async def _claim(self, most: int) -> Sequence[WebhookDelivery]:
        now_ms = self._now_ms()
        return await self._store.claim_deliveries(self._owner, now_ms, lease_ms=LEASE_MS, most=most, each=EACH)

    def _take_on(self, group: asyncio.TaskGroup, claimed: Sequence[WebhookDelivery]) -> None:
        for delivery in claimed:
            if delivery.id not in self._hand:  # its lease is over, for the store would not take its outcome
                self._hand.add(delivery.id)
                group.create_task(self._attend(delivery)).add_done_callback(partial(self._let_go, delivery.id))

    def _let_go(self, delivery_id: str, _task: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step runs no ``finally``.
        self._hand.discard(delivery_id)
        self.wake()  # there is room, and there may be more

    async def _attend(self, delivery: WebhookDelivery) -> None:
        """Make one attempt, or put it off; then it is the store's again."""
        host = self._hosts.setdefault((delivery.account_id, _find_host(delivery.url)), _Host())
        host.guests += 1
        try:
            if await host.enter(PLACE_S * self._pace):
                delivery = await self._tell(delivery, host)
            else:
                delivery = host.put_off(delivery, self._now_ms())
            await self._note(delivery)
        finally:
            host.guests -= 1

    async def _tell(self, delivery: WebhookDelivery, host: "_Host") -> WebhookDelivery:
        try:
            began_ms = self._now_ms()
            told = await self._webhook_sender.tell(delivery)
            host.took_ms = self._now_ms() - began_ms
            return told
        finally:
            host.leave()

    async def _note(self, delivery: WebhookDelivery) -> None:
        """Store how it ended, however long the store takes to be well again: it is not told twice for that."""
        failing = False
        while True:
            try:
                await self._store.note_delivery(delivery)
                break
            except StoreUnavailable as fault:
                if not failing:
                    log.error("delivery_not_stored", delivery_id=delivery.id, error=fault.message)  # noqa: TRY400 - same
                failing = True
            await asyncio.sleep(RETRY_AFTER_S * self._pace)
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
        for name in [name for name, host in self._hosts.items() if not host.guests and host.turn_ms <= now_ms]:
            del self._hosts[name]

    def _now_ms(self) -> int:
        return round(self._clock() * 1000)


class _Host:
    """One host that one account tells something, for as long as something for it is in hand, or put off.

    Attributes:
        guests: deliveries in hand.
        took_ms: how long the last attempt took that has ended.
        turn_ms: when the turn will be of those that were put off (Unix ms).
    """

    def __init__(self) -> None:
        self.guests = 0
        self.took_ms = 0
        self.turn_ms = 0
        self._places = asyncio.Semaphore(AT_ONE_HOST)
        self._stuck = False

    async def enter(self, timeout_s: float) -> bool:
        """Take a place; False where none is free in time, or somebody has waited for one in vain just before."""
        if self._stuck:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError:
            self._stuck = True
            return False
        return True

    def leave(self) -> None:
        """Give a place back."""
        self._stuck = False
        self._places.release()

    def put_off(self, delivery: WebhookDelivery, now_ms: int) -> WebhookDelivery:
        """The delivery without an attempt, due at a time of its own: when those before it will have had theirs."""
        took_ms = max(self.took_ms, round(PLACE_S * 1000))
        self.turn_ms = max(self.turn_ms, now_ms) + took_ms // AT_ONE_HOST
        return attrs.evolve(delivery, owner="", lease_until_ms=0, due_ms=self.turn_ms + took_ms)


def _find_host(url: str) -> str:
    """Whose places an attempt takes: the host, or the whole text where nothing can be read out of it."""
    try:
        return urlsplit(url).hostname or url
    except ValueError:
        return url
