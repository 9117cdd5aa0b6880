"""Replays: the answer to a call that named itself (``Idempotency-Key``), for whoever makes the same call again."""

from typing import Literal

import attrs

ReplayState = Literal["running", "answered", "lost"]
"""The call is under way; its answer is kept; it was answered, or cut off, and nothing is kept of it."""

MAX_KEY_CHARS = 255
KEEP_MS = 24 * 3_600 * 1000
MAX_ANSWER_BYTES = 1024 * 1024
"""What is larger is not kept: it would hold up every other write."""


@attrs.frozen
class IdempotencyRecord:
    """One named call. Times are Unix milliseconds.

    Attributes:
        key_id: the API key under which the name is one of its own.
        name: the caller's ``Idempotency-Key``.
        digest: of what was asked, hexadecimal: another body under the same name is another call.
        request_id: of the call.
        owner: the process that answers it.
        status: of the answer, ``media_type`` and ``body`` its own.
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
