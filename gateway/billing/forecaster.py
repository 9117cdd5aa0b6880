"""Forecasts of limits from the hourly and daily sums in the database. Nothing here runs while a request is handled."""

from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest

from gateway.domain.forecast import (
    HOUR_S,
    Forecast,
    LimitUse,
    SpendingHistory,
    build_history,
    forecast,
    list_history_slots,
)
from gateway.storage.traffic import TrafficRepository

MAX_FORECASTS = 200
"""Maximum of forecasts in a list, because each forecast reads sums of its own."""


class SpendingForecaster:
    """Forecasts when limits are reached."""

    def __init__(self, traffic: TrafficRepository, clock: Callable[[], float]) -> None:
        self._traffic = traffic
        self._clock = clock

    async def forecast_limits(self, limit_uses: Iterable[LimitUse], count: int) -> Sequence[tuple[LimitUse, Forecast]]:
        """Return forecasts of the ``count`` limits that are used up fastest, the next to be reached first.

        There are at most ``MAX_FORECASTS``; ``LimitUse.rank`` decides which.
        """
        now_s = self._clock()
        chosen_uses = nlargest(min(count, MAX_FORECASTS), limit_uses, key=lambda limit_use: limit_use.rank(now_s))
        forecasts = [(limit_use, await self.forecast_limit(limit_use)) for limit_use in chosen_uses]
        return sorted(forecasts, key=lambda pair: _order(*pair))

    async def forecast_limit(self, limit_use: LimitUse) -> Forecast:
        """Return the forecast of one limit."""
        now_s = self._clock()
        return forecast(limit_use, await self._read_history(limit_use, now_s), now_s)

    async def _read_history(self, limit_use: LimitUse, now_s: float) -> SpendingHistory | None:
        if limit_use.account_id is None:
            return None
        slots = list_history_slots(limit_use, now_s)
        span = slots.slot_s // HOUR_S
        hours = [number * span for number in slots.numbers]
        costs = await self._traffic.sum_costs(span, hours, limit_use.account_id, limit_use.key_id)
        return build_history(slots.slot_s, {hour // span: nanos for hour, nanos in costs.items()}, now_s)


def _order(limit_use: LimitUse, result: Forecast) -> tuple[float, float]:
    """Return the sort key: by the moment at which the limit is reached, then by the expected share of it."""
    reached_s = float("inf") if result.reached_s is None else result.reached_s
    expected_nanos = limit_use.spent_nanos if result.expected_nanos is None else result.expected_nanos
    return reached_s, -expected_nanos / max(limit_use.limit_nanos, 1)
