"""The head of a request to a provider, and the origin that the request goes to."""

import base64
import re
from urllib.parse import unquote

import attrs
from yarl import URL

from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse
from gateway.frozen import quick_frozen
from gateway.upstream.environment_proxy import EXPECTED_PROXY, PROXY_URLS
from gateway.upstream.pool import Origin

MAX_ORIGINS = 512
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_METHOD = re.compile(r"(?!HEAD\Z)[A-Z]{1,20}\Z")
"""HEAD is excluded: its response has no body regardless of its headers, which the response parser does not handle."""
_BODILESS = frozenset({"GET", "OPTIONS", "TRACE"})
"""Methods whose requests have no Content-Length if they have no body."""
_OURS = frozenset({"content-length", "transfer-encoding"})


def refuse() -> ProviderBadResponse:
    """Return the error for a request that cannot or must not be sent as HTTP."""
    return ProviderBadResponse("The channel's address or headers cannot be sent", phase="connect")


@quick_frozen
class RequestHead:
    """The head of a request without its Content-Length, and the origin that the request goes to.

    ``bodiless``: a request without a body has no Content-Length.
    """

    origin: Origin
    lines: bytes = attrs.field(repr=False)
    bodiless: bool

    def build(self, length: int | None) -> bytes:
        if length is None and self.bodiless:
            return self.lines + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n" % (self.lines, length or 0)


class RequestHeadBuilder:
    """Builds heads, and caches a bounded number of their origins."""

    def __init__(self) -> None:
        self._origins: dict[tuple[str, str, int, str | None], Origin] = {}

    def build(self, http_request: HttpRequest, proxy: str | None) -> RequestHead:
        """Build the head of a request through ``proxy``. Raises ``ProviderBadResponse`` if one of them is invalid."""
        if proxy is not None and not proxy.lower().startswith(PROXY_URLS):  # of a channel stored by an older version
            raise ProviderBadResponse(f"The channel's proxy must be {EXPECTED_PROXY}", phase="connect")
        method, address = http_request.method, http_request.url
        if _CONTROL.search(address) or not _METHOD.match(method):
            raise refuse()
        try:
            url = URL(address, encoded=http_request.exact)
            host, port = url.raw_host, url.port
        except ValueError as error:
            raise refuse() from error
        has_credentials = url.user is not None or url.password is not None  # a proxy would see them
        if not host or not port or url.scheme not in {"http", "https"} or has_credentials:
            raise refuse()
        start = _build_start(method, url, proxy if url.scheme == "http" else None)
        lines = _build_lines(start, url.host_port_subcomponent or host, http_request.headers)
        return RequestHead(self._find_origin(url.scheme, host, port, proxy), lines, method in _BODILESS)

    def _find_origin(self, scheme: str, host: str, port: int, proxy: str | None) -> Origin:
        key = (scheme, host, port, proxy)
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._origins = {each: origin for each, origin in self._origins.items() if origin.idle}
            origin = self._origins[key] = Origin(*key)
        return origin


def _build_lines(start: str, host: str, headers: dict[str, str]) -> bytes:
    names = {name.lower() for name in headers}
    host_line = "" if "host" in names else f"Host: {host}\r\n"
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    ends = len(headers)
    if names & _OURS or lines.count("\n") != ends or lines.count("\r") != ends or "\0" in lines:
        raise refuse()
    try:
        return f"{start}{host_line}{lines}".encode("latin-1")
    except UnicodeEncodeError as error:
        raise refuse() from error


def _build_start(method: str, url: URL, proxy: str | None) -> str:
    """Build the request line, and the header for a proxy (RFC 9112, 3.2.2; RFC 9110, 11.7.2)."""
    if proxy is None or not proxy.lower().startswith("http:"):
        return f"{method} {url.raw_path_qs} HTTP/1.1\r\n"
    return f"{method} {url.with_fragment(None)} HTTP/1.1\r\n{build_proxy_authorization(proxy)}"


def build_proxy_authorization(proxy: str) -> str:
    """Build the Proxy-Authorization header; empty if the URL has no credentials. Raises ``ProviderBadResponse``."""
    try:
        url = URL(proxy)
        if url.raw_user is None and url.raw_password is None:
            return ""
        pair = f"{unquote(url.raw_user or '')}:{unquote(url.raw_password or '')}".encode("latin-1")
    except ValueError as error:
        raise refuse() from error
    return f"Proxy-Authorization: Basic {base64.b64encode(pair).decode('ascii')}\r\n"
