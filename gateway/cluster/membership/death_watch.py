"""Decides which nodes are dead: those whose beats have ended, by this node's own clock."""

from collections.abc import Mapping, Sequence

DEAD_S = 20.0
LOST_S = 5.0
"""Beats that were not read for this long, for instance because the store was away, prove nothing: it watches anew."""

Registration = tuple[str, int]
"""A node and its epoch."""


class DeathWatch:
    """What this node has seen of every node's beats.

    Each node watches, not only the leader: the leader may be the one that is dead.
    """

    def __init__(self) -> None:
        self._seen: dict[Registration, tuple[int, float]] = {}
        self._last_s = float("-inf")

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()

    def observe(self, beats: Mapping[Registration, int], now_s: float) -> Sequence[Registration]:
        """Take in the ``beats`` of the live nodes, and return those that had none for ``DEAD_S`` seconds.

        ``now_s``: seconds of a monotonic clock that counts the time while this machine sleeps.
        """
        if now_s - self._last_s > LOST_S:
            self.forget()
        self._last_s = now_s
        dead = []
        seen: dict[Registration, tuple[int, float]] = {}
        for node, beat in beats.items():
            before, since_s = self._seen.get(node, (beat, now_s))
            seen[node] = (beat, now_s if beat != before else since_s)
            if now_s - seen[node][1] >= DEAD_S:
                dead.append(node)
        self._seen = seen
        return dead
