"""Sums of traffic in memory. They ship, and keep the same contract as the database's."""

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from gateway.domain.request_log import RequestRecord
from gateway.domain.traffic import (
    DAY_HOURS,
    MOST_FACETS,
    SUMS,
    Facet,
    Facets,
    Place,
    Sums,
    TimeRange,
    TrafficAxis,
    TrafficFilter,
    TrafficLine,
    add,
    cover,
    sum_up,
)

_NOTHING = (0,) * len(SUMS)


class MemoryTraffic:
    """``domain.traffic.Traffic`` in a dictionary; for the books in memory to write to."""

    def __init__(self) -> None:
        self._sums: dict[Place, Sums] = {}

    def add(self, rows: Iterable[RequestRecord]) -> None:
        """Rows were stored."""
        for place, sums in sum_up(rows).items():
            self._sums[place] = add(self._sums.get(place, _NOTHING), sums)

    def forget_hour(self, before: int) -> int:
        """Delete the traffic of the oldest hour; how many sums there were."""
        oldest = min((place[1] for place in self._sums if place[0] == 1), default=before)
        doomed = [place for place in self._sums if place[:2] == (1, oldest) and oldest < before]
        for place in doomed:
            del self._sums[place]
        return len(doomed)

    async def list_traffic(self, axis: TrafficAxis, wanted: TrafficFilter) -> Sequence[TrafficLine]:
        """Traffic summed along ``axis``."""
        hours = [TimeRange(1, wanted.since, wanted.until)]
        found: dict[int | str, Sums] = {}
        for place, sums in self._find(hours if axis == "hour" else cover(wanted.since, wanted.until), wanted):
            label = _label(place, axis)
            found[label] = add(found.get(label, _NOTHING), sums)
        lines = [TrafficLine(str(label), *sums) for label, sums in sorted(found.items())]
        return lines if axis in {"day", "hour"} else sorted(lines, key=lambda line: (-line.cost_nanos, -line.requests))

    async def list_facets(self, wanted: TrafficFilter) -> Facets:
        """The values that requests have, and how many; all of them are counted."""
        return Facets(
            wanted.since,
            wanted.until,
            models=self._count("model", attrs.evolve(wanted, model=None)),
            keys=self._count("key", attrs.evolve(wanted, key_id=None)),
            statuses=self._count("status", attrs.evolve(wanted, status=None, verdict=None)),
            channels=self._count("channel", attrs.evolve(wanted, channel=None)),
        )

    def _count(self, axis: TrafficAxis, wanted: TrafficFilter) -> list[Facet]:
        found: Counter[int | str] = Counter()
        for place, (requests, failed, *_) in self._find(cover(wanted.since, wanted.until), wanted):
            counts = {"error": failed, "ok": requests - failed}
            found[_label(place, axis)] += counts.get(wanted.verdict or "", requests)
        best = sorted((-count, value) for value, count in found.items() if count and value != "")
        return [Facet(str(value), -count) for count, value in best[:MOST_FACETS]]

    def _find(self, stretches: Iterable[TimeRange], wanted: TrafficFilter) -> list[tuple[Place, Sums]]:
        """The sums of all stretches."""
        return [
            (place, sums)
            for one in stretches
            for place, sums in self._sums.items()
            if place[0] == one.span and one.since <= place[1] < one.until and wanted.matches(place)
        ]


def _label(place: Place, axis: TrafficAxis) -> int | str:
    _, hour, account_id, key_id, model, channel, status = place
    labels: dict[TrafficAxis, int | str] = {
        "day": hour // DAY_HOURS,
        "hour": hour,
        "model": model,
        "key": key_id,
        "account": account_id,
        "status": status,
        "channel": channel,
    }
    return labels[axis]
