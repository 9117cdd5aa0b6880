"""Why kept bodies cannot be read."""


class BodiesUnreadable(Exception):
    """Kept bodies cannot be read; the message says why."""


class BodiesNotShared(BodiesUnreadable):
    """The bodies can be read soon: another node moves them to the shared store."""


class BodiesOutOfReach(BodiesUnreadable):
    """The bodies can be read when the shared store answers again."""


class SegmentUnreadable(BodiesOutOfReach):
    """The shared store answers, but the segment cannot be read: a file without permission, or a broken object."""
