"""Tells whether a kept state belongs to an earlier process of a node."""

from gateway.domain.node import parse_process


def is_former(owner: str, process: str) -> bool:
    """Return whether ``owner`` is an earlier process of the node of ``process``."""
    owner_process, own_process = parse_process(owner), parse_process(process)
    return (
        owner_process is not None
        and own_process is not None
        and owner_process[0] == own_process[0]
        and owner_process[1] < own_process[1]
    )
