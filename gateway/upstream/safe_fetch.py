"""Protection against SSRF: URLs from providers and users are fetched from public addresses only.

Such a URL may lead to this machine, its network or a cloud's metadata service, by an unusual spelling of the address,
by a name that resolves to it, or by a redirect. Addresses are checked when sockets are created. aiohttp calls
``socket_factory`` with each address that it is about to connect to, whether from the URL or from the resolver, and
connects to that address only: no name is resolved between the check and the connection. Connections are not reused, so
none outlives the settings under which it was checked.
"""

import asyncio
import errno
import re
import socket
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import IPv4Address, IPv6Address

import aiohttp
import attrs
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway.domain.ip_address import Networks, is_inside, is_public
from gateway.errors import EgressRefused, ProviderBadResponse
from gateway.upstream.environment_proxy import FindProxy, use_channels_proxy
from gateway.upstream.interface import FetchedFile, FileRequest
from gateway.upstream.safe_fetch_response import (
    FILE_TEXTS,
    HOOK_TEXTS,
    LIBRARY_ERRORS,
    FetchErrorTexts,
    FetchProtocol,
    discard_body,
    open_file,
    raise_translated_error,
    read_whole,
)

MAX_REDIRECTS = 3
MAX_URL = 8_190
"""Maximum length in characters; aiohttp's limit for a header line, and thus for a redirect."""
READ_BUFFER = 64 * 1024

_MIN_FREE_PORT = 1024
_WEB_PORTS = frozenset({80, 443})
_SERVICE_PORTS = frozenset(
    {
        1433, 1521, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 4222, 5432, 5672, 5900, 5984, 6000, 6379, 6443,
        6667, 8200, 8500, 9042, 9092, 9200, 9300, 10250, 10255, 11211, 15672, 26379, 27017, 27018,
    }
)  # fmt: skip
"""Ports of databases, queues, caches, remote desktops and cluster control planes, which serve no files."""

_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})

_MISLEADING_CHARS = re.compile(r"[\x00-\x1f\x7f\\]")
_PLAIN_URL = re.compile(r"[!#-;=?-Z\[\]_a-z~]+")
"""The characters of a URL (RFC 3986)."""
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PRIVATE_NAMES = (
    "localhost", "localdomain", "local", "internal", "home.arpa", "lan", "home", "corp", "mail", "intranet", "private",
    "svc", "onion",
)  # fmt: skip
"""Domains without public servers: RFC 6761, 6762, 7686 and 8375, ICANN's ``internal``, three domains that ICANN will
never delegate (home, corp, mail), and others in unofficial use."""


class SafeFetcher:
    """Fetches files whose URLs providers chose, and calls webhooks, whose URLs users chose.

    One aiohttp session checks every address. The other checks none and serves destinations that the operator chose, the
    channel's own origin and its proxy, but no webhooks. A proxy resolves names itself, so only the URL can be checked:
    a public name that the proxy resolves to a private address is *not* refused here.

    Allowed ports: 80, 443, and those from 1024 on, which object stores use, except ports of well-known services. Lower
    ports belong to mail, shells and files; a line of HTTP can do harm there. The channel's own origin may have any
    port.

    Args:
        find_allowed_networks: returns the private networks that the current settings allow.
        resolver: resolves host names; None for the system's resolver.
        find_proxy: returns the proxy for a channel's proxy and a URL; None for a direct connection.
    """

    def __init__(
        self,
        *,
        find_allowed_networks: Callable[[], Networks],
        resolver: AbstractResolver | None = None,
        find_proxy: FindProxy = use_channels_proxy,
    ) -> None:
        self._find_allowed_networks = find_allowed_networks
        self._find_proxy = find_proxy
        self._checking_session = _open_session(resolver, self._make_socket)
        self._trusting_session = _open_session(resolver, None)

    async def fetch(
        self, url: str, *, trusted_origin: str | None, proxy: str | None, limit_bytes: int, timeout_s: float
    ) -> bytes:
        """Return a whole file. Raises ``ProviderError``, whose message names no address.

        At most ``MAX_REDIRECTS`` redirects are followed, each checked separately. A chain that has left the trusted
        origin does not become trusted again by leading back.

        ``trusted_origin`` is the channel's base URL. The operator chose its scheme, host and port, so they are allowed
        at any address. If it is None, nothing is trusted. ``timeout_s`` is the total time, including redirects and the
        body.
        """
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._follow(FileRequest(url, trusted_origin, proxy))
                try:
                    return await read_whole(response, limit_bytes)
                finally:
                    response.close()
        except LIBRARY_ERRORS as error:
            raise_translated_error(error, FILE_TEXTS)

    async def open(self, file_request: FileRequest) -> FetchedFile:
        """Return a file once its headers have arrived. Redirects are followed as in ``fetch``.

        Raises ``ProviderContentGone`` for 404 and 410, ``FileRefused`` for other unexpected statuses, else another
        ``ProviderError``.
        """
        try:
            async with asyncio.timeout(file_request.connect_s):
                response = await self._follow(file_request)
        except LIBRARY_ERRORS as error:
            raise_translated_error(error, FILE_TEXTS, "headers")
        try:
            return open_file(response, file_request)
        except ProviderBadResponse:
            response.close()
            raise

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
        """Post ``body`` to a webhook and return the status of the answer. Redirects are not followed.

        Reading the rest of the answer may take as long again, at most ``ANSWER_READ_TIMEOUT_S``. Raises
        ``ProviderError``. ``EgressRefused`` is final: the URL itself is never allowed. Other errors are not: a name may
        resolve to another address tomorrow.
        """
        try:
            target = _read_url(url, words=HOOK_TEXTS)
            self._check_url(target, HOOK_TEXTS, is_proxied=False)
            async with asyncio.timeout(timeout_s):
                response = await self._checking_session.post(target, data=body, headers=headers, allow_redirects=False)
        except LIBRARY_ERRORS as error:
            raise_translated_error(error, HOOK_TEXTS, "headers")
        try:
            await discard_body(response, timeout_s)
        finally:
            response.close()
        return response.status

    async def post_form(
        self,
        url: str,
        form: Mapping[str, str],
        headers: Mapping[str, str],
        *,
        trusted_origin: str,
        limit_bytes: int,
        timeout_s: float,
    ) -> bytes:
        """Post a form and return the answer. Redirects are not followed, because they would repeat secrets.

        Raises the same exceptions as ``fetch``, and ``FileRefused`` for every status except 200.
        """
        try:
            target = _read_url(url)
            is_trusted = _is_origin(target, trusted_origin)
            if not is_trusted:
                self._check_url(target, FILE_TEXTS, is_proxied=False)
            session = self._trusting_session if is_trusted else self._checking_session
            async with asyncio.timeout(timeout_s):
                response = await session.post(target, data=dict(form), headers=headers, allow_redirects=False)
                try:
                    return await read_whole(response, limit_bytes)
                finally:
                    response.close()
        except LIBRARY_ERRORS as error:
            raise_translated_error(error, FILE_TEXTS)

    async def close(self) -> None:
        """Close both sessions.

        Call this only when no fetch is running: aiohttp does not wake a task that waits for a body.
        """
        await self._checking_session.close()
        await self._trusting_session.close()

    async def _follow(self, file_request: FileRequest) -> aiohttp.ClientResponse:
        url, is_trusted = _read_url(file_request.url), True
        for _ in range(1 + MAX_REDIRECTS):
            proxy = self._find_proxy(file_request.proxy, str(url))
            if proxy is not None and proxy.startswith("socks"):  # nor is the proxy bypassed
                raise ProviderBadResponse("The proxy is SOCKS, and no file is fetched through one", phase="connect")
            is_trusted = is_trusted and _is_origin(url, file_request.trusted_origin)
            if not is_trusted:
                self._check_url(url, FILE_TEXTS, is_proxied=proxy is not None)
            response = await self._get(url, attrs.evolve(file_request, proxy=proxy), is_trusted=is_trusted)
            if response.status not in _REDIRECT_STATUSES:
                return response
            try:
                url = _read_url(response.headers.get("Location", ""), base=url)
            finally:
                response.close()
        raise ProviderBadResponse("The provider's link is redirected too often", phase="headers")

    async def _get(self, url: URL, file_request: FileRequest, *, is_trusted: bool) -> aiohttp.ClientResponse:
        session = self._trusting_session if is_trusted or file_request.proxy is not None else self._checking_session
        headers = dict(file_request.signature) if is_trusted else {}
        if file_request.byte_range is not None:
            headers["Range"] = file_request.byte_range
        return await session.get(url, headers=headers, proxy=file_request.proxy, allow_redirects=False)

    def _check_url(self, url: URL, words: FetchErrorTexts, *, is_proxied: bool) -> None:
        """Raise ``EgressRefused`` if the text of the URL alone is enough to refuse it."""
        _, host, port = _find_origin(url)
        if port is None or (port not in _WEB_PORTS and (port < _MIN_FREE_PORT or port in _SERVICE_PORTS)):
            raise EgressRefused(words.forbidden, phase="connect")
        is_allowed = may_be_public if is_proxied else _is_name
        if not (self._may_connect(host) if is_literal(host) else is_allowed(host)):
            raise EgressRefused(words.forbidden, phase="connect")

    def _may_connect(self, address: str) -> bool:
        return is_public(address) or ("%" not in address and is_inside(address, self._find_allowed_networks()))

    def _make_socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """Check an address and return a socket for it. Raises ``OSError`` for an address that is not allowed.

        Every connection to an address passes through here.
        """
        family, kind, protocol, _, socket_address = info
        address = socket_address[0]
        if not isinstance(address, str) or not self._may_connect(address):
            raise OSError(errno.EACCES, f"{address} is not public, and not allowed")
        return socket.socket(family, kind, protocol)


def _open_session(
    resolver: AbstractResolver | None, socket_factory: aiohttp.SocketFactoryType | None
) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0, force_close=True, use_dns_cache=False, resolver=resolver, socket_factory=socket_factory
    )
    factory = partial(FetchProtocol, loop=asyncio.get_running_loop())
    connector._factory = factory  # type: ignore[assignment]  # noqa: SLF001 - no option sets it
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept": "*/*", "Accept-Encoding": "identity"},
        skip_auto_headers=("User-Agent",),
        read_bufsize=READ_BUFFER,
        timeout=aiohttp.ClientTimeout(),  # none: the callers bound it
        trust_env=False,
    )


def _read_url(text: str, base: URL | None = None, words: FetchErrorTexts = FILE_TEXTS) -> URL:
    """Parse a URL to request. Raises ``EgressRefused``. A redirect is relative to the URL ``base``.

    A well-formed URL is kept unchanged: signed links to object stores are signed as written, and yarl's own quoting
    (``%2F`` in a query becomes ``/``) breaks some of the signatures.
    """
    if not text or len(text) > MAX_URL or _MISLEADING_CHARS.search(text):
        raise EgressRefused(words.malformed, phase="connect")
    try:
        url = URL(text, encoded=_PLAIN_URL.fullmatch(text) is not None)
        if base is not None and not url.scheme and (url.raw_host or not text.startswith("//")):
            url = base.join(url)
        if url.scheme not in {"http", "https"} or not url.raw_host or not url.port or "@" in url.raw_authority:
            raise EgressRefused(words.malformed, phase="connect")
    except (ValueError, IndexError) as error:  # yarl raises IndexError for "x://[]@"
        raise EgressRefused(words.malformed, phase="connect") from error
    return url


def _is_origin(url: URL, trusted_origin: str | None) -> bool:
    if trusted_origin is None:
        return False
    try:
        trusted_url = URL(trusted_origin)
        return bool(trusted_url.raw_host) and _find_origin(trusted_url) == _find_origin(url)
    except ValueError:
        return False


def _find_origin(url: URL) -> tuple[str, str, int | None]:
    return url.scheme, (url.raw_host or "").lower(), url.port


def is_literal(host: str) -> bool:
    """Return whether a host is an IPv4 address of four decimal numbers, or an IPv6 address without a zone.

    Other spellings of an IPv4 address, such as ``127.1`` and ``0x7f.1``, are not: parsers disagree on them.
    """
    try:
        address = IPv6Address(host) if ":" in host else IPv4Address(host)
    except ValueError:
        return False
    return isinstance(address, IPv4Address) or address.scope_id is None


def _is_name(host: str) -> bool:
    """Return whether a host is a name that cannot be taken for an address.

    A numeric last label makes it an address, both by the rules of browsers (the URL standard's "ends in a number") and
    of C libraries: ``0x7f.1``, ``127.1``, ``2130706433``.
    """
    name = host.removesuffix(".")
    return _HOST_NAME.fullmatch(name) is not None and _NUMERIC_LABEL.fullmatch(name.rpartition(".")[2]) is None


def may_be_public(name: str) -> bool:
    """Return whether a name may belong to a public server. Without a dot it may not: resolvers complete it."""
    dotted_name = f".{name.removesuffix('.')}"
    return (
        dotted_name.count(".") > 1
        and _is_name(name)
        and not any(dotted_name.endswith(f".{suffix}") for suffix in _PRIVATE_NAMES)
    )
