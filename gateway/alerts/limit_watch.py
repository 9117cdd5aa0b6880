"""Finds subjects of limits, such as end users, that have spent the soft share, or will soon use up the limit."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.alerts.spending import OwnerId, build_burning, name_window
from gateway.billing.live_limits import LiveLimits
from gateway.config.schema import BillingSection
from gateway.deferred import defer_function
from gateway.domain.account_spec import build_time
from gateway.domain.alert import Condition, Findings, Subject
from gateway.domain.forecast import HOUR_S, LimitUse, is_burning
from gateway.domain.price import usd
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.storage.limit_counters import LimitCounters

if TYPE_CHECKING:  # only if a limit is configured
    from gateway.domain.limit import Limit

LIMITS_READ_INTERVAL_S = 60.0
"""The sums of limits are read only this often."""
MAX_WATCHED_SUBJECTS = 1_000
"""Maximum number of subjects of a limit that are watched: those that have spent most."""
_SAMPLE_INTERVAL_S = 300.0
"""Interval of the samples of what subjects have spent. Samples of the last hour are kept, to compute the pace."""
_BURNING_KINDS = frozenset({"day", "week", "month", "quarter"})
"""The kinds of windows whose limits are compared with the pace of the last hour."""
_list_highest = defer_function("billing.limit_subjects:list_highest")
_measure_subjects = defer_function("billing.limit_subjects:measure_subjects")


@frozen
class _Sample:
    """By subject, the start of the window and what the subject had spent in it at ``at_s``, in nano-USD.

    ``unlisted_nanos`` is the most that a subject outside ``spent_by_subject`` can have spent.
    """

    at_s: float
    spent_by_subject: Mapping[str, tuple[int, int]]
    unlisted_nanos: int

    def find_spent_nanos(self, subject: str, start_s: int) -> int:
        """Return the most that a subject can have spent by ``at_s`` in the window that began at ``start_s``."""
        if start_s > self.at_s:
            return 0
        known_start_s, spent_nanos = self.spent_by_subject.get(subject, (start_s, self.unlisted_nanos))
        return spent_nanos if start_s == known_start_s else 0


class LimitWatch:
    """Compares what subjects have spent with the soft shares of their limits, and their pace with what is left.

    Args:
        find_settings: returns the section ``[billing]`` in force.
    """

    def __init__(
        self,
        limits: LiveLimits,
        counters: LimitCounters,
        find_settings: Callable[[], BillingSection],
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._find_settings = find_settings
        self._clock = clock
        self._read_s = float("-inf")
        self._findings = Findings()
        self._samples: dict[str, deque[_Sample]] = {}

    async def check(self, list_names: Callable[[], Mapping[OwnerId, str]]) -> Findings:
        """Return the current conditions. Subjects whose window has not ended are ``unknown``, so each is reported once.

        ``list_names`` returns the names of the keys and accounts that exist. If the store does not answer, the result
        is that of the last reading.
        """
        now_s = self._clock()
        if self._limits.spending is not None and abs(now_s - self._read_s) >= LIMITS_READ_INTERVAL_S:
            with suppress(StoreUnavailable):
                self._findings = await self._read(list_names, now_s)
                self._read_s = now_s
        return self._findings

    async def _read(self, list_names: Callable[[], Mapping[OwnerId, str]], now_s: float) -> Findings:
        burn_rate = self._find_settings().burn_rate
        limits = list(self._list_limits(now_s, burn_rate))
        counters = {limit.counter for limit in limits}
        self._samples = {counter: samples for counter, samples in self._samples.items() if counter in counters}
        names = list_names() if limits else {}
        conditions: list[Condition] = []
        watched: set[Subject] = set()
        for limit in limits:
            highest = await _list_highest(self._limits.spending, limit, self._counters, now_s, MAX_WATCHED_SUBJECTS)
            uses: list[tuple[str, LimitUse]] = _measure_subjects(limit, highest, names)
            conditions += find_past_soft(limit, [use for _, use in uses])
            if burn_rate and limit.window.kind in _BURNING_KINDS:
                conditions += self._find_burning(limit, uses, now_s, burn_rate)
                watched |= {("budget_burning", name_window(use)) for _, use in uses}
            if not limit.window.rolling_s:
                watched |= {("limit_soft", _name_soft_subject(use)) for _, use in uses}
        return Findings(tuple(conditions), frozenset(watched))

    def _list_limits(self, now_s: float, burn_rate: float) -> Iterator["Limit"]:
        """Yield the money limits in force with a soft share and, given a ``burn_rate``, those of ``_BURNING_KINDS``."""
        for limit in () if self._limits.spending is None else self._limits.spending.limits:
            is_watched = limit.soft_share is not None or (burn_rate and limit.window.kind in _BURNING_KINDS)
            if is_watched and limit.raises is None and limit.cap_nanos is not None and not limit.has_ended(now_s):
                yield limit

    def _find_burning(
        self, limit: "Limit", uses: Sequence[tuple[str, LimitUse]], now_s: float, burn_rate: float
    ) -> Iterator[Condition]:
        """Yield a condition for each subject that reaches the limit early at the pace of the last hour.

        Also forgets samples older than an hour and, after the last condition, takes a new one if one is due.
        """
        spent_by_subject = {subject: (use.started_s, use.spent_nanos) for subject, use in uses}
        samples = self._samples.setdefault(limit.counter, deque())
        while samples and not 0 <= now_s - samples[0].at_s <= HOUR_S:
            samples.popleft()
        for subject, use in uses if samples else ():
            hour_nanos = use.spent_nanos - samples[0].find_spent_nanos(subject, use.started_s)
            if is_burning(use, hour_nanos, int(now_s), burn_rate):
                yield build_burning(use, hour_nanos, int(now_s))
        if spent_by_subject and (not samples or now_s - samples[-1].at_s >= _SAMPLE_INTERVAL_S):
            is_full = len(spent_by_subject) >= MAX_WATCHED_SUBJECTS
            unlisted_nanos = min(nanos for _, nanos in spent_by_subject.values()) if is_full else 0
            samples.append(_Sample(now_s, spent_by_subject, unlisted_nanos))


def find_past_soft(limit: "Limit", uses: Iterable[LimitUse]) -> Iterator[Condition]:
    """Yield a condition for each of ``uses`` of which the soft share is spent. All conditions form one group."""
    soft_share = limit.soft_share
    if soft_share is None:
        return
    for use in uses:
        if use.limit_nanos > 0 and use.spent_nanos >= int(use.limit_nanos * soft_share):
            until = "" if use.ended_s is None else f" until {build_time(use.ended_s)}"
            yield Condition(
                "limit_soft",
                _name_soft_subject(use),
                f"The {use.title} has spent ${usd(use.spent_nanos)} of {limit.format_cap(use.limit_nanos)}, which is "
                f"{use.spent_nanos * 100 // use.limit_nanos} %. At 100 % its requests are refused{until}. To raise the "
                f"limit for a time: gateway limits raise {limit.name!r}",
                group=f"limit {limit.name}",
            )


def _name_soft_subject(use: LimitUse) -> str:
    return use.title if use.ended_s is None else name_window(use)
