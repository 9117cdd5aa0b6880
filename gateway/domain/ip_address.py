"""Finds a client's address behind proxies, and checks addresses against networks."""

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
Networks = tuple[Network, ...]
Address = IPv4Address | IPv6Address

MAX_HOPS = 32
"""Maximum number of trusted proxies in a row. Behind more of them, the client's address is unknown."""

_MAX_HOP_CHARS = 128  # characters: an address, its zone, brackets, quotes, a port; anything longer is ignored
_MAPPED_NETWORK = IPv6Network("::ffff:0:0/96")
_NAT64_NETWORK = IPv6Network("64:ff9b::/96")
_IPV6_UNICAST = IPv6Network("2000::/3")
_NON_PUBLIC: Networks = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host, on Linux
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' own
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local: 169.254.169.254 returns a cloud machine's secrets
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, given up
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments, with Teredo, which leads to an IPv4 address
        "2001:db8::/32",  # documentation
        "3ffe::/16",  # the 6bone, given back
        "3fff::/20",  # documentation
    )
)
"""Networks that are not public by the IANA's registries of special-purpose addresses (RFC 6890 and its successors),
including exceptions in them that serve no files. Of IPv6 only networks in the assigned unicast space (2000::/3) are
listed."""
_MAX_PORT_DIGITS = 5
_SUBNET_BITS = 64


def parse_networks(texts: Iterable[str]) -> Networks:
    """Parse addresses and networks; IPv4 written as IPv6 becomes IPv4. Raises ``ValueError``."""
    return tuple(_unwrap_network(ip_network(text, strict=False)) for text in texts)


def find_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str | None:
    """Return the client's address as far as it is certain; None if it is not.

    The search starts at the socket's address and asks every trusted proxy (by the last entry that it added to
    ``X-Forwarded-For``) for its client. The first address that is not a trusted proxy is the result. If there are only
    trusted proxies, the result is the farthest one. An unreadable entry, or more than ``MAX_HOPS``, makes the client
    unknown: any client can forge the entries to the left of it.

    Args:
        peer: the socket's address; None if the socket has none (a Unix socket).
        forwarded: the ``X-Forwarded-For`` lines in the order of the request.
        trusted: the proxies whose entries are believed.

    Returns:
        The canonical address without zone and port; IPv4 in IPv6 as IPv4.
    """
    address = _parse_address(peer) if peer is not None else None
    if address is None or not _is_in(address, trusted):
        return None if address is None else str(address)
    hops = _split_hops(forwarded)
    for _ in range(MAX_HOPS):
        hop = next(hops, None)
        if hop is None:
            return str(address)
        address = _parse_hop(hop)
        if address is None or not _is_in(address, trusted):
            return None if address is None else str(address)
    return None if next(hops, None) is not None else str(address)


def is_inside(address: str | None, networks: Iterable[Network]) -> bool:
    """Return whether ``address`` is in one of ``networks``. An unknown or unreadable address is in none."""
    parsed_address = None if address is None else _parse_address(address)
    return parsed_address is not None and _is_in(parsed_address, networks)


def find_subnet(address: str) -> str:
    """Return the part of ``address`` that its owner cannot choose: all of IPv4, 64 bits of IPv6 as one number.

    The result serves to compare addresses. It is empty if the address is unreadable.
    """
    parsed_address = _parse_address(address)
    if isinstance(parsed_address, IPv6Address):
        return str(int(parsed_address) >> _SUBNET_BITS)
    return "" if parsed_address is None else str(parsed_address)


def is_public(address: str | Address) -> bool:
    """Return whether an address is on the public internet, so that a host name from a client may lead to it.

    IPv4 in IPv6 is judged as the IPv4 address that it leads to: mapped (``::ffff:0:0/96``), behind a NAT64
    (``64:ff9b::/96``, RFC 6052), 6to4 (``2002::/16``). Never public: Teredo, the IPv4-compatible form, a site's own
    NAT64 (``64:ff9b:1::/48``, RFC 8215: only that site knows where the IPv4 address is), an address with a zone, and
    text that is no address. The list is our own, because the meaning of ``is_global`` in ``ipaddress`` differs between
    Python versions.
    """
    text = str(address)
    parsed_address = None if "%" in text else _parse_address(text)
    if parsed_address is None:
        return False
    inner = _unwrap_transition(parsed_address)
    if isinstance(inner, IPv6Address) and inner not in _IPV6_UNICAST:
        return False
    return not _is_in(inner, _NON_PUBLIC)


def _unwrap_transition(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64_NETWORK:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.sixtofour or address


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _split_hops(forwarded: Sequence[str]) -> Iterator[str]:
    """Yield the entries from the last to the first; entries that are not asked for are not split."""
    for line in reversed(forwarded):
        end = len(line)
        while end >= 0:
            comma = line.rfind(",", 0, end)
            yield line[comma + 1 : end]
            end = comma


def _parse_hop(text: str) -> Address | None:
    """Parse ``1.2.3.4``, ``1.2.3.4:567``, ``::1``, ``[::1]``, ``[::1]:80``, also in quotes; None for other text."""
    if len(text) > _MAX_HOP_CHARS:
        return None
    text = text.strip(" \t")
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1].strip(" \t")
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or ":" not in host or (port and not _is_port(port)):
            return None
        return _parse_address(host)
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return _parse_address(host) if _is_port(f":{port}") else None
    return _parse_address(text)


def _is_port(text: str) -> bool:
    digits = text[1:]
    return text[0] == ":" and digits.isascii() and digits.isdigit() and len(digits) <= _MAX_PORT_DIGITS


def _parse_address(text: str) -> Address | None:
    if len(text) > _MAX_HOP_CHARS:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))  # the number has no zone


def _unwrap_network(network: Network) -> Network:
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED_NETWORK):
        return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - _MAPPED_NETWORK.prefixlen))
    return network
