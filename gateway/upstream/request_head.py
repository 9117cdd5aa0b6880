"""The head of a request, and where it goes: what of it is the same for every request of a channel is made once."""

import base64
import re
from urllib.parse import unquote

import attrs
from yarl import URL

from gateway.domain.http_request import HttpRequest
from gateway.errors import ProviderBadResponse
from gateway.upstream.pool import Origin

MAX_ROUTES = 512
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_METHOD = re.compile(r"[A-Z]{1,20}\Z")
_BODILESS = frozenset({"GET", "OPTIONS", "TRACE"})
"""A request without a body says so, but for these."""
_OURS = frozenset({"content-length", "transfer-encoding"})


def refuse() -> ProviderBadResponse:
    """What cannot be written as HTTP, or must not be: nothing of it is sent."""
    return ProviderBadResponse("The channel's address or headers cannot be sent", phase="connect")


@attrs.define(eq=False)
class RequestHead:
    """One method and URL, as the way there wants it written. The head is remembered: a channel's seldom changes."""

    origin: Origin
    start: str = attrs.field(repr=False)
    host: str
    bodiless: bool
    _headers: dict[str, str] | None = attrs.field(default=None, init=False, repr=False)
    _written: bytes = attrs.field(default=b"", init=False, repr=False)

    def write_head(self, headers: dict[str, str], length: int | None) -> bytes:
        """The head of a request with a body of ``length`` bytes, or none. Raises ``ProviderBadResponse``."""
        if headers != self._headers:
            self._written = self._write_headers(headers)
            self._headers = headers.copy()
        if length is None and self.bodiless:
            return self._written + b"\r\n"
        return b"%bContent-Length: %d\r\n\r\n" % (self._written, length or 0)

    def _write_headers(self, headers: dict[str, str]) -> bytes:
        names = {name.lower() for name in headers}
        host = "" if "host" in names else f"Host: {self.host}\r\n"
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        ends = len(headers)
        if names & _OURS or lines.count("\n") != ends or lines.count("\r") != ends or "\0" in lines:
            raise refuse()
        try:
            return f"{self.start}{host}{lines}".encode("latin-1")
        except UnicodeEncodeError as error:
            raise refuse() from error


class RequestHeadCache:
    """Routes and origins by what a plan says; a bounded number of either."""

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str, str | None], RequestHead] = {}
        self._origins: dict[tuple[str, str, int, str | None], Origin] = {}

    def get(self, plan: HttpRequest) -> RequestHead | None:
        """The route of ``plan``, if it is known."""
        return self._routes.get((plan.method, plan.url, plan.proxy))

    def find(self, plan: HttpRequest) -> RequestHead:
        """The route of ``plan``. Raises ``ProviderBadResponse`` where its URL leads nowhere."""
        return self.get(plan) or self._add((plan.method, plan.url, plan.proxy))

    def _add(self, key: tuple[str, str, str | None]) -> RequestHead:
        if len(self._routes) >= MAX_ROUTES:
            self._routes.clear()
            self._origins = {each: origin for each, origin in self._origins.items() if origin.idle}
        method, address, proxy = key
        if _CONTROL.search(address) or not _METHOD.match(method):
            raise refuse()
        try:
            url = URL(address)
            host, port = url.raw_host, url.port
        except ValueError as error:
            raise refuse() from error
        named = url.user is not None or url.password is not None  # a proxy would be told so
        if not host or not port or url.scheme not in {"http", "https"} or named:
            raise refuse()
        place = (url.scheme, host, port, proxy)
        origin = self._origins.setdefault(place, Origin(*place))
        start = _write_start(method, url, proxy if url.scheme == "http" else None)
        route = self._routes[key] = RequestHead(origin, start, url.host_port_subcomponent or host, method in _BODILESS)
        return route


def _write_start(method: str, url: URL, proxy: str | None) -> str:
    """The first line, and what a proxy is told besides (RFC 9112, 3.2.2; RFC 9110, 11.7.2)."""
    if proxy is None or not proxy.lower().startswith("http:"):
        return f"{method} {url.raw_path_qs} HTTP/1.1\r\n"
    return f"{method} {url.with_fragment(None)} HTTP/1.1\r\n{write_authorization(proxy)}"


def write_authorization(proxy: str) -> str:
    """The header that lets us through ``proxy``; empty where it has no credentials. Raises ``ProviderBadResponse``."""
    try:
        url = URL(proxy)
        if url.raw_user is None and url.raw_password is None:
            return ""
        pair = f"{unquote(url.raw_user or '')}:{unquote(url.raw_password or '')}".encode("latin-1")
    except ValueError as error:
        raise refuse() from error
    return f"Proxy-Authorization: Basic {base64.b64encode(pair).decode('ascii')}\r\n"
