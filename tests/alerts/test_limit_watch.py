"""Subjects of limits past their soft share, or used up early: told once, many together, from sums in a database."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import attrs
import pytest
from typing_extensions import override

from gateway.alerts.limit_watch import LIMITS_READ_INTERVAL_S, MAX_WATCHED_SUBJECTS, LimitWatch
from gateway.alerts.watcher import AlertWatcher
from gateway.billing.limit_spec import LimitSpec
from gateway.billing.live_limits import LiveLimits
from gateway.billing.write_queue import WriteQueue
from gateway.config.schema import BillingSection
from gateway.domain.alert import Findings
from gateway.domain.balance import DAY_S
from gateway.domain.forecast import HOUR_S
from gateway.domain.limit import build_charges
from gateway.errors import StoreUnavailable
from gateway.storage.alerts import AlertRepository
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.limit_counters import ALL_SUBJECTS, LimitCounters, SubjectChoice
from gateway.storage.open import open_database
from tests.support.database_kinds import KINDS
from tests.support.postgres import SharedPostgres
from tests.support.request_records import charge, read_ms
from tests.support.stores import copy_template

USD = 10**9
MIDNIGHT_S = read_ms("2026-11-30 00:00") // 1000
NOON_S = MIDNIGHT_S + 12 * HOUR_S
EACH_USER = LimitSpec("each user", of="user", usd=Decimal(1), window="day", soft=0.8)
NAMES = {(1, None): "account acme", (1, 11): "key acme/app"}


class CountingCounters(LimitCounters):
    """Counts the statements, and fails them all while ``away``."""

    statements = 0
    away = False

    @override
    async def list_highest(
        self, counter: str, since_s: int, count: int, choice: SubjectChoice = ALL_SUBJECTS, *, offset: int = 0
    ) -> dict[str, int]:
        self.statements += 1
        if self.away:
            raise StoreUnavailable("away")
        return await super().list_highest(counter, since_s, count, choice, offset=offset)


@attrs.define
class World:
    """A database with limits, the watch of their sums, and the watcher that sends what the watch finds."""

    database: Database
    settings: BillingSection = attrs.Factory(BillingSection)
    now_s: float = NOON_S
    rows: int = 0
    limits: LiveLimits = attrs.field(init=False)
    counters: CountingCounters = attrs.field(init=False)
    watcher: AlertWatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.limits = LiveLimits(self.database, WriteQueue(), lambda: self.now_s)
        self.counters = CountingCounters(self.database)
        self.restart()

    def restart(self) -> None:
        watch = LimitWatch(self.limits, self.counters, lambda: self.settings, lambda: self.now_s)

        async def collect() -> Findings:
            return await watch.check(lambda: NAMES)

        self.watcher = AlertWatcher(collect, AlertRepository(self.database), [], lambda: self.now_s)

    def set_limit(self, spec: LimitSpec) -> None:
        self.limits.replace([spec])

    async def spend(self, usd: float, *subjects: str) -> None:
        """Let each of ``subjects`` spend so much under the first limit, now."""
        assert self.limits.spending is not None
        limit = self.limits.spending.limits[0]
        start_s = limit.window.find(self.now_s, limit.build_zone())[0]
        rows = []
        for subject in subjects:
            self.rows += 1
            row = charge(self.rows, round(usd * USD), at_ms=round(self.now_s * 1000), key=11)
            rows.append(attrs.evolve(row, limit_charges=build_charges([(limit.counter, subject, start_s)])))
        await LedgerRepository(self.database).post(rows)

    async def see(self, after_s: float = LIMITS_READ_INTERVAL_S) -> list[str]:
        """The kinds and subjects of the alerts that are sent."""
        self.now_s += after_s
        before = len(self.watcher.recent)
        await self.watcher.check()
        sent = self.watcher.recent[: len(self.watcher.recent) - before]
        return sorted(f"{alert.kind} {alert.subject}" for alert in sent)


@pytest.fixture(params=KINDS)
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, template_path: Path, shared_postgres: SharedPostgres
) -> AsyncIterator[World]:
    path = await copy_template(template_path, tmp_path)
    url = f"sqlite:///{path}" if request.param == "sqlite" else await shared_postgres.empty()
    database = await open_database(url)
    yield World(database, BillingSection(burn_rate=0))
    await database.close()


async def test_a_subject_is_told_once_in_its_window(world: World) -> None:
    world.set_limit(EACH_USER)
    await world.spend(0.79, "1:u-17")
    assert await world.see() == []
    await world.spend(0.06, "1:u-17")
    assert await world.see() == ["limit_soft limit each user"]
    assert world.watcher.recent[0].message == (
        "The user 'u-17' of the account acme (limit 'each user') has spent $0.85 of $1 per day, which is 85 %. At "
        "100 % its requests are refused until 2026-12-01T00:00:00Z. To raise the limit for a time: gateway limits "
        "raise 'each user'"
    )
    assert await world.see(2 * HOUR_S) == []
    world.restart()
    assert await world.see(2 * HOUR_S) == []
    world.now_s += DAY_S
    assert await world.see() == []
    await world.spend(0.9, "1:u-17")
    assert await world.see() == ["limit_soft limit each user"]


async def test_a_thousand_subjects_at_once_are_one_alert_and_later_ones_wait_for_the_hour(world: World) -> None:
    world.set_limit(EACH_USER)
    await world.spend(0.9, *(f"1:u-{number:04}" for number in range(990)))
    assert await world.see() == ["limit_soft limit each user"]
    message = world.watcher.recent[0].message
    assert "The same holds for 989 more: user 'u-0001' of the account acme (limit 'each user') since 2026" in message
    assert message.endswith(", …")
    assert len(message) < 2_000
    await world.spend(0.9, "1:late", "1:later")
    assert await world.see(1_800) == []
    world.restart()
    assert await world.see(1_700) == []
    assert await world.see(100) == ["limit_soft limit each user"]
    assert "The user 'late' of" in world.watcher.recent[0].message
    assert "for 1 more: user 'later' of" in world.watcher.recent[0].message
    assert await world.see(2 * HOUR_S) == []


async def test_of_many_subjects_those_with_the_highest_spending_are_looked_at(world: World) -> None:
    world.set_limit(EACH_USER)
    await world.spend(0.9, *(f"1:u-{number}" for number in range(MAX_WATCHED_SUBJECTS + 5)))
    assert await world.see() == ["limit_soft limit each user"]
    assert f"for {MAX_WATCHED_SUBJECTS - 1} more" in world.watcher.recent[0].message


async def test_in_a_rolling_window_a_subject_is_told_again_when_it_was_below(world: World) -> None:
    world.set_limit(attrs.evolve(EACH_USER, window="rolling:24h"))
    await world.spend(0.9, "1:u-17")
    assert await world.see() == ["limit_soft limit each user"]
    assert await world.see(DAY_S // 2) == []
    assert await world.see(DAY_S // 2 + HOUR_S) == []
    await world.spend(0.9, "1:u-17")
    assert await world.see(HOUR_S) == ["limit_soft limit each user"]


async def test_a_raised_limit_has_a_higher_line_and_a_deleted_account_is_not_told(world: World) -> None:
    fair = LimitSpec("fair", raises="each user", usd=Decimal(1))
    world.limits.replace([EACH_USER, fair])
    await world.spend(1.5, "1:u-17", "2:u-17")
    assert await world.see() == []
    await world.spend(0.1, "1:u-17")
    assert await world.see() == ["limit_soft limit each user"]
    assert "$1.6 of $2 per day, which is 80 %" in world.watcher.recent[0].message
    assert "same holds" not in world.watcher.recent[0].message


async def test_a_subject_whose_pace_uses_up_its_limit_is_told_once(world: World) -> None:
    world.settings = BillingSection(burn_rate=4)
    world.set_limit(LimitSpec("each key", of="key", usd=Decimal(10), window="day"))
    await world.spend(4, "11")
    assert await world.see() == []
    await world.spend(0.4, "11")
    assert await world.see(HOUR_S // 2) == []
    await world.spend(1.6, "11")
    assert await world.see(HOUR_S // 4) == ["budget_burning limit each key"]
    assert world.watcher.recent[0].message == (
        "The key acme/app (limit 'each key') has spent $2.00 in the last hour. At this pace its budget of $10.00 is "
        "used up at 2026-11-30T14:46:00Z, and its requests are then refused until 2026-12-01T00:00:00Z. "
        "See: gateway usage --forecast"
    )
    world.restart()
    assert await world.see() == []
    await world.spend(1.6, "11")
    assert await world.see(HOUR_S // 4) == []


async def test_what_was_spent_more_than_an_hour_ago_is_no_pace(world: World) -> None:
    world.settings = BillingSection(burn_rate=4)
    world.set_limit(LimitSpec("each key", of="key", usd=Decimal(10), window="day"))
    await world.spend(1, "11")
    assert await world.see() == []
    await world.spend(5, "11")
    for _ in range(3):
        world.now_s += 1_300
        world.restart()  # a new process does not know what was spent before
        assert await world.see() == []
    assert await world.see(2 * HOUR_S) == []


async def test_sums_are_read_once_a_minute_and_while_the_store_is_away_nothing_ends(world: World) -> None:
    assert await world.see() == []
    assert world.counters.statements == 0, "without a limit, nothing is read"
    world.set_limit(attrs.evolve(EACH_USER, soft=None))
    assert await world.see() == []
    assert world.counters.statements == 0, "without a soft share, nothing is read"
    world.set_limit(EACH_USER)
    await world.spend(0.9, "1:u-17")
    assert await world.see(0) == []
    assert await world.see() == ["limit_soft limit each user"]
    assert await world.see(15) == []
    assert world.counters.statements == 1
    world.counters.away = True
    assert await world.see(2 * HOUR_S) == []
    world.counters.away = False
    assert await world.see(2 * HOUR_S) == []
    assert world.counters.statements == 3
