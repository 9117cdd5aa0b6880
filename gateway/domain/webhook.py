"""Webhooks: notifications about the end of a job, signed according to Standard Webhooks.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md: the headers ``webhook-id``,
``webhook-timestamp`` and ``webhook-signature``; ``v1`` is HMAC-SHA256 over ``id.timestamp.body``, in base64; a secret
is written ``whsec_`` and its bytes in base64.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Iterable
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Literal

import attrs

from gateway.frozen import frozen

DeliveryStatus = Literal["pending", "delivered", "failed"]

RETRY_AFTER_S: tuple[int, ...] = (5, 30, 120, 300, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 28_800)
"""The waits between attempts, about a day in total. The attempt after the last wait is the last one."""
GIVE_UP_AFTER_S = 86_400
MAX_WEBHOOK_URL_CHARS = 2_048
_MAX_PORT = 65_535
_URL_PATTERN = re.compile(
    r"(?i:https?)://(?P<host>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?:[/?#].*)?"
)
"""Strict where libraries disagree: the HTTP client must find the same host in the URL."""
SECRET_PREFIX = "whsec_"  # noqa: S105 - how every secret begins
_OK_STATUSES = range(200, 300)
_GONE_STATUS = 410
"""The status with which a receiver refuses further deliveries (Standard Webhooks)."""


@frozen
class WebhookDelivery:
    """The delivery of one job's end, with all its attempts. Times are Unix milliseconds.

    Attributes:
        id: ``evt_…``; the same in every attempt, so that a receiver can discard duplicates.
        key_id: the API key that created the job; its secret signs.
        body: the exact body that is sent.
        attempts: the number of attempts so far.
        answer: the HTTP status of the answer to the last attempt; None without an answer.
        due_ms: the time of the next attempt; None once the delivery has ended.
        owner: the process that handles the delivery, by a claim until ``lease_until_ms``.
    """

    id: str
    video_id: str
    account_id: int
    key_id: int
    url: str = attrs.field(repr=False)
    event: str
    body: bytes = attrs.field(repr=False)
    created_ms: int
    status: DeliveryStatus = "pending"
    attempts: int = 0
    answer: int | None = None
    error: str | None = None
    ended_ms: int | None = None
    due_ms: int | None = None
    owner: str = ""
    lease_until_ms: int = 0

    def record_attempt(
        self, answer: int | None, error: str | None, now_ms: int, *, hopeless: bool = False
    ) -> "WebhookDelivery":
        """Return the delivery after an attempt. It ends with 2xx or 410, and after the last attempt.

        If ``hopeless`` is true, no later attempt can succeed, so the delivery ends.
        """
        attempts = self.attempts + 1
        fields: dict[str, Any] = {"attempts": attempts, "answer": answer, "owner": "", "lease_until_ms": 0}
        if answer is not None and answer in _OK_STATUSES:
            return attrs.evolve(self, status="delivered", error=None, ended_ms=now_ms, due_ms=None, **fields)
        if hopeless or answer == _GONE_STATUS:
            return attrs.evolve(self, status="failed", error=error, ended_ms=now_ms, due_ms=None, **fields)
        wait_s = RETRY_AFTER_S[min(attempts, len(RETRY_AFTER_S)) - 1]
        if attempts > len(RETRY_AFTER_S) or now_ms + wait_s * 1000 > self.created_ms + GIVE_UP_AFTER_S * 1000:
            return attrs.evolve(self, status="failed", error=error, ended_ms=now_ms, due_ms=None, **fields)
        return attrs.evolve(self, error=error, due_ms=now_ms + wait_s * 1000, **fields)


def find_webhook_problem(url: str, hosts: Iterable[str]) -> str | None:
    """Return why no webhook may be sent to ``url``, or None. ``hosts`` are globs of the allowed hosts."""
    if len(url) > MAX_WEBHOOK_URL_CHARS:
        return f"The webhook's URL is longer than {MAX_WEBHOOK_URL_CHARS} characters"
    match = _URL_PATTERN.fullmatch(url) if url.isprintable() and "\\" not in url else None
    if match is None or int(match["port"] or 1) > _MAX_PORT:
        return "The webhook is not a plain http or https URL without a user name"
    host = match["host"].lower().strip("[]")
    if not any(fnmatchcase(host, glob.lower()) for glob in hosts):
        return "The webhook's host is not one that this gateway sends to"
    return None


def derive_secret(master_key: bytes, key_id: int) -> bytes:
    """Return the secret that signs the deliveries of an API key."""
    return hmac.new(master_key, f"webhook:{key_id}".encode(), sha256).digest()


def build_secret(secret: bytes) -> str:
    """Format a secret as libraries of Standard Webhooks expect it."""
    return SECRET_PREFIX + b64encode(secret).decode()


def sign_delivery(secret: bytes, delivery_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``."""
    signed_bytes = b"%b.%d.%b" % (delivery_id.encode(), timestamp_s, body)
    return f"v1,{b64encode(hmac.new(secret, signed_bytes, sha256).digest()).decode()}"
