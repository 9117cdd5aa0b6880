"""Finds limits that will be used up early, and hours that cost far more than usual, from the hourly sums."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median

from gateway.config.schema import BillingSection
from gateway.domain.account_spec import build_time
from gateway.domain.alert import Condition, Findings
from gateway.domain.forecast import HOUR_S, LimitUse, compute_anomaly_bound, is_burning
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.traffic import DAY_HOURS
from gateway.errors import StoreUnavailable
from gateway.storage.traffic import TrafficRepository

SPENDING_READ_INTERVAL_S = 300.0
"""The hourly sums are read only this often."""
ANOMALY_DAYS = 14
"""How many earlier days an hour is compared with."""
MAX_COMPARISONS = 200
"""For how many hours earlier days are read at a time, hours of keys first. Other hours follow at later readings."""

OwnerId = tuple[int, int | None]
"""An account and its key; None for the whole account."""
HourCosts = Mapping[OwnerId, Mapping[int, int]]
"""What each key and account has spent in nano-USD, by hour (counted in UTC since 1970)."""


class SpendingWatch:
    """Compares the spending of this and the last hour with limits and with earlier days, at most every five minutes.

    ``find_settings`` returns the section ``[billing]`` in force.
    """

    def __init__(
        self, traffic: TrafficRepository, find_settings: Callable[[], BillingSection], clock: Callable[[], float]
    ) -> None:
        self._traffic = traffic
        self._find_settings = find_settings
        self._clock = clock
        self._read_s = float("-inf")
        self._findings = Findings()
        self._earlier_costs: dict[tuple[OwnerId, int], Sequence[int]] = {}

    async def check(
        self, list_limits: Callable[[], Iterable[LimitUse]], list_names: Callable[[], Mapping[OwnerId, str]]
    ) -> Findings:
        """Return the conditions at present. Windows that have not ended are ``unknown``, so each is reported once.

        ``list_names`` returns the names of the keys and accounts that exist. If the store does not answer, the result
        is that of the last reading.
        """
        now_s = int(self._clock())
        if abs(now_s - self._read_s) >= SPENDING_READ_INTERVAL_S:
            with suppress(StoreUnavailable):
                self._findings = await self._read(list_limits, list_names, now_s)
                self._read_s = now_s
        return self._findings

    async def _read(
        self, list_limits: Callable[[], Iterable[LimitUse]], list_names: Callable[[], Mapping[OwnerId, str]], now_s: int
    ) -> Findings:
        settings = self._find_settings()
        limit_uses = list(list_limits()) if settings.burn_rate else []
        if not limit_uses and not settings.anomaly_factor:
            return Findings()
        costs = await self._read_costs(now_s // HOUR_S)
        conditions = [*find_burning_limits(limit_uses, costs, now_s, settings.burn_rate)]
        if settings.anomaly_factor:
            conditions += await self._find_anomalies(costs, list_names(), settings)
        return Findings(
            tuple(conditions), frozenset([("budget_burning", name_window(limit_use)) for limit_use in limit_uses])
        )

    async def _read_costs(self, hour: int) -> HourCosts:
        """Return the costs of ``hour`` and of the one before."""
        costs: defaultdict[OwnerId, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        for cost in await self._traffic.list_key_costs((hour - 1, hour)):
            costs[cost.account_id, cost.key_id][cost.hour] += cost.cost_nanos
            costs[cost.account_id, None][cost.hour] += cost.cost_nanos
        return costs

    async def _find_anomalies(
        self, costs: HourCosts, names: Mapping[OwnerId, str], settings: BillingSection
    ) -> list[Condition]:
        """Return a condition for each hour that cost far more than on earlier days.

        If a key is reported for an hour, its account is not.
        """
        min_nanos = int(settings.anomaly_usd * NANOS_PER_USD)
        expensive_hours = [
            (owner_id, hour, cost_nanos)
            for owner_id, hours in costs.items()
            if owner_id in names
            for hour, cost_nanos in hours.items()
            if cost_nanos > min_nanos
        ]
        expensive_hours.sort(key=lambda expensive_hour: (expensive_hour[0][1] is None, -expensive_hour[2]))
        await self._read_earlier([(owner_id, hour) for owner_id, hour, _ in expensive_hours])
        conditions: list[Condition] = []
        reported_accounts: set[tuple[int, int]] = set()
        for owner_id, hour, cost_nanos in expensive_hours:
            earlier_costs = self._earlier_costs.get((owner_id, hour))
            if earlier_costs is None or (owner_id[1] is None and (owner_id[0], hour) in reported_accounts):
                continue
            if cost_nanos > compute_anomaly_bound(earlier_costs, settings.anomaly_factor, min_nanos):
                reported_accounts.add((owner_id[0], hour))
                conditions.append(_build_anomaly(owner_id, names[owner_id], hour, cost_nanos, earlier_costs))
        return conditions

    async def _read_earlier(self, expensive_hours: Sequence[tuple[OwnerId, int]]) -> None:
        """Remember what each owner of ``expensive_hours`` spent at that hour of the last ``ANOMALY_DAYS`` days.

        Forget the costs for other hours. At most ``MAX_COMPARISONS`` hours that are not remembered yet are read.
        """
        self._earlier_costs = {
            expensive_hour: self._earlier_costs[expensive_hour]
            for expensive_hour in expensive_hours
            if expensive_hour in self._earlier_costs
        }
        new_hours = [expensive_hour for expensive_hour in expensive_hours if expensive_hour not in self._earlier_costs]
        for (account_id, key_id), hour in new_hours[:MAX_COMPARISONS]:
            hours = range(hour - ANOMALY_DAYS * DAY_HOURS, hour, DAY_HOURS)
            costs = await self._traffic.sum_costs(1, hours, account_id, key_id)
            self._earlier_costs[(account_id, key_id), hour] = [costs.get(earlier_hour, 0) for earlier_hour in hours]


def find_burning_limits(
    limit_uses: Iterable[LimitUse], costs: HourCosts, now_s: int, factor: float
) -> Iterator[Condition]:
    """Yield a condition for each limit whose pace uses it up in less than 1 / ``factor`` of the rest of its window.

    The pace is the spending of the last sixty minutes: that of the running hour, and a share of that of the hour
    before.
    """
    hour = now_s // HOUR_S
    earlier_share = 1 - now_s % HOUR_S / HOUR_S
    for limit_use in limit_uses:
        if limit_use.account_id is None or limit_use.ended_s is None:
            continue
        hours = costs.get((limit_use.account_id, limit_use.key_id), {})
        hour_nanos = hours.get(hour, 0) + int(hours.get(hour - 1, 0) * earlier_share)
        if is_burning(limit_use, hour_nanos, now_s, factor):
            yield build_burning(limit_use, hour_nanos, now_s)


def build_burning(limit_use: LimitUse, hour_nanos: int, now_s: int) -> Condition:
    """Return the condition that ``limit_use``, which has windows, is used up early."""
    end_s = now_s + limit_use.left_nanos * HOUR_S // hour_nanos
    return Condition(
        "budget_burning",
        name_window(limit_use),
        f"The {limit_use.title} has spent {_usd(hour_nanos)} in the last hour. At this pace its budget of "
        f"{_usd(limit_use.limit_nanos)} is used up at {build_time(end_s)}, and its requests are then refused "
        f"until {build_time(limit_use.ended_s or 0)}. See: gateway usage --forecast",
        group=f"limit {limit_use.limit_name}" if limit_use.limit_name else "",
    )


def name_window(limit_use: LimitUse) -> str:
    """Return the subject of an alert about a limit: its title and the start of its window."""
    return f"{limit_use.title} since {build_time(limit_use.started_s)}"


def _build_anomaly(owner_id: OwnerId, name: str, hour: int, cost_nanos: int, earlier_costs: Sequence[int]) -> Condition:
    start = build_time(hour * HOUR_S)
    option = f"--account {name.partition(' ')[2]!r}" if owner_id[1] is None else f"--key {owner_id[1]}"
    return Condition(
        "spending_anomaly",
        f"{name} {start}",
        f"The {name} has spent {_usd(cost_nanos)} in the hour that began at {start}. The median of the same hour in "
        f"the last {ANOMALY_DAYS} days is {_usd(int(median(earlier_costs)))}. See its requests with: gateway requests "
        f"{option} --since {start}",
    )


def _usd(amount_nanos: int) -> str:
    return f"${amount_nanos / NANOS_PER_USD:,.2f}"
