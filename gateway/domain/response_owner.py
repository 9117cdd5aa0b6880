"""Whose a response is that its provider has stored: the provider knows the gateway alone, and none of its accounts."""

from typing import Protocol

import attrs

KEPT_MS = 30 * 24 * 3_600 * 1000
"""As long as providers keep responses (the convention's API reference, ``store``)."""
LONGEST_ID = 256


@attrs.frozen
class ResponseOwner:
    """The account that made a response, and the channel that it was made over."""

    account_id: int
    channel: str


class ResponseOwnerStore(Protocol):
    """Where owners are kept. Raises ``StoreUnavailable``."""

    async def add_owner(self, response_id: str, owner: ResponseOwner, now_ms: int) -> None:
        """Put an owner on record; the first one of an id stays."""
        ...

    async def find_owner(self, response_id: str) -> ResponseOwner | None:
        """Whose a response is; None if nobody knows."""
        ...

    async def sweep_owners(self, before_ms: int) -> int:
        """Forget responses that were made before then; how many."""
        ...
