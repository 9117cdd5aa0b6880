"""The credit that this node has recalled from the others, and the nodes that have answered."""

from collections.abc import Mapping

import attrs

from gateway.domain.leased_balance import LeasedBalance

EVERY_S = 0.1
"""The least time between two recalls of a balance."""
_KEPT_S = 5.0


@attrs.define
class Recall:
    """The last recall of a balance. ``holders``: the number of nodes with credit; ``answered``: nodes that replied."""

    sent_s: float
    holders: int
    answered: set[str] = attrs.Factory(set)

    @property
    def complete(self) -> bool:
        return len(self.answered) >= self.holders


class Recalls:
    """The last recall of each balance."""

    def __init__(self) -> None:
        self._last: dict[LeasedBalance, Recall] = {}

    def find_next_s(self, balance: LeasedBalance) -> float:
        last = self._last.get(balance)
        return 0.0 if last is None else last.sent_s + EVERY_S

    def note_sent(self, holders: Mapping[LeasedBalance, int], now_s: float) -> None:
        """Record that balances are recalled now. ``holders``: the number of nodes that should answer for each."""
        self._last |= {balance: Recall(now_s, count) for balance, count in holders.items()}

    def note_answer(self, balance: LeasedBalance, node: str) -> bool:
        last = self._last.get(balance)
        if last is None:
            return False
        last.answered.add(node)
        return last.complete

    def is_answered(self, balance: LeasedBalance, since_s: float) -> bool:
        """Return whether a recall was sent since then and every node has answered."""
        last = self._last.get(balance)
        return last is not None and last.sent_s >= since_s and last.complete

    def sweep(self, now_s: float) -> None:
        self._last = {balance: last for balance, last in self._last.items() if last.sent_s + _KEPT_S > now_s}
