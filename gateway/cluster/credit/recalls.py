"""The credit that this node has recalled from the others, and the nodes that have answered."""

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
    """

    sent_s: float
    holder_count: int
    answered_nodes: set[str] = attrs.Factory(set)

    @property
    def is_complete(self) -> bool:
        return len(self.answered_nodes) >= self.holder_count


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

    def note_answer(self, balance: LeasedBalance, node: str) -> bool:
        recall = self._last_recalls.get(balance)
        if recall is None:
            return False
        recall.answered_nodes.add(node)
        return recall.is_complete

    def is_answered(self, balance: LeasedBalance, since_s: float) -> bool:
        """Return whether a recall was sent at or after ``since_s``, and every node with idle credit has answered."""
        recall = self._last_recalls.get(balance)
        return recall is not None and recall.sent_s >= since_s and recall.is_complete

    def sweep(self, now_s: float) -> None:
        self._last_recalls = {
            balance: recall for balance, recall in self._last_recalls.items() if recall.sent_s + _MAX_AGE_S > now_s
        }
