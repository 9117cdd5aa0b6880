"""Answers that are kept to be given again: the rules, what a request asks for, and the answer itself."""

from collections.abc import Iterable

import attrs

from gateway.domain.usage import Usage
from gateway.frozen import frozen

CACHE_HEADER = "x-gateway-cache"
"""The header that says where an answer came from."""
JSON_FORM = "json"
STREAM_FORM = "stream"
USAGE_STREAM_FORM = "stream:usage"
"""The forms of an answer. The last one is a stream in which the client has asked for the usage."""
FORMS = (JSON_FORM, USAGE_STREAM_FORM, STREAM_FORM)
_MAX_DIGITS = 10


@frozen
class CacheWish:
    """What a request asks for with ``Cache-Control`` (RFC 9111, 5.2.1).

    Attributes:
        max_age_s: the highest age of an answer; None: any.
        refuses: nothing of the request may be kept, and no kept answer is wanted (``no-store``).
        wants_new: no kept answer is wanted (``no-cache``, ``max-age=0``).
        must_hit: only a kept answer is wanted (``only-if-cached``).
    """

    max_age_s: int | None = None
    refuses: bool = False
    wants_new: bool = False
    must_hit: bool = False


NO_WISH = CacheWish()


def parse_wish(lines: Iterable[str]) -> CacheWish:
    """Return what the lines of ``Cache-Control`` ask for. Unknown and malformed directives are ignored."""
    directives = [directive.strip().lower() for line in lines for directive in line.split(",")]
    ages = [
        int(digits)
        for name, _, value in (directive.partition("=") for directive in directives)
        if name == "max-age" and (digits := value.strip('"')).isascii() and digits.isdecimal()
        if len(digits) <= _MAX_DIGITS
    ]
    max_age_s = min(ages, default=None)
    wants_new = "no-cache" in directives or max_age_s == 0
    return CacheWish(max_age_s, "no-store" in directives, wants_new, "only-if-cached" in directives)


def find_ttl_s(ttl_s: int, request_ttl_s: int, wish: CacheWish, key_ttl_s: int | None, route_ttl_s: int | None) -> int:
    """Return for how many seconds the answer to a request may be kept; 0: not at all.

    A request with ``no-store`` is excluded, and so are those of a key or a route with 0. Else the route's time counts,
    then the key's, then the setting ``ttl_s``. If none of them is set, a request itself may ask for a time, up to
    ``request_ttl_s``.
    """
    if wish.refuses or 0 in (key_ttl_s, route_ttl_s):
        return 0
    ttl_s = route_ttl_s or key_ttl_s or ttl_s
    if not ttl_s and wish.max_age_s is not None:
        ttl_s = min(wish.max_age_s, request_ttl_s)
    return ttl_s


@frozen
class CachedAnswer:
    """An answer as it was sent to the client.

    Attributes:
        digest: identifies the request and who shares its answer; in hexadecimal.
        usage: what was charged when the provider was asked.
        answered: the model named in the provider's answer (``Attempt.answered``); empty if none is.
        source: identifies the channel, the model there and the step of the route (``compute_source``). The answer is
            only given to a request that could go there.
        adapted: what the provider did not take, for the header; empty if nothing.
        account_id, key_id, end_user: for whom the request was made.
    """

    digest: str
    form: str
    media_type: str
    body: bytes = attrs.field(repr=False)
    usage: Usage
    answered: str
    source: str
    adapted: str
    account_id: int
    key_id: int
    end_user: str
    stored_ms: int
    expires_ms: int


@frozen
class CacheStatus:
    """What the cache of a node has stored.

    ``bytes`` are those on disk. ``problem``: why answers cannot be stored on disk at the moment; empty if they can.
    """

    answers: int
    bytes: int
    memory_bytes: int
    oldest_ms: int | None
    problem: str
