"""Builds one command to the server of rate limits; ``gateway.domain.limit_server`` describes its fields."""

from collections.abc import Iterator, Sequence
from typing import Literal

import orjson

from gateway.domain.rate_limit import Limits

KIND_CHECK, KIND_UNITS, KIND_PERMIT = 0, 1, 2
"""Kinds of calls: check only; take units; take units and count the running request."""
REQUESTS: Literal[0] = 0
TOKENS: Literal[1] = 1


class LimitBatch:
    """Builds a command from what is added. ``build`` sorts the names and refers to them by their positions."""

    def __init__(self) -> None:
        self._running_counts: dict[str, int] = {}
        self._limits: dict[tuple[str, Limits], int] = {}
        self._corrections: list[tuple[str, int, int, int]] = []
        self._checks: list[tuple[int, int, list[int]]] = []
        self._ahead_requests: list[tuple[str, int, int, int, int]] = []

    def report(self, name: str, running_count: int) -> None:
        self._running_counts[name] = running_count

    def add_correction(self, name: str, dimension: int, units: int, limit: int) -> None:
        self._running_counts.setdefault(name, -1)
        self._corrections.append((name, dimension, units, limit))

    def add_check(self, kind: int, tokens: int, subjects: Sequence[tuple[str, Limits]]) -> None:
        for name, _ in subjects:
            self._running_counts.setdefault(name, -1)
        positions = [self._limits.setdefault(subject, len(self._limits) + 1) for subject in subjects]
        self._checks.append((kind, tokens, positions))

    def request_ahead(self, name: str, dimension: int, units: int, rate: tuple[int, int]) -> None:
        """Request units ahead, of ``REQUESTS`` or ``TOKENS``. ``rate`` is the limit per minute and the burst."""
        self._ahead_requests.append((name, dimension, units, *rate))

    def build(self, header: dict[str, object]) -> bytes:
        names = sorted(self._running_counts)
        position_by_name = {name: position for position, name in enumerate(names, 1)}
        return orjson.dumps(
            {
                **header,
                "names": [(name, self._running_counts[name]) for name in names],
                "limits": [(position_by_name[name], *_list_numbers(limits)) for name, limits in self._limits],
                "fixes": [(position_by_name[name], *correction) for name, *correction in self._corrections],
                "calls": self._checks,
                "ahead": [(position_by_name[name], *ahead_request) for name, *ahead_request in self._ahead_requests],
            }
        )


def _list_numbers(limits: Limits) -> Iterator[int]:
    yield limits.rpm or 0
    yield limits.find_request_burst(limits.rpm or 0)
    yield limits.tpm or 0
    yield limits.max_concurrency or 0
