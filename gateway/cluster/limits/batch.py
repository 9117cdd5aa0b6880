"""One command to the server of rate limits, and its answer. ``gateway.domain.limit_server`` describes both."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import orjson

from gateway.domain.rate_limit import Limits

LOOK, PART, FULL = 0, 1, 2
"""Kinds of calls: check only; take units; take units and places."""
REQUESTS: Literal[0] = 0
TOKENS: Literal[1] = 1

Wish = tuple[Any, int, int, int, int]
"""A name and, for units ahead: the rate, units, limit, burst."""


class LimitBatch:
    """Builds a command. Names get provisional positions and are sorted at the end."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._limits: dict[tuple[str, Limits], int] = {}
        self._fixes: list[tuple[str, int, int, int]] = []
        self._checks: list[tuple[int, int, list[int]]] = []
        self._ahead: list[tuple[str, int, int, int, int]] = []

    def report(self, name: str, running: int) -> None:
        self._running[name] = running

    def add_correction(self, name: str, what: int, units: int, limit: int) -> None:
        self._running.setdefault(name, -1)
        self._fixes.append((name, what, units, limit))

    def add_check(self, kind: int, tokens: int, subjects: Sequence[tuple[str, Limits]]) -> None:
        for name, _ in subjects:
            self._running.setdefault(name, -1)
        positions = [self._limits.setdefault(subject, len(self._limits) + 1) for subject in subjects]
        self._checks.append((kind, tokens, positions))

    def add_wish(self, name: str, what: int, units: int, rate: tuple[int, int]) -> None:
        """Request units ahead. ``rate`` consists of limit and burst."""
        self._ahead.append((name, what, units, *rate))

    def build(self, head: dict[str, object]) -> bytes:
        names = sorted(self._running)
        place = {name: number for number, name in enumerate(names, 1)}
        return orjson.dumps(
            {
                **head,
                "names": [(name, self._running[name]) for name in names],
                "limits": [(place[name], *_list_numbers(limits)) for name, limits in self._limits],
                "fixes": [(place[name], *fix) for name, *fix in self._fixes],
                "calls": self._checks,
                "ahead": [(place[name], *wish) for name, *wish in self._ahead],
            }
        )


def _list_numbers(limits: Limits) -> Iterator[int]:
    yield limits.rpm or 0
    yield limits.find_request_burst(limits.rpm or 0)
    yield limits.tpm or 0
    yield limits.max_concurrency or 0
