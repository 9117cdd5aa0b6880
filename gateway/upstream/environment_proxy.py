"""Proxies from the usual environment variables, for requests of channels without their own proxy."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

FindProxy = Callable[[str | None, str], str | None]
"""Returns the proxy for a URL, given the channel's proxy and the URL; None: a direct connection."""

NO_PROXY = "none"
"""Value of a channel's proxy for direct connections, regardless of the environment."""
SOCKS = ("socks5://", "socks5h://")
"""The schemes of SOCKS proxies. With ``socks5`` the gateway resolves names, with ``socks5h`` the proxy does."""
PROXY_URLS = ("http://", *SOCKS)
EXPECTED_PROXY = "an http://, socks5:// or socks5h:// URL; the connection to a proxy cannot use TLS"
_MAX_CACHED_ORIGINS = 1_024
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
_PORTS = {"http": 80, "https": 443}
_SEPARATORS = re.compile(r"[\s,]+")
"""Separators of the entries of NO_PROXY: commas or blanks, as in curl."""


def open_environment_proxies(environ: Mapping[str, str]) -> FindProxy:
    """Return a function that finds proxies by ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``.

    Lower-case names take precedence, as in curl. ``NO_PROXY`` lists names of hosts and domains, addresses and networks,
    or is ``*``. Loopback addresses never go through a proxy (as in Go's ``net/http``, ``ProxyFromEnvironment``): a
    proxy cannot reach a model server on this machine.
    """

    def read(name: str) -> str:
        return (environ.get(f"{name}_proxy") or environ.get(f"{name}_PROXY".upper()) or "").strip()

    all_proxy = read("all")
    proxies = {scheme: _add_scheme(read(scheme) or all_proxy) for scheme in ("http", "https")}
    no_proxy = read("no")

    @lru_cache(_MAX_CACHED_ORIGINS)
    def look_up(scheme: str, host: str, port: int | None) -> str | None:
        proxy = proxies[scheme]
        return None if proxy is None or _is_direct(host, port or _PORTS[scheme], no_proxy) else proxy

    def find(proxy: str | None, url: str) -> str | None:
        if proxy is not None:
            return None if proxy == NO_PROXY else proxy
        try:
            parts = urlsplit(url)
            scheme, host, port = _SCHEMES.get(parts.scheme.lower()), parts.hostname, parts.port
        except ValueError:  # the client reports what is wrong with the URL
            return None
        return None if scheme is None or not host else look_up(scheme, host, port)

    return find


def list_tls_proxies(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of variables whose proxies would have to be reached over TLS, which is not supported."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if environ.get(variable, "").strip().lower().startswith("https://"):
                yield variable


def _add_scheme(proxy: str) -> str | None:
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(host: str, port: int, no_proxy: str) -> bool:
    entries = [entry.lower() for entry in _SEPARATORS.split(no_proxy) if entry]
    if "*" in entries or any(_is_named(host, port, entry) for entry in entries):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    networks = map(_parse_network, entries)
    return address.is_loopback or any(network is not None and address in network for network in networks)


def _is_named(host: str, port: int, entry: str) -> bool:
    name = entry.lstrip("*").lstrip(".").replace("[", "").replace("]", "")
    return any(target == name or target.endswith(f".{name}") for target in (host, f"{host}:{port}"))


def _parse_network(entry: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(entry, strict=False) if "/" in entry else None
    except ValueError:
        return None


def use_channels_proxy(proxy: str | None, _url: str) -> str | None:
    """Return the channel's own proxy, or None. The function is the ``FindProxy`` that reads no environment."""
    return None if proxy == NO_PROXY else proxy
