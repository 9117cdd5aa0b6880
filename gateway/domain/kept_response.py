"""A response of the Responses API that the gateway keeps itself, because its provider does not."""

import attrs

from gateway.frozen import frozen


@frozen
class KeptRules:
    """How long responses are kept (0: not at all), and how many bytes those of one account may occupy (0: no limit)."""

    keep_days: float
    max_total_bytes: int


@frozen
class KeptResponse:
    """A response and the input that it answers.

    Attributes:
        expires_ms: when the response is deleted, in Unix milliseconds.
        body: the response as JSON; empty while it is not loaded.
        items: the input items as a JSON array, without those of the response that this one continues; empty while they
            are not loaded.
        before_id: the response that this one continues; None if ``items`` are the input of the whole conversation.
        body_memory, items_memory: the maximum bytes of memory that ``body`` and ``items`` take once they are parsed;
            None for a response that an earlier version has stored.
    """

    id: str
    account_id: int
    created_ms: int
    expires_ms: int
    body: bytes = attrs.field(default=b"", repr=False)
    items: bytes = attrs.field(default=b"", repr=False)
    before_id: str | None = None
    body_memory: int | None = None
    items_memory: int | None = None
    stored_bytes: int = 0
