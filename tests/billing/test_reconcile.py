"""Whatever does not add up is found, and nothing else."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from sqlalchemy import delete, func, select, text, update

from gateway.billing.accounting import AccountingService
from gateway.billing.flush_worker import LedgerFlusher
from gateway.billing.reconcile import CHECK_PAUSE_S, compare_subjects
from gateway.billing.settlement import build_record
from gateway.domain.balance import Reservation
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.video import CANCELLED_ERROR, VideoJob, VideoRules
from gateway.errors import QuotaExceeded
from gateway.events import Events
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.schema import entries, videos
from gateway.storage.videos import VideoRepository
from gateway.videos.job_tasks import JobTasks
from gateway.videos.jobs import VideoJobs
from gateway.videos.reservations import JobReservations
from tests.support.billing_services import (
    NOON,
    BillingServices,
    SlowDisk,
    begin,
    call_for,
    caller_of,
    capped,
    put,
    top_up,
    unix,
)
from tests.support.gateway import make_template
from tests.support.request_records import ROW, make_row
from tests.support.video_records import put_job

DOLLAR = NANOS_PER_USD
FIRST_CHARGE = entries.c.sequence == select(func.min(entries.c.sequence)).scalar_subquery()
FIRST_CREDIT = entries.c.sequence == (
    select(func.min(entries.c.sequence)).where(entries.c.kind != "charge").scalar_subquery()
)


async def problems(billing: BillingServices) -> list[str]:
    report = await billing.accounting.reconcile()
    assert report["ok"] is (not report["problems"])
    return list(report["problems"])


async def busy(billing: BillingServices) -> None:
    """Something of everything: charges and credits of three days, stored and not, and calls that run."""
    caller, other = caller_of(capped(1_000, "monthly"), capped(500)), caller_of(capped(1_000, "monthly"), id=8)
    for number, day in enumerate(("2027-04-30T12:00", "2027-05-14T12:00", "2027-05-15T12:00")):
        await billing.set_clock(unix(day))
        for each in (caller, other):
            await billing.spend(each, 10 + number)
        await billing.flush.flush()
        await billing.accounting.credit(caller.account, top_up("0.00000005"))
        await billing.accounting.credit(caller.key, put("0.0000003"))
    await billing.spend(caller, 7)
    await billing.admit(other, call_for(20))


async def test_the_audit_of_a_busy_gateway_finds_nothing(billing: BillingServices) -> None:
    await busy(billing)
    assert await billing.accounting.reconcile() == {
        "ok": True,
        "problems": [],
        "overruns": [],
        "purses": 3,
        "charged_usd": 66 / DOLLAR,
        "charged_nanos": 66,
        "open_holds": 1,
        "video_holds": 0,
        "held_usd": 20 / DOLLAR,
        "video_held_usd": 0,
        "waiting_rows": 1,
    }


async def test_a_gateway_that_starts_again_has_the_same_balances(billing: BillingServices) -> None:
    await busy(billing)
    before = billing.accounting.describe(caller_of(capped(1_000, "monthly")).account)
    await billing.crash("release")
    assert await problems(billing) == []
    after = billing.accounting.describe(caller_of(capped(1_000, "monthly")).account)
    assert after == before | {"held_usd": 0.0, "left_usd": before["left_usd"] + 20 / DOLLAR}


async def test_a_limit_below_what_is_spent_is_listed_as_exceeded(billing: BillingServices) -> None:
    await billing.spend(caller_of(capped(50)), 40)
    with pytest.raises(QuotaExceeded):
        await billing.admit(caller_of(capped(30)), call_for(1))
    report = await billing.accounting.reconcile()
    assert (report["ok"], report["overruns"]) == (True, ["account 1: $0.00000001 more is spent than its limit"])


async def test_an_empty_gateway_has_nothing_to_add_up(billing: BillingServices) -> None:
    report = await billing.accounting.reconcile()
    assert (report["ok"], report["purses"], report["charged_nanos"], report["open_holds"]) == (True, 0, 0, 0)


async def test_a_cap_that_was_lowered_under_what_was_spent_is_no_problem_of_the_books(billing: BillingServices) -> None:
    await busy(billing)
    billing.accounting.describe(caller_of(capped(3)).account)
    assert await problems(billing) == []


async def test_a_hold_that_yesterdays_credit_covered_is_no_problem_of_today(billing: BillingServices) -> None:
    caller = caller_of(capped(100, "daily"))
    await billing.accounting.credit(caller.account, top_up("0.00000005"))
    running = await billing.admit(caller, call_for(150))
    billing.now = billing.balances.today.end_s
    assert await problems(billing) == []
    billing.settle(running, 20)
    assert await problems(billing) == []


async def test_rows_that_have_waited_for_days_are_added_to_what_is_stored(billing: BillingServices) -> None:
    caller = caller_of(capped(1_000, "daily"))
    running = [await billing.admit(caller, call_for(10)) for _ in range(3)]
    for each in running:
        billing.settle(each, 10)
        billing.now = billing.balances.today.end_s
    await billing.accounting.credit(caller.account, top_up("0.00000005"))
    assert await problems(billing) == []


TAMPERINGS: dict[str, tuple[Callable[[BillingServices], object], str]] = {
    "a charge in memory": (
        lambda billing: setattr(billing.balances.find_balance("key", 7).lifetime, "spent_nanos", 39),
        "key 7: spent is 39, its entries say 40",
    ),
    "a charge of this month": (
        lambda billing: setattr(billing.balances.find_balance("key", 8).monthly.current, "spent_nanos", 24),
        "key 8: spent this month is 24, its entries say 23",
    ),
    "a charge of today": (
        lambda billing: setattr(billing.balances.find_balance("account", 1).daily.current, "spent_nanos", 0),
        "account 1: spent today is 0, its entries say 31",
    ),
    "a credit in memory": (
        lambda billing: setattr(billing.balances.find_balance("account", 1).lifetime, "credit_nanos", 151),
        "account 1: credited is 151, its entries say 150",
    ),
    "a credit of today": (
        lambda billing: setattr(billing.balances.find_balance("account", 1).daily.current, "credit_nanos", 0),
        "account 1: credited today is 0, its entries say 50",
    ),
    "a whole purse": (
        lambda billing: billing.balances._balances_by_owner["key"].pop(7),
        "key 7: spent is 0, its entries say 40",
    ),
    "a purse of nobody": (
        lambda billing: billing.balances.find_balance("key", 99).add_credit(5, billing.balances.today),
        "key 99: credited is 5, its entries say 0",
    ),
    "money that is held for nobody": (
        lambda billing: billing.balances.find_balance("key", 7).hold(3),
        "key 7: 3 held, its holds say 0",
    ),
    "a hold that was lost": (
        lambda billing: billing.balances.reservations.clear(),
        "account 1: 20 held, its holds say 0",
    ),
    "more than a cap": (
        lambda billing: setattr(billing.balances.find_balance("account", 1), "held_nanos", 2_000),
        "account 1: more is spent and held than its cap and its overrun allow",
    ),
    "a refund nobody gave": (
        lambda billing: setattr(billing.balances.find_balance("key", 7).lifetime, "spent_nanos", -1),
        "key 7: more is spent and held than its cap and its overrun allow",
    ),
    "an entry that was deleted": (
        lambda billing: billing.disk.database.change(delete(entries).where(FIRST_CHARGE)),
        "key 7: 23 charged in entries, 33 in the sums of its days, 33 in its requests",
    ),
    "an entry that was changed": (
        lambda billing: billing.disk.database.change(
            update(entries).where(FIRST_CHARGE).values(amount_nanos=entries.c.amount_nanos + 1)
        ),
        "key 7: 34 charged in entries, 33 in the sums of its days, 33 in its requests",
    ),
    "a credit that was deleted": (
        lambda billing: billing.disk.database.change(delete(entries).where(FIRST_CREDIT)),
        "account 1: credited is 150, its entries say 100",
    ),
    "a row that waits twice": (
        lambda billing: billing.write_queue.put(billing.write_queue.list_rows()[0]),
        "key 7: spent is 40, its entries say 47",
    ),
    "a row that was dropped": (lambda billing: billing.write_queue.take(1), "key 7: spent is 40, its entries say 33"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_the_audit_finds_what_was_tampered_with(billing: BillingServices, name: str) -> None:
    await busy(billing)
    tamper, message = TAMPERINGS[name]
    await run(tamper(billing))
    found = await problems(billing)
    assert any(problem.startswith(message) for problem in found), found


async def test_calls_go_on_while_the_books_are_audited(tmp_path: Path) -> None:
    disk = SlowDisk()
    billing = BillingServices(tmp_path, disk=disk)
    await busy(billing)
    caller = caller_of(capped(1_000, "monthly"), capped(500))
    running = await billing.admit(caller, call_for(30))
    auditing = await begin(billing.accounting.reconcile(), disk)
    billing.settle(running, 30)
    await billing.spend(caller, 5)
    flushing = asyncio.create_task(billing.flush.flush())
    crediting = asyncio.create_task(billing.accounting.credit(caller.key, top_up("1")))
    await asyncio.sleep(0)
    disk.go.set()
    report = await auditing
    assert (report["problems"], report["open_holds"], report["waiting_rows"]) == ([], 2, 1)
    assert await flushing
    await crediting
    assert await problems(billing) == []
    billing.close()


async def test_an_audit_waits_for_rows_that_are_on_their_way_to_the_store(tmp_path: Path) -> None:
    disk = SlowDisk()
    billing = BillingServices(tmp_path, disk=disk)
    await billing.spend(caller_of(), 5)
    flushing = await begin(billing.flush.flush(), disk)
    auditing = asyncio.create_task(billing.accounting.reconcile())
    await asyncio.sleep(0)
    disk.go.set()
    report = await auditing
    assert (report["problems"], report["waiting_rows"], report["charged_nanos"]) == ([], 0, 5)
    assert await flushing
    billing.close()


# jobs, whose money is held from their beginning to their end, for every account


@attrs.frozen
class HeldVideos:
    """Jobs over ``billing``; no provider is asked."""

    billing: BillingServices
    videos: VideoJobs
    store: VideoRepository

    def propose(self, number: int, nanos: int) -> tuple[VideoJob, Reservation]:
        """A job that is neither on record nor known to have its money, which is held."""
        caller = caller_of(capped(1_000), capped(500))
        ctx = self.billing.arrive(caller, call_for(nanos))
        ctx.reservation = held = self.billing.balances.reserve_now(caller, nanos)
        assert held is not None
        row = build_record(ctx, "interrupted", None, **self.billing.times)
        receipt = attrs.evolve(row, attempts=1)
        job = VideoJob(f"video_{number}", receipt, "a cat", state="queued", held_nanos=nanos, cost_nanos=nanos - 5)
        return job, held

    async def begin(self, number: int, nanos: int) -> VideoJob:
        """A job that goes on."""
        job, held = self.propose(number, nanos)
        await self.store.create(job)
        self.videos.reservations.add(job, held)
        return job


@pytest.fixture
def held_videos(billing: BillingServices) -> HeldVideos:
    return build_held_videos(billing)


def build_held_videos(billing: BillingServices, store: VideoRepository | None = None) -> HeldVideos:
    store = store or VideoRepository(billing.disk.database)
    reservations = JobReservations(
        store, billing.balances, billing.write_queue, keep_record=lambda _: None, clock=lambda: billing.now
    )
    videos = VideoJobs(
        store,
        reservations,
        JobTasks(store),
        None,  # type: ignore[arg-type]
        Events(),
        find_rules=VideoRules,
        clock=lambda: billing.now,
    )
    billing.accounting.jobs = reservations
    return HeldVideos(billing, videos, store)


async def test_what_jobs_hold_is_told_beside_what_calls_hold(billing: BillingServices, held_videos: HeldVideos) -> None:
    running = await billing.admit(caller_of(capped(1_000), capped(500)), call_for(20))
    first, second, free = [await held_videos.begin(number, nanos) for number, nanos in ((1, 30), (2, 40), (3, 0))]
    report = await billing.accounting.reconcile()
    assert report["ok"], report["problems"]
    assert (report["open_holds"], report["video_holds"]) == (1, 3)
    assert (report["held_usd"], report["video_held_usd"]) == (90 / DOLLAR, 70 / DOLLAR)
    assert await held_videos.videos.complete(first)
    assert await held_videos.videos.fail(second, CANCELLED_ERROR)
    assert await held_videos.videos.fail(free, CANCELLED_ERROR)
    billing.settle(running, 20)
    report = await billing.accounting.reconcile()
    assert report["ok"], report["problems"]
    assert (report["open_holds"], report["video_holds"], report["held_usd"], report["waiting_rows"]) == (0, 0, 0, 1)
    assert report["charged_nanos"] == 25


JOB_TAMPERINGS: dict[str, tuple[Callable[[HeldVideos], object], str]] = {
    "a hold that nobody knows of": (
        lambda held_videos: held_videos.videos.reservations._reservations.pop("video_1"),
        "video_1: no hold is open, its record says 30",
    ),
    "a job that is no more": (
        lambda held_videos: forget_jobs(held_videos, videos.c.id == "video_1"),
        "video_1: 30 held, and there is no such job that goes on",
    ),
    "a record of another amount": (
        lambda held_videos: tamper_job(held_videos, "video_1", held_nanos=31),
        "video_1: 30 held, its record says 31",
    ),
    "a hold that somebody else let go of": (
        lambda held_videos: held_videos.billing.balances.release(
            held_videos.videos.reservations._reservations["video_1"]
        ),
        "account 1: 40 held, its jobs alone say 70",
    ),
    "a hold on another account": (
        lambda held_videos: tamper_job(held_videos, "video_1", receipt=attrs.evolve(ROW, account_id=2, key_id=7)),
        "account 2: 0 held, its jobs alone say 30",
    ),
    "a job that ended past its hold": (
        lambda held_videos: tamper_job(held_videos, "video_1", state="failed"),
        "video_1: 30 held, and there is no such job that goes on",
    ),
    "an end without its row": (
        lambda held_videos: tamper_job(held_videos, "video_3", receipt=attrs.evolve(ROW, id="req_lost")),
        "video_3: it has ended, and its request is not stored",
    ),
    "an end at another cost": (
        lambda held_videos: tamper_job(held_videos, "video_3", cost_nanos=1),
        "video_3: it has ended, and its request is not stored, or not with its cost",
    ),
}


async def tamper_job(held_videos: HeldVideos, name: str, **changes: Any) -> None:
    job = await held_videos.store.find(name)
    assert job is not None
    await put_job(held_videos.store, attrs.evolve(job, **changes))


async def forget_jobs(held_videos: HeldVideos, *which: Any) -> None:
    await held_videos.billing.disk.database.change(delete(videos).where(*which))


async def run(tampering: object) -> None:
    """Wait for what was tampered with, if that is in the database."""
    if isinstance(tampering, Awaitable):
        await tampering


@pytest.mark.parametrize("name", JOB_TAMPERINGS)
async def test_the_audit_finds_what_was_tampered_with_of_a_job(
    billing: BillingServices, held_videos: HeldVideos, name: str
) -> None:
    await held_videos.begin(1, 30)
    await held_videos.begin(2, 40)
    await held_videos.videos.complete(await held_videos.begin(3, 50))
    assert await problems(billing) == []
    tamper, message = JOB_TAMPERINGS[name]
    await run(tamper(held_videos))
    found = await problems(billing)
    assert any(problem.startswith(message) for problem in found), found
    assert len(found) == len(set(found))


async def test_a_job_that_is_on_record_a_moment_before_its_money_is_its_own_is_no_problem(
    billing: BillingServices, held_videos: HeldVideos
) -> None:
    job, held = held_videos.propose(1, 30)
    await held_videos.store.create(job)
    asyncio.get_running_loop().call_later(CHECK_PAUSE_S / 2, held_videos.videos.reservations.add, job, held)
    assert await problems(billing) == []
    assert held_videos.videos.reservations.list_held() == {"video_1": 30}


async def test_a_job_that_is_struck_off_a_moment_before_its_money_is_free_is_no_problem(
    billing: BillingServices, held_videos: HeldVideos
) -> None:
    job = await held_videos.begin(1, 30)
    await forget_jobs(held_videos)
    asyncio.get_running_loop().call_later(CHECK_PAUSE_S / 2, held_videos.videos.reservations.release, job)
    assert await problems(billing) == []
    assert (await billing.accounting.reconcile())["held_usd"] == 0


class ChangingVideos(VideoRepository):
    """At every look another job has just been put on record, and is refused right after."""

    looks = 0

    async def list_open(self) -> Sequence[VideoJob]:
        self.looks += 1
        passing = VideoJob(f"video_1{self.looks}", ROW, "a dog", held_nanos=30)
        return [*await super().list_open(), passing]


async def test_another_job_at_every_look_is_one_that_comes_and_goes(billing: BillingServices) -> None:
    store = ChangingVideos(billing.disk.database)
    await build_held_videos(billing, store).begin(1, 30)
    assert await problems(billing) == []
    assert store.looks == 2


async def test_no_job_ends_while_the_books_are_audited(tmp_path: Path) -> None:
    disk = SlowDisk()
    billing = BillingServices(tmp_path, disk=disk)
    held_videos = build_held_videos(billing)
    job = await held_videos.begin(1, 30)
    auditing = await begin(billing.accounting.reconcile(), disk)
    ending = asyncio.create_task(held_videos.videos.complete(job))
    await asyncio.sleep(0)
    disk.go.set()
    report = await auditing
    assert (report["problems"], report["video_holds"], report["charged_nanos"]) == ([], 1, 0)
    assert await ending
    report = await billing.accounting.reconcile()
    assert (report["problems"], report["video_holds"], report["charged_nanos"]) == ([], 0, 25)
    billing.close()


# the same over the database, where the sums of the days are a table of their own


@pytest.fixture
async def database(tmp_path: Path, template_path: Path) -> AsyncIterator[Database]:
    if not template_path.exists():
        await make_template(template_path)
    opened = await open_database(f"sqlite:///{shutil.copy(template_path, tmp_path / 'gateway.db')}")
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("statement", "reported"),
    [
        ("SELECT 1", []),
        ("UPDATE usage_days SET cost_nanos = cost_nanos + 1", ["key 7: spent is 5, its entries say 6"]),
        ("DELETE FROM usage_days", ["key 7: spent is 5, its entries say 0", "account 1: spent is 5"]),
        ("UPDATE entries SET amount_nanos = 4 WHERE kind = 'charge'", ["key 7: 4 charged in entries, 5 in the sums"]),
        ("DELETE FROM entries WHERE kind = 'charge'", ["key 7: 0 charged in entries, 5 in the sums of its days, 5 in"]),
        ("DELETE FROM entries WHERE kind <> 'charge'", ["account 1: credited is 2000000000, its entries say 0"]),
        ("UPDATE entries SET account_id = 2", ["account 2: credited is 0", "key 7: 0 charged in entries"]),
        ("UPDATE requests SET cost_nanos = 0", ["key 7: 5 charged in entries, 5 in the sums of its days, 0 in its"]),
        ("DELETE FROM requests", ["key 7: 5 charged in entries, 5 in the sums of its days, 0 in its requests"]),
    ],
)
async def test_the_audit_finds_what_was_changed_in_the_database(
    billing: BillingServices, database: Database, statement: str, reported: list[str]
) -> None:
    ledger = LedgerRepository(database)
    accounting = AccountingService(
        billing.balances, ledger, billing.write_queue, clock=lambda: NOON, jobs=None, check_leases=None
    )
    await billing.spend(caller_of(), 5)
    await accounting.credit(caller_of(capped(DOLLAR)).account, top_up("2"))
    await LedgerFlusher(billing.write_queue, ledger, billing.journal).flush()
    await database.change(text(statement))
    found = (await accounting.reconcile())["problems"]
    assert bool(found) is bool(reported)
    for problem in reported:
        assert any(line.startswith(problem) for line in found), found


@pytest.mark.parametrize(
    ("statement", "reported"),
    [
        ("SELECT 1", ""),
        ("DELETE FROM subject_usage", "key 5: 0 in the sums of users on 2025-06-15, 9 in their requests, 4 in"),
        ("UPDATE subject_usage SET cost_nanos = cost_nanos + 1 WHERE value = 'u-17'", "key 5: 10 in the sums of users"),
        ("UPDATE subject_usage SET day = day + 1", "key 5: 0 in the sums of users on 2025-06-15"),
        ("UPDATE subject_usage SET key_id = 6 WHERE kind = 'user'", "key 5: 0 in the sums of users on 2025-06-15"),
        ("UPDATE requests SET end_user = '' WHERE id = 'req_1'", "key 5: 9 in the sums of users on 2025-06-15, 2 in"),
        ("INSERT INTO retired VALUES (3, 5, 0, 0, 1750000000128)", ""),
        (
            "INSERT INTO retired VALUES (3, 5, 0, 0, 1749945600000); UPDATE subject_usage SET cost_nanos = 99",
            "key 5: 1",
        ),
    ],
)
async def test_users_and_unattributed_requests_sum_up_to_the_day_of_their_key(
    database: Database, statement: str, reported: str
) -> None:
    rows = [make_row(1, cost_nanos=7), make_row(2, cost_nanos=2, end_user="b"), make_row(3, cost_nanos=4, end_user="")]
    ledger = LedgerRepository(database)
    await ledger.post(rows)
    for part in statement.split(";"):
        await database.change(text(part))
    problems = [total for total in await ledger.list_subject_totals() if not total.is_correct]
    assert bool(problems) is bool(reported)
    lines = compare_subjects(problems)
    assert not reported or any(line.startswith(reported) for line in lines), lines


async def test_without_users_nothing_is_compared(database: Database) -> None:
    ledger = LedgerRepository(database)
    await ledger.post([make_row(1, end_user="")])
    assert await ledger.list_subject_totals() == []
    await ledger.post([make_row(2)])
    assert len(await ledger.list_subject_totals()) == 1
