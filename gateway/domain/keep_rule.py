"""Of which requests bodies are kept, and how much: settings, the field of keys, and the client's header."""

import re
from typing import Literal

from gateway.frozen import frozen

KEEP_HEADER = "x-gateway-keep"
"""The header with which a client decides about one request."""
RedactedKind = Literal["secrets", "cards", "ibans", "mails", "phones", "ips"]
DEFAULT_REDACTED: tuple[RedactedKind, ...] = ("secrets", "cards", "ibans", "mails")
_SAMPLED = re.compile(r"sampled:(0?\.\d{1,6}|0\.\d{1,6}|1(?:\.0{1,6})?)\Z")
_WORDS = frozenset({"none", "errors", "all"})
RULE_FORMS = '"none", "errors", "sampled:0.05" or "all"'
KEY_RULE_FORMS = '"none", "on_request", "errors", "sampled:0.05" or "all"'


@frozen
class BodyBounds:
    """How much is kept, for how long.

    Attributes:
        max_bytes: the most bytes of all segments together; beyond that, the oldest segment is deleted.
        keep_ms: how long a body is kept.
        max_body_bytes: the most bytes kept of one body: its head and its tail.
    """

    max_bytes: int
    keep_ms: int
    max_body_bytes: int


def is_keep_rule(text: str) -> bool:
    """Return whether ``text`` is a value of ``requests.keep_bodies``."""
    return text in _WORDS or find_share(text) is not None


def is_key_rule(text: str) -> bool:
    """Return whether ``text`` is a value of a key's ``keep_bodies``."""
    return text == "on_request" or is_keep_rule(text)


def find_share(rule: str) -> float | None:
    """Return the share of requests that ``sampled:SHARE`` keeps; None for another rule, or a share of 0."""
    match = _SAMPLED.match(rule)
    share = 0.0 if match is None else float(match[1])
    return share or None
