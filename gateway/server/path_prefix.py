"""The path under which a reverse proxy serves the gateway: ``/ai`` of ``https://example.com/ai``.

The proxy strips the path from requests. Links and redirects of the gateway begin at its own root, so this module
prepends the path. Scripts read the path from the ``<html>`` element (``static/api.js``).
"""

import re
from urllib.parse import quote, urlsplit

_LINK_PATTERN = re.compile(rb'(\s(?:href|src|action|data-then)="|; url=)(?=/(?!/))')
_HTML_PATTERN = re.compile(rb"<html(?=[\s>])")


def find_path_prefix(base_url: str) -> str:
    """Return the path of the gateway's public URL without a final slash or ``/v1``; empty without a path."""
    path = urlsplit(base_url.rstrip("/").removesuffix("/v1")).path.rstrip("/")
    return quote(path, safe="/%-._~")  # safe in HTML without escaping


def prefix_links(page: bytes, prefix: str) -> bytes:
    """Return the page with ``prefix`` prepended to all links to the gateway itself, and in the ``<html>`` element."""
    if not prefix:
        return page
    encoded_prefix = prefix.encode()
    return _HTML_PATTERN.sub(
        b'<html data-prefix="' + encoded_prefix + b'"', _LINK_PATTERN.sub(rb"\1" + encoded_prefix, page), count=1
    )
