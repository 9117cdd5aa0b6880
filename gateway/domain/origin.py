"""Web origins: scheme, host and port of a page, as browsers write them in ``Origin`` (RFC 6454, section 6)."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

ANY_ORIGIN = "*"
_ORIGIN_PATTERN = re.compile(
    r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?\Z", re.ASCII
)
_DEFAULT_PORTS = {("http", "80"), ("https", "443")}
_MAX_PORT = 65_535


def is_origin(text: str) -> bool:
    """Return whether ``text`` is an origin, or ``*`` for all. ``null``, sent by pages without an origin, is not."""
    if text == ANY_ORIGIN:
        return True
    if not _ORIGIN_PATTERN.match(text.lower()):
        return False
    port = text.rpartition(":")[2]
    return not port.isdigit() or 0 < int(port) <= _MAX_PORT


def parse_origins(texts: Iterable[str]) -> frozenset[str]:
    """Return origins as browsers write them: lower case, without the scheme's default port."""
    return frozenset(map(_normalize, texts))


def _normalize(text: str) -> str:
    origin = text.lower()
    if origin == ANY_ORIGIN:
        return origin
    head, _, port = origin.rpartition(":")
    return head if (urlsplit(origin).scheme, port) in _DEFAULT_PORTS else origin
