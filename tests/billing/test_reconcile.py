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
from gateway.billing.reconcile import LOOK_AGAIN_S
from gateway.billing.request_record import build_record
from gateway.domain.balance import Reservation
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.video import CANCELLED, VideoJob, VideoRules
from gateway.storage.database import Database, open_database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.schema import entries, videos
from gateway.storage.videos import VideoRepository
from gateway.videos.jobs import Videos
from tests.support.billing_services import (
    NOON,
    Books,
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
from tests.support.request_records import ROW
from tests.support.video_records import put_job

DOLLAR = NANOS_PER_USD
FIRST_CHARGE = entries.c.sequence == select(func.min(entries.c.sequence)).scalar_subquery()
FIRST_CREDIT = entries.c.sequence == (
    select(func.min(entries.c.sequence)).where(entries.c.kind != "charge").scalar_subquery()
)


async def problems(books: Books) -> list[str]:
    report = await books.accounting.reconcile()
    assert report["ok"] is (not report["problems"])
    return list(report["problems"])


async def busy(books: Books) -> None:
    """Something of everything: charges and credits of three days, stored and not, and calls that run."""
    caller, other = caller_of(capped(1_000, "monthly"), capped(500)), caller_of(capped(1_000, "monthly"), id=8)
    for number, day in enumerate(("2027-04-30T12:00", "2027-05-14T12:00", "2027-05-15T12:00")):
        await books.set_clock(unix(day))
        for each in (caller, other):
            await books.spend(each, 10 + number)
        await books.flush.flush()
        await books.accounting.credit(caller.account, top_up("0.00000005"))
        await books.accounting.credit(caller.key, put("0.0000003"))
    await books.spend(caller, 7)
    await books.admit(other, call_for(20))


async def test_the_audit_of_a_busy_gateway_finds_nothing(books: Books) -> None:
    await busy(books)
    assert await books.accounting.reconcile() == {
        "ok": True,
        "problems": [],
        "purses": 3,
        "charged_usd": 66 / DOLLAR,
        "charged_nanos": 66,
        "open_holds": 1,
        "video_holds": 0,
        "held_usd": 20 / DOLLAR,
        "video_held_usd": 0,
        "waiting_rows": 1,
    }


async def test_a_gateway_that_starts_again_has_the_same_balances(books: Books) -> None:
    await busy(books)
    before = books.accounting.describe(caller_of(capped(1_000, "monthly")).account)
    await books.crash("release")
    assert await problems(books) == []
    after = books.accounting.describe(caller_of(capped(1_000, "monthly")).account)
    assert after == before | {"held_usd": 0.0, "left_usd": before["left_usd"] + 20 / DOLLAR}


async def test_an_empty_gateway_has_nothing_to_add_up(books: Books) -> None:
    report = await books.accounting.reconcile()
    assert (report["ok"], report["purses"], report["charged_nanos"], report["open_holds"]) == (True, 0, 0, 0)


async def test_a_cap_that_was_lowered_under_what_was_spent_is_no_problem_of_the_books(books: Books) -> None:
    await busy(books)
    books.accounting.describe(caller_of(capped(3)).account)
    assert await problems(books) == []


async def test_a_hold_that_yesterdays_credit_covered_is_no_problem_of_today(books: Books) -> None:
    caller = caller_of(capped(100, "daily"))
    await books.accounting.credit(caller.account, top_up("0.00000005"))
    running = await books.admit(caller, call_for(150))
    books.now = books.bank.today.end_s
    assert await problems(books) == []
    books.settle(running, 20)
    assert await problems(books) == []


async def test_rows_that_have_waited_for_days_are_added_to_what_is_stored(books: Books) -> None:
    caller = caller_of(capped(1_000, "daily"))
    running = [await books.admit(caller, call_for(10)) for _ in range(3)]
    for each in running:
        books.settle(each, 10)
        books.now = books.bank.today.end_s
    await books.accounting.credit(caller.account, top_up("0.00000005"))
    assert await problems(books) == []


TAMPERINGS: dict[str, tuple[Callable[[Books], object], str]] = {
    "a charge in memory": (
        lambda books: setattr(books.bank.find_balance("key", 7).lifetime, "spent_nanos", 39),
        "key 7: spent is 39, its entries say 40",
    ),
    "a charge of this month": (
        lambda books: setattr(books.bank.find_balance("key", 8).monthly.current, "spent_nanos", 24),
        "key 8: spent this month is 24, its entries say 23",
    ),
    "a charge of today": (
        lambda books: setattr(books.bank.find_balance("account", 1).daily.current, "spent_nanos", 0),
        "account 1: spent today is 0, its entries say 31",
    ),
    "a credit in memory": (
        lambda books: setattr(books.bank.find_balance("account", 1).lifetime, "credit_nanos", 151),
        "account 1: credited is 151, its entries say 150",
    ),
    "a credit of today": (
        lambda books: setattr(books.bank.find_balance("account", 1).daily.current, "credit_nanos", 0),
        "account 1: credited today is 0, its entries say 50",
    ),
    "a whole purse": (
        lambda books: books.bank._keys.pop(7),
        "key 7: spent is 0, its entries say 40",
    ),
    "a purse of nobody": (
        lambda books: books.bank.find_balance("key", 99).add_credit(5, books.bank.today),
        "key 99: credited is 5, its entries say 0",
    ),
    "money that is held for nobody": (
        lambda books: books.bank.find_balance("key", 7).hold(3),
        "key 7: 3 held, its holds say 0",
    ),
    "a hold that was lost": (
        lambda books: books.bank.holds.clear(),
        "account 1: 20 held, its holds say 0",
    ),
    "more than a cap": (
        lambda books: setattr(books.bank.find_balance("account", 1), "held_nanos", 2_000),
        "account 1: more is spent and held than its cap and its overrun allow",
    ),
    "a refund nobody gave": (
        lambda books: setattr(books.bank.find_balance("key", 7).lifetime, "spent_nanos", -1),
        "key 7: more is spent and held than its cap and its overrun allow",
    ),
    "an entry that was deleted": (
        lambda books: books.disk.database.change(delete(entries).where(FIRST_CHARGE)),
        "key 7: 23 charged in entries, 33 in the sums of its days, 33 in its requests",
    ),
    "an entry that was changed": (
        lambda books: books.disk.database.change(
            update(entries).where(FIRST_CHARGE).values(amount_nanos=entries.c.amount_nanos + 1)
        ),
        "key 7: 34 charged in entries, 33 in the sums of its days, 33 in its requests",
    ),
    "a credit that was deleted": (
        lambda books: books.disk.database.change(delete(entries).where(FIRST_CREDIT)),
        "account 1: credited is 150, its entries say 100",
    ),
    "a row that waits twice": (
        lambda books: books.outbox.put(books.outbox.look()[0]),
        "key 7: spent is 40, its entries say 47",
    ),
    "a row that was dropped": (
        lambda books: books.outbox.take(1),
        "key 7: spent is 40, its entries say 33",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_the_audit_finds_what_was_tampered_with(books: Books, name: str) -> None:
    await busy(books)
    tamper, told = TAMPERINGS[name]
    await run(tamper(books))
    found = await problems(books)
    assert any(problem.startswith(told) for problem in found), found


async def test_calls_go_on_while_the_books_are_audited(tmp_path: Path) -> None:
    disk = SlowDisk()
    books = Books(tmp_path, disk=disk)
    await busy(books)
    caller = caller_of(capped(1_000, "monthly"), capped(500))
    running = await books.admit(caller, call_for(30))
    auditing = await begin(books.accounting.reconcile(), disk)
    books.settle(running, 30)
    await books.spend(caller, 5)
    flushing = asyncio.create_task(books.flush.flush())
    crediting = asyncio.create_task(books.accounting.credit(caller.key, top_up("1")))
    await asyncio.sleep(0)
    disk.go.set()
    report = await auditing
    assert (report["problems"], report["open_holds"], report["waiting_rows"]) == ([], 2, 1)
    assert await flushing
    await crediting
    assert await problems(books) == []
    books.close()


async def test_an_audit_waits_for_rows_that_are_on_their_way_to_the_store(tmp_path: Path) -> None:
    disk = SlowDisk()
    books = Books(tmp_path, disk=disk)
    await books.spend(caller_of(), 5)
    flushing = await begin(books.flush.flush(), disk)
    auditing = asyncio.create_task(books.accounting.reconcile())
    await asyncio.sleep(0)
    disk.go.set()
    report = await auditing
    assert (report["problems"], report["waiting_rows"], report["charged_nanos"]) == ([], 0, 5)
    assert await flushing
    books.close()


# jobs, whose money is held from their beginning to their end, whoever asked for them


@attrs.frozen
class Studio:
    """Jobs over ``books``; no provider is asked."""

    books: Books
    videos: Videos
    store: VideoRepository

    def propose(self, number: int, nanos: int) -> tuple[VideoJob, Reservation]:
        """A job that is neither on record nor known to have its money, which is held."""
        caller = caller_of(capped(1_000), capped(500))
        ctx = self.books.arrive(caller, call_for(nanos))
        ctx.reservation = held = self.books.bank.hold(caller, nanos)
        row = build_record(ctx, "interrupted", None, **self.books.times)
        receipt = attrs.evolve(row, attempts=1)
        job = VideoJob(f"video_{number}", receipt, "a cat", state="queued", held_nanos=nanos, cost_nanos=nanos - 5)
        return job, held

    async def begin(self, number: int, nanos: int) -> VideoJob:
        """A job that goes on."""
        job, held = self.propose(number, nanos)
        await self.store.create(job)
        self.videos.hold(job, held)
        return job


@pytest.fixture
def studio(books: Books) -> Studio:
    return build_studio(books)


def build_studio(books: Books, store: VideoRepository | None = None) -> Studio:
    store = store or VideoRepository(books.disk.database)
    videos = Videos(
        store,
        books.bank,
        books.outbox,
        None,  # type: ignore[arg-type]
        rules=VideoRules,
        clock=lambda: books.now,
    )
    books.accounting.jobs = videos
    return Studio(books, videos, store)


async def test_what_jobs_hold_is_told_beside_what_calls_hold(books: Books, studio: Studio) -> None:
    running = await books.admit(caller_of(capped(1_000), capped(500)), call_for(20))
    first, second, free = [await studio.begin(number, nanos) for number, nanos in ((1, 30), (2, 40), (3, 0))]
    report = await books.accounting.reconcile()
    assert report["ok"], report["problems"]
    assert (report["open_holds"], report["video_holds"]) == (1, 3)
    assert (report["held_usd"], report["video_held_usd"]) == (90 / DOLLAR, 70 / DOLLAR)
    assert await studio.videos.complete(first)
    assert await studio.videos.fail(second, CANCELLED)
    assert await studio.videos.fail(free, CANCELLED)
    books.settle(running, 20)
    report = await books.accounting.reconcile()
    assert report["ok"], report["problems"]
    assert (report["open_holds"], report["video_holds"], report["held_usd"], report["waiting_rows"]) == (0, 0, 0, 1)
    assert report["charged_nanos"] == 25


JOB_TAMPERINGS: dict[str, tuple[Callable[[Studio], object], str]] = {
    "a hold that nobody knows of": (
        lambda studio: studio.videos._holds.pop("video_1"),
        "video_1: no hold is open, its record says 30",
    ),
    "a job that is no more": (
        lambda studio: forget_jobs(studio, videos.c.id == "video_1"),
        "video_1: 30 held, and there is no such job that goes on",
    ),
    "a record of another amount": (
        lambda studio: tamper_job(studio, "video_1", held_nanos=31),
        "video_1: 30 held, its record says 31",
    ),
    "a hold that somebody else let go of": (
        lambda studio: studio.books.bank.release(studio.videos._holds["video_1"]),
        "account 1: 40 held, its jobs alone say 70",
    ),
    "a hold on another account": (
        lambda studio: tamper_job(studio, "video_1", receipt=attrs.evolve(ROW, account_id=2, key_id=7)),
        "account 2: 0 held, its jobs alone say 30",
    ),
    "a job that ended past its hold": (
        lambda studio: tamper_job(studio, "video_1", state="failed"),
        "video_1: 30 held, and there is no such job that goes on",
    ),
    "an end without its row": (
        lambda studio: tamper_job(studio, "video_3", receipt=attrs.evolve(ROW, id="req_lost")),
        "video_3: it has ended, and its request is not stored",
    ),
    "an end at another cost": (
        lambda studio: tamper_job(studio, "video_3", cost_nanos=1),
        "video_3: it has ended, and its request is not stored, or not with its cost",
    ),
}


async def tamper_job(studio: Studio, name: str, **changes: Any) -> None:
    job = await studio.store.find(name)
    assert job is not None
    await put_job(studio.store, attrs.evolve(job, **changes))


async def forget_jobs(studio: Studio, *which: Any) -> None:
    await studio.books.disk.database.change(delete(videos).where(*which))


async def run(tampering: object) -> None:
    """Wait for what was tampered with, if that is in the database."""
    if isinstance(tampering, Awaitable):
        await tampering


@pytest.mark.parametrize("name", JOB_TAMPERINGS)
async def test_the_audit_finds_what_was_tampered_with_of_a_job(books: Books, studio: Studio, name: str) -> None:
    await studio.begin(1, 30)
    await studio.begin(2, 40)
    await studio.videos.complete(await studio.begin(3, 50))
    assert await problems(books) == []
    tamper, told = JOB_TAMPERINGS[name]
    await run(tamper(studio))
    found = await problems(books)
    assert any(problem.startswith(told) for problem in found), found
    assert len(found) == len(set(found))


async def test_a_job_that_is_on_record_a_moment_before_its_money_is_its_own_is_no_problem(
    books: Books, studio: Studio
) -> None:
    job, held = studio.propose(1, 30)
    await studio.store.create(job)
    asyncio.get_running_loop().call_later(LOOK_AGAIN_S / 2, studio.videos.hold, job, held)
    assert await problems(books) == []
    assert studio.videos.list_held() == {"video_1": 30}


async def test_a_job_that_is_struck_off_a_moment_before_its_money_is_free_is_no_problem(
    books: Books, studio: Studio
) -> None:
    job = await studio.begin(1, 30)
    await forget_jobs(studio)
    asyncio.get_running_loop().call_later(LOOK_AGAIN_S / 2, studio.videos.release, job)
    assert await problems(books) == []
    assert (await books.accounting.reconcile())["held_usd"] == 0


class Restless(VideoRepository):
    """At every look another job has just been put on record, and is refused right after."""

    looks = 0

    async def list_open(self) -> Sequence[VideoJob]:
        self.looks += 1
        passing = VideoJob(f"video_1{self.looks}", ROW, "a dog", held_nanos=30)
        return [*await super().list_open(), passing]


async def test_another_job_at_every_look_is_one_that_comes_and_goes(books: Books) -> None:
    store = Restless(books.disk.database)
    await build_studio(books, store).begin(1, 30)
    assert await problems(books) == []
    assert store.looks == 2


async def test_no_job_ends_while_the_books_are_audited(tmp_path: Path) -> None:
    disk = SlowDisk()
    books = Books(tmp_path, disk=disk)
    studio = build_studio(books)
    job = await studio.begin(1, 30)
    auditing = await begin(books.accounting.reconcile(), disk)
    ending = asyncio.create_task(studio.videos.complete(job))
    await asyncio.sleep(0)
    disk.go.set()
    report = await auditing
    assert (report["problems"], report["video_holds"], report["charged_nanos"]) == ([], 1, 0)
    assert await ending
    report = await books.accounting.reconcile()
    assert (report["problems"], report["video_holds"], report["charged_nanos"]) == ([], 0, 25)
    books.close()


# the same over the database, where the sums of the days are a table of their own


@pytest.fixture
async def database(tmp_path: Path, template_path: Path) -> AsyncIterator[Database]:
    if not template_path.exists():
        await make_template(template_path)
    opened = await open_database(f"sqlite:///{shutil.copy(template_path, tmp_path / 'gateway.db')}")
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("statement", "told"),
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
    books: Books, database: Database, statement: str, told: list[str]
) -> None:
    ledger = LedgerRepository(database)
    accounting = AccountingService(books.bank, ledger, books.outbox, clock=lambda: NOON)
    await books.spend(caller_of(), 5)
    await accounting.credit(caller_of(capped(DOLLAR)).account, top_up("2"))
    await LedgerFlusher(books.outbox, ledger, books.journal).flush()
    await database.change(text(statement))
    found = (await accounting.reconcile())["problems"]
    assert bool(found) is bool(told)
    for problem in told:
        assert any(line.startswith(problem) for line in found), found
