"""The credit that this node has recalled from the others, and the nodes that have answered."""

import math
from collections.abc import Mapping

import attrs

from gateway.domain.leased_balance import LeasedBalance

MIN_INTERVAL_S = 0.1
"""The least time between two recalls of a balance."""
_MAX_AGE_S = 5.0


@attrs.define
class Recall:
    """The last recall of a balance.

    Attributes:
        sent_s: when it was sent, in seconds of a monotonic clock.
        holder_count: the number of nodes that had idle credit.
        answered_nodes: the nodes that have answered.
        answered_s: when the last of the nodes with idle credit answered; infinite before.
    """

    sent_s: float
    holder_count: int
    answered_nodes: set[str] = attrs.Factory(set)
    answered_s: float = math.inf

    @property
    def is_complete(self) -> bool:
        return len(self.answered_nodes) >= self.holder_count

    def add_answer(self, node: str, now_s: float) -> None:
        self.answered_nodes.add(node)
        if self.is_complete:
            self.answered_s = min(self.answered_s, now_s)


class Recalls:
    """The last recall of each balance."""

    def __init__(self) -> None:
        self._last_recalls: dict[LeasedBalance, Recall] = {}

    def find_next_s(self, balance: LeasedBalance) -> float:
        recall = self._last_recalls.get(balance)
        return 0.0 if recall is None else recall.sent_s + MIN_INTERVAL_S

    def note_sent(self, holder_counts: Mapping[LeasedBalance, int], now_s: float) -> None:
        """Record that balances are recalled now. ``holder_counts``: the number of nodes that should answer for each."""
        self._last_recalls |= {balance: Recall(now_s, node_count) for balance, node_count in holder_counts.items()}

    def note_answer(self, balance: LeasedBalance, node: str, now_s: float) -> bool:
        """Record that ``node`` has answered; return whether every node with idle credit has."""
        recall = self._last_recalls.get(balance)
        if recall is None:
            return False
        recall.add_answer(node, now_s)
        return recall.is_complete

    def find_answered_s(self, balance: LeasedBalance, since_s: float) -> float:
        """Return when every node with idle credit had answered a recall sent at or after ``since_s``; else infinity."""
        recall = self._last_recalls.get(balance)
        return math.inf if recall is None or recall.sent_s < since_s else recall.answered_s

    def sweep(self, now_s: float) -> None:
        self._last_recalls = {
            balance: recall for balance, recall in self._last_recalls.items() if recall.sent_s + _MAX_AGE_S > now_s
        }
