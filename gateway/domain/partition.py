"""Divides work among cluster nodes by rendezvous hashing: a node that joins or leaves moves only its own share."""

from collections.abc import Iterable
from hashlib import blake2b

_DIGEST_BYTES = 8


def pick_node(name: str, nodes: Iterable[str]) -> str | None:
    """Return the node responsible for ``name``, by rendezvous hashing (Thaler and Ravishankar, 1998).

    None without nodes.
    """
    return max(nodes, key=lambda node: (_rank(node, name), node), default=None)


def _rank(node: str, name: str) -> bytes:
    return blake2b(f"{node} {name}".encode(), digest_size=_DIGEST_BYTES).digest()
