"""Idempotency: the stored answer to a request with an ``Idempotency-Key``, for the same request again."""

from typing import Literal

import attrs

from gateway.frozen import frozen

ReplayState = Literal["running", "answered", "lost"]
"""The states, in this order: in progress; ended with an answer, which may be too large to store; ended without one."""

MAX_KEY_CHARS = 255
KEEP_MS = 24 * 3_600 * 1000
MAX_ANSWER_BYTES = 1024 * 1024
"""Larger answers are not stored: they would delay every other write."""


@frozen
class IdempotencyRecord:
    """One request with an ``Idempotency-Key``. Times are Unix milliseconds.

    ``name`` is the idempotency key, which is unique for each API key. ``digest`` identifies the request's content
    (hexadecimal), and ``owner`` the process that answers. ``status``, ``media_type`` and ``body`` are the answer's;
    ``status`` is 0 if no answer is stored.
    """

    key_id: int
    name: str
    digest: str
    request_id: str
    created_ms: int
    owner: str
    state: ReplayState = "running"
    status: int = 0
    media_type: str = ""
    body: bytes = attrs.field(default=b"", repr=False)
