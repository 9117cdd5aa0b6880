"""Idempotency: the stored answer to a request with an ``Idempotency-Key``, for the same request again."""

from typing import Literal

import attrs

from gateway.frozen import frozen

ReplayState = Literal["running", "answered", "lost"]
"""The states, in this order: in progress; ended with a stored answer; ended without one."""

MAX_KEY_CHARS = 255
KEEP_MS = 24 * 3_600 * 1000
MAX_ANSWER_BYTES = 1024 * 1024
"""Larger answers are not stored: they would delay every other write."""


@frozen
class IdempotencyRecord:
    """One request with a key. Times are Unix milliseconds.

    Attributes:
        key_id: the API key; names are unique for each.
        name: the client's ``Idempotency-Key``.
        digest: of the request, hexadecimal: another body under the same name is another request.
        request_id: of the request.
        owner: the process that answers it.
        status: of the answer, with its ``media_type`` and ``body``.
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
