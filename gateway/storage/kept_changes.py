"""The last changes that a node has stored. A server that replaces the database may lack them."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal, Protocol

KeptKind = Literal[
    "video", "file", "upload", "upload_part", "batch", "response", "response_owner", "named_request", "session"
]
"""What is kept: the jobs of ``videos``, with their ends, and rows of other tables."""


class KeptChanges(Protocol):
    """Keeps the latest states of objects that were changed lately, outside the database."""

    def keep(self, kind: KeptKind, key: str, state: Mapping[str, Any]) -> None:
        """Keep the new state of one object. A field that is None keeps its former value.

        Called after the commit, or before it if the state counts even without a commit.
        """
        ...

    def check(self) -> None:
        """Raise ``StoreUnavailable`` if the database was replaced, and the kept changes are not in it again yet.

        Called when an object is missing that may be among these changes.
        """
        ...


def encode_bytes(value: bytes) -> str:
    """Return ``value`` as a field of a state."""
    return b64encode(value).decode()


def decode_bytes(text: str) -> bytes:
    """Return the value that ``encode_bytes`` has encoded."""
    return b64decode(text)
