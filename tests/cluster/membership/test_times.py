"""The times of nodes agree with each other, in operation and in the tests of several nodes."""

import pytest

from gateway.cluster.membership.times import TIMES, ClusterTimes
from gateway.storage.postgres.database import LOCK_TIMEOUT_S
from tests.support.quick_nodes import PROFILES


@pytest.mark.parametrize("times", [TIMES, *PROFILES.values()], ids=["operation", *PROFILES])
def test_the_times_of_nodes_agree(times: ClusterTimes) -> None:
    assert times.fence_s + 2 * times.beat_s + times.statement_s < times.dead_s, (
        "a node takes no requests before it is declared dead"
    )
    assert times.credit_wait_s < times.ride_through_s <= times.fence_s, (
        "a request that waits for credit is answered before the node refuses all requests"
    )
    assert times.beat_s + times.statement_s < times.lost_s < times.dead_s, "a beat that was read late is no gap"
    assert times.stuck_s + 2 * times.beat_s < LOCK_TIMEOUT_S, (
        "writes wait longer than it takes to end a stuck transaction"
    )
    assert 2 * times.beat_s < times.late_s <= times.fence_s, "a node without a share of the work still takes requests"
