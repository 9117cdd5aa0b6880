"""Whose work a kept state is."""

from gateway.domain.node import parse_process


def is_former(owner: str, process: str) -> bool:
    """Return whether ``owner`` is an earlier process of the node of ``process``."""
    theirs, ours = parse_process(owner), parse_process(process)
    return theirs is not None and ours is not None and theirs[0] == ours[0] and theirs[1] < ours[1]
