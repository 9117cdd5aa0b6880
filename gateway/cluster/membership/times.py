"""The times of nodes. They must be consistent (``tests/cluster/membership/test_times.py``)."""

from gateway.frozen import quick_frozen


@quick_frozen
class ClusterTimes:
    """How long the nodes of a cluster wait, in seconds. All nodes of a cluster use the same times.

    They are constants in operation; tests of several nodes use shorter ones.

    Attributes:
        beat_s: the time between two beats of a node, and between two checks of the other nodes.
        retry_s: the time until a failed beat is tried again.
        statement_s: the time limit of a statement of ``NodeSession``; then the connection is closed and replaced.
        fence_s: how long after its last beat a node takes requests.
        ride_through_s: how long requests are accepted while rows cannot be stored: the rows wait in memory and in the
            journal.
        credit_wait_s: how long a request waits for a store that does not answer, enough for a restart of the server.
        late_s: a node that has not served for so long gets no share of the work.
        dead_s: a node without a beat for so long is declared dead.
        lost_s: after such a gap in reading beats, for instance without the store, missing beats prove nothing, and the
            watch restarts.
        stuck_s: how long a transaction may wait for its node while it blocks another one. A working node sends its
            next statement within milliseconds.
        notes_s: the time between two searches for dead nodes with started requests.
    """

    beat_s: float = 2.0
    retry_s: float = 0.5
    statement_s: float = 2.0
    fence_s: float = 10.0
    ride_through_s: float = 10.0
    credit_wait_s: float = 8.0
    late_s: float = 10.0
    dead_s: float = 20.0
    lost_s: float = 5.0
    stuck_s: float = 2.0
    notes_s: float = 2.0


RESTORE_S = 10.0
"""The longest wait, after the database was replaced, for nodes that store again what the new server lacks, in seconds.
By then a node that cannot reach this server is fenced (``ClusterTimes.fence_s``), and spends nothing more."""
SLOW_RESTORE_S = 60.0
"""The longest such wait, in seconds, for a node that goes on sending beats to the new server: it may only be busy."""
TIMES = ClusterTimes()
"""The times of nodes in operation."""
