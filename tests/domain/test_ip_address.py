"""Where a caller calls from: nobody but a trusted proxy is believed."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ip_address import MAX_HOPS, find_address, is_inside, is_public, parse_networks
from tests.support.table_rows import table_rows

TRUSTED = parse_networks(["10.0.0.0/8", "fd00::/8", "::1"])
PROXY = "10.0.0.1"

V4 = st.ip_addresses(v=4)
V6 = st.ip_addresses(v=6).filter(lambda address: isinstance(address, IPv6Address) and address.ipv4_mapped is None)
STRANGERS = (V4 | V6).filter(lambda address: not is_inside(str(address), TRUSTED))
PROXIES = st.sampled_from(["10.0.0.1", "10.255.0.9", "fd00::2", "::1", "::ffff:10.0.0.3"])
HEADER = st.text(st.characters(codec="latin-1")) | st.text('0123456789abcdef.:,[]"% \t')
LINES = st.lists(HEADER | st.lists(V4.map(str) | V6.map(str) | PROXIES, max_size=4).map(", ".join), max_size=4)


def write_hop(draw: st.DrawFn, address: str) -> str:
    """An address as some proxy might write it."""
    forms = [address, f'"{address}"', f" {address}\t"]
    forms += [f"[{address}]", f"[{address}]:443", f'"[{address}]:1"'] if ":" in address else [f"{address}:80"]
    return draw(st.sampled_from(forms))


@st.composite
def ways(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    """A stranger, what it claims, and what the trusted proxies on the way really added (as lines or in one)."""
    stranger = str(draw(STRANGERS))
    claims = draw(LINES)
    added = [write_hop(draw, hop) for hop in [stranger, *draw(st.lists(PROXIES, max_size=5))]]
    joined = draw(st.booleans())
    return stranger, claims, [",".join(added)] if joined else added


@given(STRANGERS, LINES)
def test_a_peer_that_is_no_proxy_cannot_claim_anything(peer: IPv4Address | IPv6Address, claims: list[str]) -> None:
    assert find_address(str(peer), claims, TRUSTED) == str(peer)
    assert find_address(str(peer), claims, ()) == str(peer)


@given(ways())
def test_behind_proxies_a_caller_is_found_whatever_it_claims(way: tuple[str, list[str], list[str]]) -> None:
    stranger, claims, added = way
    assert find_address(PROXY, [*claims, *added], TRUSTED) == stranger
    if claims:
        in_one_line = f"{claims[-1]}, {added[0]}"
        assert find_address(PROXY, [*claims[:-1], in_one_line, *added[1:]], TRUSTED) == stranger


@given(st.none() | HEADER | PROXIES | V6.map(str), LINES)
def test_anything_is_an_address_or_unknown(peer: str | None, lines: list[str]) -> None:
    found = find_address(peer, lines, TRUSTED)
    assert found is None or str(ip_address(found)) == found


@table_rows(
    ("peer", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:DB8:0::7", "2001:db8::7"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:207%2", "192.0.2.7"),
        (None, None),
        ("", None),
        ("unix:", None),
        ("localhost", None),
        ("192.0.2.7:80", None),
        ("192.0.2.7%eth0", None),
        ("fe80::1%", None),
        ("192.0.2.07", None),
        ("3221225991", None),
    ],
)
def test_a_sockets_address_is_read_strictly(peer: str | None, address: str | None) -> None:
    assert find_address(peer, ["10.9.9.9"], ()) == address


@table_rows(
    ("hop", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("  192.0.2.7\t", "192.0.2.7"),
        ("192.0.2.7:567", "192.0.2.7"),
        ('"192.0.2.7:567"', "192.0.2.7"),
        ('" 192.0.2.7 "', "192.0.2.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("[2001:db8::7]:80", "2001:db8::7"),
        ('"[2001:db8::7]:80"', "2001:db8::7"),
        ("[fe80::7%eth0]:80", "fe80::7"),
        ("[::ffff:192.0.2.7]:80", "192.0.2.7"),
        ("", None),
        ('"', None),
        ('""', None),
        ("unknown", None),
        ("unix:", None),
        ("_hidden", None),
        ("192.0.2.7:", None),
        ("192.0.2.7:x", None),
        ("192.0.2.7:1234567", None),
        ("192.0.2.7:²", None),
        ("192.0.2", None),
        ("192.0.2.7/32", None),
        ("192.0.2.7 10.0.0.1", None),
        ('"192.0.2.7', None),
        ("[192.0.2.7]", None),
        ("[2001:db8::7", None),
        ("[2001:db8::7]80", None),
        ("[2001:db8::7]:", None),
        ("[2001:db8::7]:80:80", None),
        ("2001:db8::7:80]", None),
        ("[[2001:db8::7]]", None),
        ("fe80::7%" + "x" * 1_000, None),
    ],
)
def test_a_hop_is_read_in_the_forms_that_proxies_write(hop: str, address: str | None) -> None:
    assert find_address(PROXY, [f"198.51.100.1, {hop}"], TRUSTED) == address
    assert find_address(PROXY, ["198.51.100.1", f"{hop}, 10.2.2.2"], TRUSTED) == address


def test_where_only_proxies_are_named_the_farthest_called() -> None:
    assert find_address(PROXY, [], TRUSTED) == PROXY
    assert find_address(PROXY, ["10.0.0.3, 10.0.0.2"], TRUSTED) == "10.0.0.3"
    assert find_address("::ffff:10.0.0.1", ["fd00::5", "::1"], TRUSTED) == "fd00::5"


def test_a_proxy_that_names_nobody_leaves_the_caller_unknown() -> None:
    assert find_address(PROXY, [""], TRUSTED) is None
    assert find_address(PROXY, ["192.0.2.7, "], TRUSTED) is None
    assert find_address(PROXY, ["192.0.2.7", ""], TRUSTED) is None


def test_a_socket_without_an_address_is_vouched_for_by_no_network() -> None:
    assert find_address(None, ["192.0.2.7"], parse_networks(["0.0.0.0/0", "::/0"])) is None


@table_rows("one_line", [True, False])
def test_a_way_of_too_many_hops_is_unknown(one_line: bool) -> None:
    def walk(hops: list[str]) -> str | None:
        return find_address(PROXY, [", ".join(hops)] if one_line else hops, TRUSTED)

    assert walk(["192.0.2.7"] + [PROXY] * (MAX_HOPS - 1)) == "192.0.2.7"
    assert walk(["10.0.0.9"] + [PROXY] * (MAX_HOPS - 1)) == "10.0.0.9"
    assert walk(["192.0.2.7"] + [PROXY] * MAX_HOPS) is None
    assert walk(["10.0.0.9"] + [PROXY] * MAX_HOPS) is None


def test_a_long_header_is_read_from_its_end_only() -> None:
    class Lines(list[str]):
        def __reversed__(self) -> Iterator[str]:
            yield PROXY
            yield "x" * 32_000 + ",192.0.2.7"
            raise AssertionError("read on")

    assert find_address(PROXY, Lines(), TRUSTED) == "192.0.2.7"
    assert find_address(PROXY, ["1," * 16_000 + "192.0.2.7"], TRUSTED) == "192.0.2.7"


@table_rows(
    ("address", "inside"),
    [
        ("10.255.255.255", True),
        ("11.0.0.0", False),
        ("::ffff:10.1.2.3", True),
        ("192.0.2.129", True),
        ("192.0.2.127", False),
        ("::ffff:192.0.2.129", True),
        ("2001:db8:0:ffff::1", True),
        ("2001:db9::1", False),
        ("2001:db8::1%eth0", True),
        ("10.1.2.3:80", False),
        ("10.1.2.3/32", False),
        ("", False),
        (None, False),
    ],
)
def test_an_address_is_inside_or_not(address: str | None, inside: bool) -> None:
    networks = parse_networks(["10.1.2.3/8", "::ffff:192.0.2.128/121", "2001:db8::/32"])
    assert is_inside(address, networks) is inside


def test_nothing_is_inside_no_networks() -> None:
    assert not is_inside("10.0.0.1", ())


def test_a_network_of_ipv4_in_ipv6_is_the_ipv4_network() -> None:
    mapped = ["::ffff:10.0.0.0/104", "::ffff:1.2.3.4", "::ffff:0:0/96", "::/0", "::fffe:0:0/96"]
    assert list(map(str, parse_networks(mapped))) == ["10.0.0.0/8", "1.2.3.4/32", "0.0.0.0/0", "::/0", "::fffe:0:0/96"]


@table_rows("text", ["", "x", "10.0.0.0/33", "10.0.0", "::/129", " 10.0.0.1", "10.0.0.1,10.0.0.2", "[::1]"])
def test_what_is_no_network_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="network"):
        parse_networks(["10.0.0.0/8", text])


PRIVATE_V4 = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4", "240.0.0.0/4",
]  # fmt: skip
PRIVATE_V6 = [
    "::/8", "100::/64", "64:ff9b:1::/48", "2001::/23", "2001:db8::/32", "3ffe::/16", "3fff::/20", "4000::/2",
    "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
]  # fmt: skip
OURS_ALONE = parse_networks(["192.0.0.0/24", "192.88.99.0/24", "224.0.0.0/4"])
"""Networks that some versions of ``ipaddress`` call global, wholly or in part, and we do not."""


def wrap(address: IPv4Address) -> list[IPv6Address]:
    """The same place as IPv6 writes it: mapped, behind a NAT64, 6to4."""
    number = int(address)
    return [
        IPv6Address(int(IPv6Address("::ffff:0:0")) | number),
        IPv6Address(int(IPv6Address("64:ff9b::")) | number),
        IPv6Address(int(IPv6Address("2002::1")) | number << 80),
    ]


@table_rows("network", [ip_network(text) for text in [*PRIVATE_V4, *PRIVATE_V6]], ids=str)
def test_a_private_network_is_private_from_its_first_address_to_its_last(network: IPv4Network | IPv6Network) -> None:
    for address in (network[0], network[1], network[network.num_addresses // 2], network[-1]):
        assert not is_public(address)
        assert not is_public(str(address))


@table_rows("text", [text for text in PRIVATE_V4 if text not in {"0.0.0.0/8", "240.0.0.0/4"}])
def test_what_lies_around_a_private_network_is_public(text: str) -> None:
    network = IPv4Network(text)
    assert is_public(IPv4Address(int(network[0]) - 1))
    assert is_public(IPv4Address(int(network[-1]) + 1)) or text == "224.0.0.0/4"


@table_rows(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("2001:200::1", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("2002:808:808::1", True),
        ("169.254.169.254", False),
        ("fd00:ec2::254", False),
        ("100.100.100.200", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::127.0.0.1", False),
        ("::8.8.8.8", False),
        ("::ffff:169.254.169.254", False),
        ("::ffff:0:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::808:808", False),
        ("64:ff9b::1:808:808", False),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
        ("2001:0:808:808:0:0:f7f7:f7f7", False),
        ("fe80::1%eth0", False),
        ("2606:4700::1111%eth0", False),
        ("", False),
        ("8.8.8", False),
        ("134744072", False),
        ("0x8.8.8.8", False),
        ("010.8.8.8", False),
        ("8.8.8.8 ", False),
        ("8.8.8.8:80", False),
        ("[2606:4700::1111]", False),
        ("localhost", False),
        ("\u0668.8.8.8", False),
    ],
)
def test_an_address_is_public_or_not(address: str, public: bool) -> None:
    assert is_public(address) is public


@given(V4 | st.ip_addresses(v=4, network="10.0.0.0/7") | st.ip_addresses(v=4, network="192.0.0.0/8"))
def test_of_ipv4_what_python_calls_global_is_public_and_nothing_else(address: IPv4Address) -> None:
    ours_alone = is_inside(str(address), OURS_ALONE)
    assert is_public(address) is (address.is_global and not ours_alone)
    assert [is_public(wrapped) for wrapped in wrap(address)] == [is_public(address)] * 3


@given(V6 | st.ip_addresses(v=6, network="2000::/3") | st.ip_addresses(v=6, network="2001::/16"))
def test_of_ipv6_what_is_public_python_calls_global(address: IPv6Address) -> None:
    public = is_public(address)
    assert not public or address.is_global
    elsewhere = parse_networks(["2001::/23", "2001:db8::/32", "2002::/16", "3ffe::/16", "3fff::/20"])
    if address in IPv6Network("2000::/3") and not is_inside(str(address), elsewhere):
        assert public


@given(st.text() | st.text("0123456789abcdefx.:%[]"))
def test_what_is_no_address_is_not_public(text: str) -> None:
    if is_public(text):
        assert str(ip_address(text))
