"""A gateway whose times as a node are shorter than in operation.

python -m tests.support.quick_nodes PROFILE serve --data DATA …

A profile shortens no more than a test waits for: on a busy machine a node with a near fence refuses requests.
"""

import sys
from functools import partial

import attrs

from gateway.cluster.membership.times import ClusterTimes

FREQUENT = ClusterTimes(beat_s=0.5, retry_s=0.1, notes_s=0.5)
"""For nodes that hear of each other, lead one after the other and are restarted."""
FENCED = attrs.evolve(FREQUENT, fence_s=2.5, ride_through_s=2.5, credit_wait_s=2.0, late_s=2.5)
"""For nodes that lose touch with the store, and are not declared dead."""
MORTAL = attrs.evolve(FENCED, statement_s=1.0, dead_s=5.0, lost_s=1.75)
"""For nodes that are declared dead."""
PATIENT = attrs.evolve(FREQUENT, fence_s=60.0, ride_through_s=60.0, credit_wait_s=50.0, late_s=60.0, dead_s=120.0)
"""For nodes whose store is away for longer on a busy machine than requests usually wait."""
PROFILES = {"frequent": FREQUENT, "fenced": FENCED, "mortal": MORTAL, "patient": PATIENT}


if __name__ == "__main__":
    from gateway import options

    profile, *words = sys.argv[1:]
    times = PROFILES[profile]
    options.AppOptions = partial(options.AppOptions, cluster_times=times)  # type: ignore[misc, assignment]

    from gateway.cli.main import main

    main(words)
