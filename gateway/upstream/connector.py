"""Opens connections: DNS, TCP, proxies and TLS. Translates their exceptions."""

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import Callable
from urllib.parse import unquote

import aiohappyeyeballs
from yarl import URL

from gateway.errors import ProviderBadResponse, ProxyRefused
from gateway.formats.errors.openai import describe_status
from gateway.upstream.connection import Connection, Origin
from gateway.upstream.dns_cache import DnsCache, Resolve, resolve
from gateway.upstream.environment_proxy import SOCKS
from gateway.upstream.exhaustion import find_exhaustion
from gateway.upstream.unreachable import build_unreachable

EYEBALLS_S = 0.25
"""Delay until the next address is tried in parallel (RFC 8305, 5)."""
MAX_TUNNEL_BYTES = 16 * 1024
"""Maximum size of a proxy's answer to CONNECT."""
_STATUS = re.compile(rb"HTTP/1\.[01] ([3-5][0-9][0-9])\b")
_TUNNEL_OPENED = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9][ \r]")
_PROXY_PORTS = (("http", 80), ("socks5", 1080), ("socks5h", 1080))


def open_context() -> ssl.SSLContext:
    """Return a TLS context that trusts the system's certificates, or the file in ``SSL_CERT_FILE``, like aiohttp."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(("http/1.1",))
    return context


class Connector:
    """Opens connections.

    Args:
        resolve: returns addresses for a host and a port; raises ``OSError``.
        open_tls_context: creates the TLS context once, because this is expensive.
    """

    def __init__(
        self, resolve: Resolve = resolve, open_tls_context: Callable[[], ssl.SSLContext] = open_context
    ) -> None:
        self._dns_cache = DnsCache(resolve)
        self._open_tls_context = open_tls_context
        self._context: ssl.SSLContext | None = None

    async def dial(self, origin: Origin, connection: Connection) -> None:
        """Connect ``connection`` to ``origin``.

        Raises ``ProviderBadResponse``, ``ResourcesExhausted``, ``TimeoutError``.
        """
        try:
            if origin.scheme == "https" and self._context is None:
                self._context = self._open_tls_context()
            if origin.scheme == "http" and origin.proxy is None:
                await self._dial_plain(origin, connection)
            else:
                await self._attach(await self._open_socket(origin), origin, connection)
        except ssl.SSLError as error:
            raise ProviderBadResponse(
                "The provider's TLS certificate or handshake was not accepted", phase="connect"
            ) from error
        except (OSError, RuntimeError) as error:  # uvloop raises RuntimeError for some sockets
            if isinstance(error, TimeoutError) and error.errno is None:
                raise
            raise find_exhaustion(error) or build_unreachable(error) from error
        except ValueError as error:  # the resolver rejects the name
            raise make_unsendable_error() from error

    async def close(self) -> None:
        await self._dns_cache.close()

    async def _dial_plain(self, origin: Origin, connection: Connection) -> None:
        """Connect to ``origin`` without TLS and proxy.

        If there is only one address, the event loop opens the socket: uvloop connects its own socket with a third of
        the CPU time that it needs for a given socket.
        """
        infos = await self._dns_cache.find(origin.host, origin.port)
        if len(infos) > 1 or infos[0][0] != socket.AF_INET:
            await self._attach(await self._connect(origin.host, origin.port), origin, connection)
            return
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, *infos[0][4][:2])
        except BaseException as error:
            connection.abort()
            if isinstance(error, OSError | RuntimeError):
                raise self._make_dial_error(origin.host, origin.port, error) from error
            raise

    async def _open_socket(self, origin: Origin) -> socket.socket:
        if origin.proxy is None:
            return await self._connect(origin.host, origin.port)
        proxy = URL(origin.proxy)
        port = proxy.explicit_port or dict(_PROXY_PORTS).get(proxy.scheme)
        if proxy.raw_host is None or port is None:
            raise make_unsendable_error()
        if origin.proxy.lower().startswith(SOCKS):
            return await self._reach_by_socks(origin, proxy, port)
        sock = await self._connect(proxy.raw_host, port)
        if origin.scheme == "https":
            try:
                await _tunnel(sock, origin)
            except BaseException:
                sock.close()
                raise
        return sock

    async def _connect(self, host: str, port: int) -> socket.socket:
        infos = await self._dns_cache.find(host, port)
        try:
            return await aiohappyeyeballs.start_connection(
                infos, happy_eyeballs_delay=EYEBALLS_S, interleave=1, loop=asyncio.get_running_loop()
            )
        except (OSError, RuntimeError) as error:
            raise self._make_dial_error(host, port, error) from error

    def _make_dial_error(self, host: str, port: int, error: Exception) -> ConnectionError:
        self._dns_cache.forget(host, port)  # its address may have changed
        return ConnectionError(f"{host}:{port}: {error}")  # the log names the address

    async def _reach_by_socks(self, origin: Origin, proxy: URL, port: int) -> socket.socket:
        from python_socks import ProxyConnectionError, ProxyType  # noqa: PLC0415 - only if a channel has one
        from python_socks.async_.asyncio import Proxy  # noqa: PLC0415

        user, password = (unquote(part or "") for part in (proxy.raw_user, proxy.raw_password))
        socks_proxy = Proxy(ProxyType.SOCKS5, proxy.raw_host or "", port, user or None, password or None, rdns=True)
        host = origin.host
        if proxy.scheme == "socks5":  # the client resolves names; with socks5h the proxy does
            host = min(await self._dns_cache.find(host, origin.port))[4][0]  # IPv4 if there is an address
        try:
            return await socks_proxy.connect(host, origin.port, timeout=24 * 3600)  # the caller bounds it
        except ProxyConnectionError:
            raise
        except Exception as error:  # the library raises various exceptions for a proxy's answer
            raise _make_proxy_refusal() from error

    async def _attach(self, sock: socket.socket, origin: Origin, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        context = self._context if origin.scheme == "https" else None
        try:
            if context is not None:
                name = origin.host.rstrip(".")
                await loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname=name)
            else:
                await loop.create_connection(lambda: connection, sock=sock)
        except BaseException:
            connection.abort()
            _close_after_failure(sock, loop)
            raise


def _close_after_failure(sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """Close ``sock`` after ``loop.create_connection`` has failed.

    asyncio works on the socket object, so closing it again is harmless. uvloop closes the descriptor beneath, whose
    number may belong to an unrelated file by then.
    """
    if isinstance(loop, asyncio.BaseEventLoop):
        sock.close()
    else:
        sock.detach()


def _make_proxy_refusal(data: bytes = b"") -> ProxyRefused:
    status = _STATUS.match(data)
    return ProxyRefused("" if status is None else describe_status(int(status[1])))


async def _tunnel(sock: socket.socket, origin: Origin) -> None:
    """Request a tunnel from the proxy at ``sock`` (RFC 9110, 9.3.6). Raises ``ProviderBadResponse``, ``OSError``."""
    loop = asyncio.get_running_loop()
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    authority = f"{host}:{origin.port}"
    authorization = build_proxy_authorization(origin.proxy or "")
    request = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{authorization}\r\n"
    await loop.sock_sendall(sock, request.encode("latin-1"))
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await loop.sock_recv(sock, 4096)
        data += piece
        if not piece or len(data) > MAX_TUNNEL_BYTES:
            raise _make_proxy_refusal(data)
    # The origin sends nothing before a request, so further bytes cannot come from it.
    if not _TUNNEL_OPENED.match(data) or not data.endswith(b"\r\n\r\n"):
        raise _make_proxy_refusal(data)


def make_unsendable_error() -> ProviderBadResponse:
    """Return the error for a request that cannot or must not be sent as HTTP."""
    return ProviderBadResponse("The channel's address or headers cannot be sent", phase="connect")


def build_proxy_authorization(proxy: str) -> str:
    """Build the Proxy-Authorization header; empty if the URL has no credentials. Raises ``ProviderBadResponse``."""
    try:
        url = URL(proxy)
        if url.raw_user is None and url.raw_password is None:
            return ""
        credentials = f"{unquote(url.raw_user or '')}:{unquote(url.raw_password or '')}".encode("latin-1")
    except ValueError as error:
        raise make_unsendable_error() from error
    return f"Proxy-Authorization: Basic {base64.b64encode(credentials).decode('ascii')}\r\n"
