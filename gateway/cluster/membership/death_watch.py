"""Detects dead nodes: those whose beats have stopped, measured by this node's own clock."""

from collections.abc import Mapping, Sequence

from gateway.cluster.membership.times import ClusterTimes

Registration = tuple[str, int]
"""A node's id and epoch."""


class DeathWatch:
    """The beats of every node as seen by this node; the leader may be the dead one, so every node watches."""

    def __init__(self, times: ClusterTimes) -> None:
        self._times = times
        self._last_beats: dict[Registration, tuple[int, float]] = {}
        self._last_check_s = float("-inf")

    def forget(self) -> None:
        self._last_beats.clear()

    def record_beats(self, beats: Mapping[Registration, int], now_s: float) -> Sequence[Registration]:
        """Record the ``beats`` of the live nodes; return those that have sent none for ``ClusterTimes.dead_s`` seconds.

        ``now_s``: seconds of a monotonic clock that includes the time while this machine sleeps.
        """
        if now_s - self._last_check_s > self._times.lost_s:
            self.forget()
        self._last_check_s = now_s
        dead_nodes = []
        last_beats: dict[Registration, tuple[int, float]] = {}
        for node, beat in beats.items():
            former_beat, since_s = self._last_beats.get(node, (beat, now_s))
            last_beats[node] = (beat, now_s if beat != former_beat else since_s)
            if now_s - last_beats[node][1] >= self._times.dead_s:
                dead_nodes.append(node)
        self._last_beats = last_beats
        return dead_nodes
