"""Divides work among the nodes of a cluster by rendezvous hashing: who leaves or joins moves only its own share."""

from collections.abc import Iterable
from hashlib import blake2b

_BYTES = 8


def pick_node(name: str, nodes: Iterable[str]) -> str | None:
    """Return the one of ``nodes`` that does what is called ``name``, the same at every node; None if there is none.

    Rendezvous hashing (Thaler and Ravishankar, 1998): the node whose hash with the name is the highest.
    """
    return max(nodes, key=lambda node: (_rank(node, name), node), default=None)


def _rank(node: str, name: str) -> bytes:
    return blake2b(f"{node} {name}".encode(), digest_size=_BYTES).digest()
