"""The numbers of all advisory locks that have one number; those of nodes have two (``cluster.membership.backends``)."""

SOLE_USER_LOCK = 7_130_000
"""A single gateway holds this lock exclusively; the nodes of a cluster share it."""
WRITES_LOCK = 7_130_001
"""A write holds this lock, exclusively if it excludes all other writes."""
START_LOCK = 7_130_002
"""A starting node holds this lock while it registers."""
CHANGES_LOCK = 7_130_003
"""A transaction that logs a change holds this lock until its end."""
BRING_BACK_LOCK = 7_130_004
"""A node holds this lock while it stores again what a failover has lost."""
UPGRADE_LOCK = 7_130_005
"""The node that upgrades the schema holds this lock; others try again and again."""
OVERRUNS_LOCK = 7_130_006
"""A node that records what exceeds limits after a failover holds this lock until its transaction ends."""
LIMIT_TABLES_LOCK = 7_130_031
"""A node that creates the tables and functions of rate limits holds this lock."""
