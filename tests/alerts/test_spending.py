"""Limits that burn and hours that are far from usual: each told once, also over restarts, from sums in a database."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from typing_extensions import override

from gateway.alerts.spending import (
    ANOMALY_DAYS,
    MAX_COMPARISONS,
    HourCosts,
    OwnerId,
    SpendingWatch,
    find_burning_limits,
)
from gateway.alerts.watcher import AlertWatcher
from gateway.config.schema import BillingSection
from gateway.domain.alert import Findings
from gateway.domain.balance import DAY_S
from gateway.domain.forecast import HOUR_S, LimitUse
from gateway.domain.traffic import KeyCost
from gateway.errors import StoreUnavailable
from gateway.storage.alerts import AlertRepository
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.traffic import TrafficRepository
from tests.support.database_kinds import KINDS
from tests.support.postgres import SharedPostgres
from tests.support.request_records import charge, read_ms
from tests.support.stores import copy_template
from tests.support.table_rows import table_rows

USD = 10**9
MIDNIGHT_S = read_ms("2026-11-30 00:00") // 1000
NOON_S = MIDNIGHT_S + 12 * HOUR_S
FIVE_MINUTES_S = 300
NAMES: dict[OwnerId, str] = {
    (1, 11): "key acme/app",
    (1, 12): "key acme/web",
    (1, None): "account acme",
    (2, 21): "key rival/app",
    (2, None): "account rival",
}


class CountingTraffic(TrafficRepository):
    """Counts the statements, and fails them all while ``away``."""

    statements = 0
    away = False

    @override
    async def list_key_costs(self, hours: Sequence[int]) -> Sequence[KeyCost]:
        self._count()
        return await super().list_key_costs(hours)

    @override
    async def sum_costs(self, *args: Any) -> Any:
        self._count()
        return await super().sum_costs(*args)

    def _count(self) -> None:
        self.statements += 1
        if self.away:
            raise StoreUnavailable("away")


@attrs.define
class World:
    """A database, the watch of its sums, and the watcher that sends what the watch finds."""

    database: Database
    settings: BillingSection = attrs.Factory(BillingSection)
    now_s: float = NOON_S
    limit_uses: list[LimitUse] = attrs.Factory(list)
    charges: int = 0
    names: dict[OwnerId, str] = attrs.Factory(lambda: dict(NAMES))
    traffic: CountingTraffic = attrs.field(init=False)
    watch: SpendingWatch = attrs.field(init=False)
    watcher: AlertWatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.traffic = CountingTraffic(self.database)
        self.restart()

    def restart(self) -> None:
        self.watch = SpendingWatch(self.traffic, lambda: self.settings, lambda: self.now_s)
        self.watcher = AlertWatcher(self.collect, AlertRepository(self.database), [], lambda: self.now_s)

    async def collect(self) -> Findings:
        return await self.watch.check(lambda: self.limit_uses, lambda: self.names)

    async def spend(self, usd: float, at_s: float | None = None, key: int = 11) -> None:
        self.charges += 1
        at_ms = round((self.now_s if at_s is None else at_s) * 1000)
        row = charge(self.charges, round(usd * USD), at_ms=at_ms, key=key)
        await LedgerRepository(self.database).post([row])

    async def spend_earlier(self, usd: float, key: int = 11) -> None:
        """Spend at this hour on each of the last 14 days."""
        days = range(1, ANOMALY_DAYS + 1)
        rows = [
            charge(f"{key}-{day}", round(usd * USD), at_ms=round((self.now_s - day * DAY_S) * 1000), key=key)
            for day in days
        ]
        await LedgerRepository(self.database).post(rows)

    async def see(self, after_s: float = FIVE_MINUTES_S) -> list[str]:
        """The subjects of the alerts that are sent, in order."""
        self.now_s += after_s
        before = len(self.watcher.recent)
        await self.watcher.check()
        return sorted(alert.subject for alert in self.watcher.recent[: len(self.watcher.recent) - before])


@pytest.fixture(params=KINDS)
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, template_path: Path, shared_postgres: SharedPostgres
) -> AsyncIterator[World]:
    path = await copy_template(template_path, tmp_path)
    url = f"sqlite:///{path}" if request.param == "sqlite" else await shared_postgres.empty()
    database = await open_database(url)
    yield World(database)
    await database.close()


def day_use(spent_usd: float, limit_usd: float = 10, start_s: int = MIDNIGHT_S) -> LimitUse:
    limit_nanos, spent_nanos = int(limit_usd * USD), int(spent_usd * USD)
    return LimitUse("key acme/app", limit_nanos, spent_nanos, start_s, start_s + DAY_S, 1, 11)


@table_rows(
    "last_usd, this_usd, minute, expected",
    [
        (2.1, 0, 0, True),
        (2.0, 0, 0, False),
        (2.1, 0, 10, False),
        (2.1, 0.5, 10, True),
        (0, 2.1, 0, True),
        (140, 0, 59, True),
        (100, 0, 59, False),
    ],
)
def test_the_last_hour_is_the_running_one_and_the_rest_of_the_one_before(
    last_usd: float, this_usd: float, minute: int, *, expected: bool
) -> None:
    hour = NOON_S // HOUR_S
    costs: HourCosts = {(1, 11): {hour - 1: int(last_usd * USD), hour: int(this_usd * USD)}}
    now_s = NOON_S + 60 * minute
    assert bool(list(find_burning_limits([day_use(4)], costs, now_s, 4))) is expected
    assert not list(find_burning_limits([attrs.evolve(day_use(4), key_id=12)], costs, now_s, 4))
    assert not list(find_burning_limits([attrs.evolve(day_use(4), account_id=None)], costs, now_s, 4))
    assert not list(find_burning_limits([attrs.evolve(day_use(4), ended_s=None)], costs, now_s, 4))


async def test_a_limit_that_burns_is_told_once_in_its_window(world: World) -> None:
    world.limit_uses = [day_use(4), attrs.evolve(day_use(4, 1000), name="account acme", key_id=None)]
    assert await world.see(0) == []
    await world.spend(3)
    assert await world.see() == ["key acme/app since 2026-11-30T00:00:00Z"]
    (alert,) = world.watcher.recent
    assert alert.kind == "budget_burning"
    assert alert.message == (
        "The key acme/app has spent $3.00 in the last hour. At this pace its budget of $10.00 is used up at "
        "2026-11-30T14:05:00Z, and its requests are then refused until 2026-12-01T00:00:00Z. "
        "See: gateway usage --forecast"
    )
    assert await world.see() == []
    assert await world.see(2 * HOUR_S) == []  # it has stopped
    world.restart()
    assert await world.see() == []
    await world.spend(5)
    assert await world.see() == []  # it burns again, in the same window
    world.now_s = NOON_S + DAY_S
    world.limit_uses = [day_use(4, start_s=MIDNIGHT_S + DAY_S)]
    await world.spend(3)
    world.restart()
    assert await world.see() == ["key acme/app since 2026-12-01T00:00:00Z"]


async def test_an_hour_far_above_its_median_is_told_once_of_its_key(world: World) -> None:
    await world.spend_earlier(0.5)
    await world.spend(2.4)
    assert await world.see() == []
    await world.spend(0.2)
    assert await world.see() == ["key acme/app 2026-11-30T12:00:00Z"]
    (alert,) = world.watcher.recent
    assert alert.kind == "spending_anomaly"
    assert alert.message == (
        "The key acme/app has spent $2.60 in the hour that began at 2026-11-30T12:00:00Z. The median of the same hour "
        "in the last 14 days is $0.50. See its requests with: gateway requests --key 11 --since 2026-11-30T12:00:00Z"
    )
    await world.spend(9)
    assert await world.see() == []
    world.restart()
    assert await world.see() == []
    for _ in range(5):
        assert await world.see(HOUR_S) == []


async def test_the_end_of_an_hour_is_compared_in_the_next_one(world: World) -> None:
    await world.spend_earlier(0.5)
    assert await world.see(59 * 60) == []
    await world.spend(4)
    assert await world.see() == ["key acme/app 2026-11-30T12:00:00Z"]


async def test_an_account_is_told_if_none_of_its_keys_is(world: World) -> None:
    for key in (11, 12):
        await world.spend_earlier(0.1, key=key)
        await world.spend(0.9, key=key)
    assert await world.see() == ["account acme 2026-11-30T12:00:00Z"]
    assert "--account 'acme'" in world.watcher.recent[0].message


async def test_an_hour_without_history_has_a_higher_floor(world: World) -> None:
    await world.spend(9.9)
    assert await world.see() == []
    await world.spend(0.2)
    assert await world.see() == ["key acme/app 2026-11-30T12:00:00Z"]


async def test_a_key_that_is_deleted_is_not_told(world: World) -> None:
    world.names = {}
    await world.spend(100)
    assert await world.see() == []


async def test_sums_are_read_every_five_minutes_and_earlier_days_once(world: World) -> None:
    await world.spend(100)
    assert len(await world.see()) == 1
    assert world.traffic.statements == 3  # both hours; the key's earlier days, the account's
    for _ in range(19):
        assert await world.see(15) == []
    assert world.traffic.statements == 3
    assert await world.see(15) == []
    assert world.traffic.statements == 4


async def test_what_is_off_reads_nothing(world: World) -> None:
    world.limit_uses = [day_use(4)]
    await world.spend(100)
    world.settings = BillingSection(burn_rate=0, anomaly_factor=0)
    assert await world.see() == []
    assert world.traffic.statements == 0
    world.settings = BillingSection(burn_rate=0)
    assert await world.see() == ["key acme/app 2026-11-30T12:00:00Z"]
    world.settings = BillingSection(anomaly_factor=0)
    assert await world.see() == ["key acme/app since 2026-11-30T00:00:00Z"]
    world.limit_uses = []
    statements = world.traffic.statements
    assert await world.see() == []
    assert world.traffic.statements == statements


async def test_a_reading_compares_so_many_hours_and_the_next_one_the_others(world: World) -> None:
    keys = range(10, 10 + MAX_COMPARISONS + 5)
    world.names = {(key // 10, key): f"key {key}" for key in keys}
    rows = [charge(key, 20 * USD + key, at_ms=int(world.now_s * 1000), key=key) for key in keys]
    await LedgerRepository(world.database).post(rows)
    first = (await world.collect()).conditions
    assert len(first) == MAX_COMPARISONS
    assert first[-1].subject == "key 15 2026-11-30T12:00:00Z"  # the five least expensive are left
    world.now_s += FIVE_MINUTES_S
    assert len((await world.collect()).conditions) == MAX_COMPARISONS + 5


async def test_while_the_store_is_away_nothing_ends(world: World) -> None:
    await world.spend(100)
    assert len(await world.see()) == 1
    world.traffic.away = True
    assert len((await world.collect()).conditions) == 1
    assert await world.see() == []
    assert len((await world.collect()).conditions) == 1
    world.traffic.away = False
    await world.spend(100, key=21)
    assert await world.see(15) == ["key rival/app 2026-11-30T12:00:00Z"]  # it is read again at once
