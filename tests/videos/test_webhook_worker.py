"""Webhooks are told when they are due, again until they are taken or a day is over, and none at another's cost."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs
from typing_extensions import override

from gateway.domain.webhook import GIVE_UP_AFTER_S, RETRY_AFTER_S, WebhookDelivery
from gateway.errors import EgressRefused, ProviderTimeout, StoreUnavailable
from gateway.events import Events
from gateway.storage.schema import deliveries
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.upstream.safe_fetch import SafeFetcher
from gateway.videos.events import JobEnded
from gateway.videos.webhook_sender import TIMEOUT_S, WebhookSender
from gateway.videos.webhook_worker import (
    CLAIM_MS,
    MAX_DELIVERIES,
    MAX_PER_ACCOUNT,
    MAX_PER_HOST,
    MAX_REST_S,
    REST_S,
    WebhookWorker,
)
from tests.support.repositories import LazyDatabase, close_databases
from tests.support.table_rows import table_rows
from tests.support.video_records import add_delivery
from tests.support.worker_loop import run_hurried

EPOCH_S = 1_800_000_000.0
TICK_S = 0.002
"""Records are kept in milliseconds."""
LATE_S = REST_S + 0.5
Reaction = Callable[[], Awaitable[int]]


async def take() -> int:
    """As a receiver that is well answers."""
    await asyncio.sleep(0.05)
    return 200


async def hang() -> int:
    """As one that never answers is given up."""
    await asyncio.sleep(TIMEOUT_S)
    raise ProviderTimeout("The webhook's receiver took too long to answer", phase="headers")


def say(*statuses: int) -> Reaction:
    """One status after another, and the last again and again."""
    left = list(statuses)

    async def answer() -> int:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


class Receivers(SafeFetcher):
    """Everybody's servers, by their hosts; the way to them, and what came there."""

    def __init__(self, **reactions: Reaction) -> None:
        self.reactions = reactions
        self.came: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    @override
    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
        host = urlsplit(url).hostname or "" if "[" not in url else ""
        self.came[host].append((headers["webhook-id"], asyncio.get_running_loop().time()))
        for place in (host, "together"):
            self.under_way[place] += 1
            self.most[place] = max(self.most[place], self.under_way[place])
        try:
            return await self.reactions[host]()
        finally:
            self.under_way -= Counter([host, "together"])

    @property
    def delivered(self) -> Counter[str]:
        """How often each delivery was."""
        return Counter(name for came in self.came.values() for name, _ in came)


class UnreliableStore(WebhookDeliveryRepository):
    """A store that fails as often as it is told to; it remembers what it was asked.

    It does not look for what is due before the time at which something is: days of a scene are looked through quickly.
    """

    def __init__(self) -> None:
        super().__init__(LazyDatabase())
        self.claims_fail = self.notes_fail = 0
        self.nothing_before_ms = 0
        self.looked_at: list[float] = []
        self.noted: list[WebhookDelivery] = []

    async def claim_deliveries(
        self,
        owner: str,
        now_ms: int,
        *,
        claim_ms: int,
        max_rows: int,
        max_per_account: int,
        accounts: frozenset[int] | None = None,
    ) -> Sequence[WebhookDelivery]:
        self.looked_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if self.claims_fail:
            self.claims_fail -= 1
            raise StoreUnavailable("not now")
        if now_ms < self.nothing_before_ms:
            return []
        claimed = await super().claim_deliveries(
            owner, now_ms, claim_ms=claim_ms, max_rows=max_rows, max_per_account=max_per_account, accounts=accounts
        )
        if not claimed:
            ((due_ms,),) = await self._database.read(select(func.min(deliveries.c.due_ms)))
            self.nothing_before_ms = due_ms or 0
        return claimed

    async def note_delivery(self, delivery: WebhookDelivery) -> None:
        await asyncio.sleep(0)
        if self.notes_fail:
            self.notes_fail -= 1
            raise StoreUnavailable("not now")
        self.noted.append(delivery)
        self.nothing_before_ms = 0
        await super().note_delivery(delivery)


class WebhookScenario:
    """The job between its store and its receivers, in the time of a loop in a hurry."""

    def __init__(self, **reactions: Reaction) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.store = UnreliableStore()
        self.receivers = Receivers(**reactions)
        self.events = Events()
        self.job = self.make_job()
        self.running: asyncio.Task[None] | None = None

    def make_job(self, owner: str = "me") -> WebhookWorker:
        webhook_sender = WebhookSender(self.receivers, lambda _key_id: b"secret", self.clock)
        return WebhookWorker(self.store, webhook_sender, self.events, owner=owner, clock=self.clock)

    def clock(self) -> float:
        return EPOCH_S + self.loop.time()

    @property
    def passed_s(self) -> float:
        return self.loop.time() - self.began

    async def put(self, host: str, *names: object, account: int = 1) -> None:
        """Jobs that ended now."""
        now_ms = round(self.clock() * 1000)
        self.store.nothing_before_ms = 0
        for name in names:
            await add_delivery(
                self.store,
                WebhookDelivery(
                    id=f"evt_{name}",
                    video_id=f"video_{name}",
                    account_id=account,
                    key_id=7,
                    url=f"https://{host}/hook?secret",
                    event="video.completed",
                    body=b"{}",
                    created_ms=now_ms,
                    due_ms=now_ms,
                ),
            )

    async def look(self, name: object) -> WebhookDelivery:
        return {one.id: one for one in await self.store.list_deliveries(video_id=None, limit=999)}[f"evt_{name}"]

    async def run(self, seconds: float) -> None:
        if self.running is None:
            self.running = asyncio.create_task(self.job.run())
        await asyncio.sleep(seconds)
        assert not self.running.done()

    async def run_until(self, done: Callable[[], bool], turns: int) -> None:
        """Run until ``done`` is true. Fails if that takes more than ``turns`` times as long as a receiver may take."""
        for _ in range(turns):
            await self.run(TIMEOUT_S)
            if done():
                return
        raise AssertionError(self.receivers.delivered)

    async def stop(self) -> None:
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)
            self.running = None


def play(scene: Callable[..., Coroutine[Any, Any, None]], **reactions: Reaction) -> list[Any]:
    """Run ``scene`` in a scenario; what was logged meanwhile."""

    async def main() -> None:
        scenario = WebhookScenario(**reactions)
        try:
            await scene(scenario)
        finally:
            await scenario.stop()
            await close_databases()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with capture_logs() as reported:
        run_hurried(main())
    return reported


def test_what_is_due_is_told_once() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("well", *range(5))
        await scenario.run(3600)
        assert scenario.receivers.delivered == {f"evt_{number}": 1 for number in range(5)}
        for number in range(5):
            found = await scenario.look(number)
            assert (found.status, found.attempts, found.answer, found.owner) == ("delivered", 1, 200, "")

    assert play(scene, well=take) == []


def test_what_is_refused_is_told_again_with_the_same_id() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("moody", "a")
        await scenario.run(60)
        (first, began), (second, again) = scenario.receivers.came["moody"]
        assert first == second == "evt_a"
        assert RETRY_AFTER_S[0] - TICK_S <= again - began <= RETRY_AFTER_S[0] + LATE_S
        found = await scenario.look("a")
        assert (found.status, found.attempts, found.answer, found.error) == ("delivered", 2, 200, None)

    assert play(scene, moody=say(500, 200)) == []


@pytest.mark.slow
def test_whoever_never_answers_is_told_for_a_day_and_then_no_more() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("dead", "a")
        await scenario.run(sum(RETRY_AFTER_S) + (1 + len(RETRY_AFTER_S)) * (TIMEOUT_S + LATE_S) + 3_600)
        times = [at for _, at in scenario.receivers.came["dead"]]
        assert len(times) == 1 + len(RETRY_AFTER_S)
        for wait_s, (before, after) in zip(RETRY_AFTER_S, pairwise(times), strict=True):
            assert wait_s - TICK_S <= after - before - TIMEOUT_S <= wait_s + LATE_S
        found = await scenario.look("a")
        assert (found.status, found.attempts, found.due_ms) == ("failed", len(times), None)

    (line,) = play(scene, dead=hang)
    assert (line["event"], line["log_level"], line["delivery_id"], line["attempts"]) == (
        "delivery_failed", "warning", "evt_a", 1 + len(RETRY_AFTER_S),
    )  # fmt: skip
    assert "secret" not in str(line)
    assert "dead" not in str(line)


def test_two_deliveries_to_a_dead_host_do_not_hold_up_a_third() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("dead", 1, 2)
        await scenario.put("well", 3)
        await scenario.run(1)
        assert (await scenario.look(3)).status == "delivered"
        assert scenario.receivers.under_way == {"dead": 2, "together": 2}

    assert play(scene, well=take, dead=hang) == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_many_for_a_dead_host_do_not_hold_up_another_and_have_their_turns() -> None:
    """And the store is not asked to put them off again and again."""
    count = MAX_DELIVERIES + 5

    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("dead", *range(count))
        await scenario.put("well", "x")
        await scenario.run(4)
        assert (await scenario.look("x")).status == "delivered"
        await scenario.put("well", "y")
        scenario.events.publish(JobEnded())
        await scenario.run(1)
        assert (await scenario.look("y")).status == "delivered"
        names = {f"evt_{number}" for number in range(count)}
        # Later attempts come between the first ones.
        await scenario.run_until(lambda: names <= scenario.receivers.delivered.keys(), 8 * count // MAX_PER_HOST)
        assert scenario.receivers.most["dead"] == MAX_PER_HOST
        assert len(scenario.store.noted) < 4 * scenario.receivers.delivered.total()
        scenario.receivers.reactions["dead"] = take
        await scenario.run_until(lambda: scenario.job._hosts == {}, GIVE_UP_AFTER_S // 2 // int(TIMEOUT_S))

    assert play(scene, well=take, dead=hang) == []


def test_many_for_one_host_that_is_well_are_told_without_being_put_off() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("well", *range(200))
        await scenario.run(200 * 0.05 / MAX_PER_HOST + 1.5)
        assert set(scenario.receivers.delivered.values()) == {1}
        assert len(scenario.receivers.delivered) == len(scenario.store.noted) == 200
        assert scenario.receivers.most["well"] == MAX_PER_HOST

    assert play(scene, well=take) == []


def test_many_dead_hosts_of_one_account_do_not_hold_up_another_account() -> None:
    count = 80

    async def scene(scenario: WebhookScenario) -> None:
        for number in range(count):
            await scenario.put(f"dead{number}", number)
        await scenario.put("well", "x", account=2)
        await scenario.run(1)
        assert (await scenario.look("x")).status == "delivered"
        await scenario.put("well", "y", account=2)
        scenario.events.publish(JobEnded())
        await scenario.run(1)
        assert (await scenario.look("y")).status == "delivered"
        assert scenario.receivers.under_way["together"] == MAX_PER_ACCOUNT
        await scenario.run(count / MAX_PER_ACCOUNT * (TIMEOUT_S + REST_S) * 2)
        assert all(scenario.receivers.delivered[f"evt_{number}"] for number in range(count))
        assert scenario.receivers.most["together"] == MAX_PER_ACCOUNT + 1  # the other account's

    play(scene, well=take, **{f"dead{number}": hang for number in range(count)})


def test_one_host_is_not_held_up_for_an_account_by_what_another_has_there() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("both", *range(90))
        await scenario.run(5)
        scenario.receivers.reactions["both"] = take
        await scenario.put("both", "x", account=2)
        scenario.events.publish(JobEnded())
        await scenario.run(1)
        assert (await scenario.look("x")).status == "delivered"
        assert scenario.receivers.under_way["both"] == MAX_PER_HOST

    assert play(scene, both=hang) == []


def test_no_more_than_some_are_told_at_once_and_every_one_in_its_lease() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        for number in range(3 * MAX_DELIVERIES):
            await scenario.put(f"dead{number}", number, account=number)
        await scenario.run(3 * TIMEOUT_S + 10)
        assert scenario.receivers.most["together"] == MAX_DELIVERIES
        assert min(scenario.receivers.delivered[f"evt_{number}"] for number in range(3 * MAX_DELIVERIES)) >= 1
        for one in scenario.store.noted:
            assert one.attempts > 0  # none of them was put off: each has a host of its own

    play(scene, **{f"dead{number}": hang for number in range(3 * MAX_DELIVERIES)})


def test_whoever_is_woken_looks_at_once_and_otherwise_seldom() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.run(300)
        looks = scenario.store.looked_at
        assert all(MAX_REST_S <= after - before < MAX_REST_S + 1 for before, after in pairwise(looks))
        await scenario.put("well", "a")
        scenario.events.publish(JobEnded())
        await scenario.run(0.5)
        assert (await scenario.look("a")).status == "delivered"

    play(scene, well=take)


def test_what_is_due_later_is_waited_for_and_no_longer_than_a_while() -> None:
    """Another process may have put something there."""

    async def scene(scenario: WebhookScenario) -> None:
        await scenario.run(1)
        await scenario.put("well", "a")
        await scenario.run(MAX_REST_S + 1)
        assert (await scenario.look("a")).status == "delivered"

    play(scene, well=take)


def test_a_store_that_fails_is_asked_again_and_said_once() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("well", "a")
        scenario.store.claims_fail = 5
        await scenario.run(10)
        assert (await scenario.look("a")).status == "delivered"

    (line,) = play(scene, well=take)
    assert (line["event"], line["error"]) == ("deliveries_not_claimed", "not now")


def test_an_outcome_that_cannot_be_stored_is_kept_and_not_told_again() -> None:
    """Not even after the lease of it is over."""

    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("well", "a")
        scenario.store.notes_fail = 3 * CLAIM_MS // 1000
        await scenario.run(2 * CLAIM_MS / 1000)
        assert (await scenario.look("a")).status == "pending"
        await scenario.run(2 * CLAIM_MS / 1000)
        assert (await scenario.look("a")).status == "delivered"
        assert scenario.receivers.delivered == {"evt_a": 1}

    (line,) = play(scene, well=take)
    assert (line["event"], line["delivery_id"], line["error"]) == ("delivery_not_stored", "evt_a", "not now")


def test_what_a_stop_cuts_off_is_told_again_by_the_next_start() -> None:
    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("dead", "a")
        await scenario.put("dead", *range(MAX_PER_ACCOUNT))
        await scenario.run(5)
        await scenario.stop()
        assert not scenario.receivers.under_way
        scenario.receivers.reactions["dead"] = take
        scenario.job = scenario.make_job("another")
        await scenario.run(1)
        assert (await scenario.look("a")).status == "pending"  # its worker is believed to be alive
        await scenario.run(CLAIM_MS / 1000 + 1)
        found = await scenario.look("a")
        assert (found.status, found.attempts) == ("delivered", 1)
        assert scenario.receivers.delivered["evt_a"] == 2

    assert play(scene, dead=hang) == []


@table_rows("after_s", [0, 0.5])
def test_a_job_that_was_stopped_can_be_run_again(after_s: float) -> None:
    """Also where it was stopped before anything had begun of what it had taken on."""

    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("dead", *range(MAX_DELIVERIES))
        await scenario.run(0)
        while not scenario.job._active_ids:  # noqa: ASYNC110 - what is waited for is one step of the loop
            await asyncio.sleep(0)
        await asyncio.sleep(after_s)
        await scenario.stop()
        scenario.receivers.reactions["dead"] = take
        await scenario.run(3 * CLAIM_MS / 1000)
        assert {(await scenario.look(number)).status for number in range(MAX_DELIVERIES)} == {"delivered"}

    assert play(scene, dead=hang) == []


def test_an_address_that_nobody_can_read_is_tried_once() -> None:
    async def refuse() -> int:
        raise EgressRefused("The webhook's address is not a plain http or https URL")

    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("[", "a")
        await scenario.run(3)
        found = await scenario.look("a")
        assert (found.status, found.attempts) == ("failed", 1)

    (line,) = play(scene, **{"": refuse})
    assert (line["event"], line["attempts"]) == ("delivery_failed", 1)
    assert "not a plain" in line["error"]


def test_a_bug_reaches_the_runner() -> None:
    async def fail() -> int:
        raise ZeroDivisionError

    async def scene(scenario: WebhookScenario) -> None:
        await scenario.put("odd", "a")
        await scenario.put("dead", "b")
        with pytest.raises(ExceptionGroup) as raised:
            await scenario.job.run()
        assert isinstance(raised.value.exceptions[0], ZeroDivisionError)
        assert not scenario.receivers.under_way

    play(scene, odd=fail, dead=hang)
