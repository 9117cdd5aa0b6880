"""Detects dead nodes: those whose beats have stopped, measured by this node's own clock."""

from collections.abc import Mapping, Sequence

from gateway.cluster.membership.times import ClusterTimes

Registration = tuple[str, int]
"""A node's id and epoch."""


class DeathWatch:
    """The beats of every node as seen by this node; the leader may be the dead one, so every node watches."""

    def __init__(self, times: ClusterTimes) -> None:
        self._times = times
        self._seen: dict[Registration, tuple[int, float]] = {}
        self._last_s = float("-inf")

    def forget(self) -> None:
        self._seen.clear()

    def observe(self, beats: Mapping[Registration, int], now_s: float) -> Sequence[Registration]:
        """Record the ``beats`` of the live nodes, and return the nodes without a beat for ``dead_s`` seconds.

        ``now_s``: seconds of a monotonic clock that includes the time while this machine sleeps.
        """
        if now_s - self._last_s > self._times.lost_s:
            self.forget()
        self._last_s = now_s
        dead = []
        seen: dict[Registration, tuple[int, float]] = {}
        for node, beat in beats.items():
            before, since_s = self._seen.get(node, (beat, now_s))
            seen[node] = (beat, now_s if beat != before else since_s)
            if now_s - seen[node][1] >= self._times.dead_s:
                dead.append(node)
        self._seen = seen
        return dead
