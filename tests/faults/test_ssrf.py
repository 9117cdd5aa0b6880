"""A provider's link that leads to this machine or its network: nothing is ever connected to.

A victim listens on the loopback addresses. Whatever is tried, it must not get a connection, on either event loop.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.domain.ip_address import Networks, parse_networks
from gateway.errors import ProviderBadResponse
from gateway.upstream.interface import FileRequest
from gateway.upstream.safe_fetch import MAX_REDIRECTS, SafeFetcher

STRANGER: Networks = ()
ENTRY = "127.0.0.2"
"""Stands for a public server: the one address that is allowed."""
ENTRY_ONLY = parse_networks([ENTRY])
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"

LITERALS = [
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://127.0.0.1..:{port}/",
    "http://127.8.8.8:{port}/",
    "http://0.0.0.0:{port}/",
    "http://0:{port}/",
    "http://2130706433:{port}/",
    "http://017700000001:{port}/",
    "http://0x7f000001:{port}/",
    "http://0X7F.1:{port}/",
    "http://0x7f.0x0.0x0.0x1:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://0177.0.0.01:{port}/",
    "http://127.1:{port}/",
    "http://127.0.1:{port}/",
    "http://127.0.0.0x1:{port}/",
    "http://4294967296127.0.0.1:{port}/",
    "http://127.0.0.257:{port}/",
    "http://%31%32%37.0.0.1:{port}/",
    "http://127%2e0%2e0%2e1:{port}/",
    "http://127.0.0.1%00.public.test:{port}/",
    "http://[::1]:{port}/",
    "http://[::]:{port}/",
    "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[::1%25lo]:{port}/",
    "http://[::1%lo]:{port}/",
    "http://[fe80::1%251]:{port}/",
    "http://[::127.0.0.1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::FFFF:7F00:1]:{port}/",
    "http://[::ffff:0:127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/",
    "http://[64:ff9b::127.0.0.1]:{port}/",
    "http://[64:ff9b:1::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[2001:0:7f00:1::80ff:fffe]:{port}/",
    "http://[fc00::1]:{port}/",
    "http://[127.0.0.1]:{port}/",
    "http://\uff11\uff12\uff17.0.0.1:{port}/",
    "http://\u2460\u2461\u2466.0.0.1:{port}/",
    "http://127\u30020\u30020\u30021:{port}/",
    "http://127\uff0e0\uff0e0\uff0e1:{port}/",
    "http://\u0661\u0662\u0667.0.0.1:{port}/",
    "http://127.0.0.1:\u0668\u0660/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/latest/meta-data/",
    "http://[64:ff9b::a9fe:a9fe]/latest/meta-data/",
    "http://2852039166/latest/meta-data/",
    "http://100.100.100.200/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://10.0.0.1/",
    "http://192.168.0.1/",
    "http://172.16.0.1/",
]
"""Addresses as they can be written, and as libraries have been fooled into reading them."""

TRICKS = [
    "http://localhost:{port}/",
    "http://localhost.:{port}/",
    "http://LOCALHOST:{port}/",
    "http://\uff4cocalhost:{port}/",
    "http://loc\u00adalhost:{port}/",
    "http://public.test@127.0.0.1:{port}/",
    "http://public.test:80@127.0.0.1:{port}/",
    "http://@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@public.test/",
    "http://public.test\\@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@public.test/",
    "http:\\\\127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@public.test/",
    "http://127.0.0.1:{port}?@public.test/",
    "http://127.0.0.1:{port};@public.test/",
    "http://127.0.0.1 :{port}/",
    " http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/ HTTP/1.1\r\nX: ",
    "ht\ntp://127.0.0.1:{port}/",
    "http://127.0.\t0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "http:/127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "127.0.0.1:{port}",
    "HTTP://127.0.0.1:{port}/",
    "https://127.0.0.1:{port}/",
    "ws://127.0.0.1:{port}/",
    "ftp://127.0.0.1:{port}/",
    "gopher://127.0.0.1:{port}/_GET%20/",
    "dict://127.0.0.1:{port}/",
    "unix://127.0.0.1:{port}/",
    "tcp://127.0.0.1:{port}/",
    "file:///etc/passwd",
    "file://127.0.0.1:{port}/",
    "data:image/png;base64,AAAA",
    "javascript:alert(1)",
    "http://",
    "http://:{port}/",
    "",
]

NAMES: Mapping[str, Sequence[str]] = {
    "localhost": ["127.0.0.1", "::1"],
    "127.0.0.1.nip.test": ["127.0.0.1"],
    "six.test": ["::1"],
    "mapped.test": ["::ffff:127.0.0.1"],
    "nat64.test": ["64:ff9b::7f00:1"],
    "6to4.test": ["2002:7f00:1::"],
    "zoned.test": ["::1%lo"],
    "any.test": ["0.0.0.0", "::"],  # noqa: S104 - the point
    "short.test": ["127.1"],
    "number.test": ["2130706433"],
    "name.test": ["localhost"],
    "metadata.test": ["169.254.169.254"],
    "several.test": ["10.0.0.1", "127.0.0.1", "::1", "fd00::1"],
    "xn--mnchen-3ya.test": ["127.0.0.1"],
}
"""Names, and what the resolver answers."""


class Resolver(AbstractResolver):
    """Answers from a table; what the C library would read as an address, it reads so, too."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self.names = names
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        answers = self.names.get(host.rstrip(".").lower())
        if answers is None:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            answers = [str(place[0]) for *_, place in found]
        return [
            ResolveResult(hostname=host, host=answer, port=port, family=family, proto=0, flags=0) for answer in answers
        ]

    async def close(self) -> None:
        pass


class Listener:
    """Counts who connects, and answers everybody alike."""

    def __init__(self, answer: bytes = GOOD) -> None:
        self.answer = answer
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answer)
            await writer.drain()
        writer.close()


@contextlib.contextmanager
def bind(*addresses: str) -> Iterator[list[socket.socket]]:
    """One port on several addresses."""
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            port, bound = 0, []
            for address in addresses:
                kind = socket.AF_INET6 if ":" in address else socket.AF_INET
                sock = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM))
                try:
                    sock.bind((address, port))
                except OSError:  # somebody else has the port there
                    break
                port = sock.getsockname()[1]
                bound.append(sock)
            else:
                yield bound
                return
    raise AssertionError("no port is free on all of them")


@contextlib.asynccontextmanager
async def listen(listener: Listener, *addresses: str) -> AsyncIterator[int]:
    """Serve it; yields the port."""
    with bind(*addresses) as bound:
        servers = [await asyncio.start_server(listener.serve, sock=sock.dup()) for sock in bound]
        try:
            yield int(bound[0].getsockname()[1])
        finally:
            for server in servers:
                server.close()
                await server.wait_closed()
            await asyncio.sleep(0)


Run = Callable[[Awaitable[None]], None]


def list_loops() -> list[tuple[str, Callable[[], asyncio.AbstractEventLoop]]]:
    loops: list[tuple[str, Callable[[], asyncio.AbstractEventLoop]]] = [("asyncio", asyncio.new_event_loop)]
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - not on every platform

        loops.append(("uvloop", uvloop.new_event_loop))
    return loops


@pytest.fixture(params=list_loops(), ids=lambda param: param[0])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param[1]) as runner:
        yield runner


async def attack(
    url: str, allow: Networks = STRANGER, names: Mapping[str, Sequence[str]] = NAMES, *, proxy: str | None = None
) -> bytes:
    fetcher = SafeFetcher(find_allowed_networks=lambda: allow, resolver=Resolver(names))
    try:
        return await fetcher.fetch(url, trusted_origin=None, proxy=proxy, limit_bytes=1000, timeout_s=5)
    finally:
        await fetcher.close()


async def must_not_connect(
    template: str, allow: Networks = STRANGER, *, redirected: bool = False, proxied: bool = False
) -> None:
    """Try ``template`` against the victim: refused before anything is connected to."""
    victim = Listener()
    async with listen(victim, "127.0.0.1", "::1") as port:
        target = template.replace("{port}", str(port))
        head = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
        entry = Listener(head)
        async with listen(entry, ENTRY) as entry_port:
            url = f"http://{ENTRY}:{entry_port}/picture.png" if redirected else target
            proxy = f"http://127.0.0.1:{port}" if proxied else None
            with pytest.raises(ProviderBadResponse, match=r"^The provider's link ") as refused:
                await attack(url, allow, proxy=proxy)
        assert victim.connections == 0, ascii(template)
        assert entry.connections == int(redirected), ascii(template)
        assert str(port) not in refused.value.message
        assert not any(part in refused.value.message for part in ("127", "::", ".test", "localhost", "169"))


LINKS = (*LITERALS, *TRICKS, *(f"http://{name}:{{port}}/" for name in NAMES))
LOCATIONS = (
    *(link for link in LINKS if link.isascii() and link.isprintable()),
    "\\\\127.0.0.1:{port}/",
    "/\\127.0.0.1:{port}/",
    "///127.0.0.1:{port}/",
)
RELATIVE = {"", "127.0.0.1:{port}", " http://127.0.0.1:{port}/"}
"""To where they were said, or without the space: covered by the others."""


@pytest.mark.slow
def test_no_link_to_a_private_place_connects(runner: asyncio.Runner) -> None:
    for link in LINKS:
        runner.run(must_not_connect(link))


@pytest.mark.slow
def test_no_redirect_to_a_private_place_connects(runner: asyncio.Runner) -> None:
    for location in LOCATIONS:
        if location not in RELATIVE:
            runner.run(must_not_connect(location, ENTRY_ONLY, redirected=True))


Way = Callable[[SafeFetcher, str], Awaitable[object]]


def open_file(fetcher: SafeFetcher, url: str) -> Awaitable[object]:
    return fetcher.open(FileRequest(url, None, signature=(("Authorization", "secret"),)))


def send_webhook(fetcher: SafeFetcher, url: str) -> Awaitable[object]:
    return fetcher.post(url, b"secret", {}, 5)


async def must_refuse(go: Way, fetcher: SafeFetcher, url: str) -> None:
    with pytest.raises(ProviderBadResponse, match=r"^The (provider's link|webhook's address) ") as refused:
        await go(fetcher, url)
    assert not any(part in refused.value.message for part in ("127", "::", ".test", "localhost", "169"))


@pytest.mark.parametrize("access", [open_file, send_webhook])
def test_no_file_is_opened_and_no_webhook_sent_there_either(runner: asyncio.Runner, access: Way) -> None:
    async def try_all() -> None:
        victim = Listener()
        fetcher = SafeFetcher(find_allowed_networks=lambda: STRANGER, resolver=Resolver(NAMES))
        async with listen(victim, "127.0.0.1", "::1") as port:
            for template in [*LITERALS, *TRICKS, *(f"http://{name}:{{port}}/" for name in NAMES)]:
                await must_refuse(access, fetcher, template.replace("{port}", str(port)))
        await fetcher.close()
        assert victim.connections == 0

    runner.run(try_all())


LED_TO = ["127.0.0.1", "[::1]", "[::ffff:7f00:1]", "2130706433", "localhost", "mapped.test", f"a@{ENTRY}", ENTRY]


def test_no_redirect_leads_a_file_there_and_a_webhook_follows_none(runner: asyncio.Runner) -> None:
    async def be_led() -> None:
        victim, entry = Listener(), Listener()
        fetcher = SafeFetcher(find_allowed_networks=lambda: ENTRY_ONLY, resolver=Resolver(NAMES))
        async with listen(victim, "127.0.0.1", "::1") as port, listen(entry, ENTRY) as entry_port:
            for host in LED_TO:
                to = f"http://{host}:{entry_port if host == ENTRY else port}/"
                entry.answer = f"HTTP/1.1 307 Go\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
                assert await fetcher.post(f"http://{ENTRY}:{entry_port}/", b"secret", {}, 5) == 307
                if host != ENTRY:
                    await must_refuse(open_file, fetcher, f"http://{ENTRY}:{entry_port}/")
        await fetcher.close()
        assert (victim.connections, entry.connections) == (0, 2 * len(LED_TO) - 1)

    runner.run(be_led())


PROXIED = [
    *LITERALS,
    *TRICKS,
    *(f"http://{name}:{{port}}/" for name in ("localhost", "box", "a.localhost", "a.local.")),
]


@pytest.mark.slow
def test_no_proxy_is_asked_for_what_is_private_as_it_is_written(runner: asyncio.Runner) -> None:
    for link in (*PROXIED, "http://metadata.google.internal/", "https://box.lan/", "http://api.default.svc/"):
        runner.run(must_not_connect(link, proxied=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "six.test", "mapped.test"])
def test_the_victim_can_be_reached_where_it_is_allowed(runner: asyncio.Runner, host: str) -> None:
    """So that the tests above can fail."""

    async def reach() -> None:
        victim = Listener()
        async with listen(victim, "127.0.0.1", "::1") as port:
            everything = parse_networks(["0.0.0.0/0", "::/0"])
            assert await attack(f"http://{host}:{port}/", everything) == b"secret"
        assert victim.connections == 1

    runner.run(reach())


@pytest.mark.parametrize("host", ["[::1%25lo]", "zoned.test", "short.test", "number.test", "name.test", "0x7f.1"])
def test_what_is_no_plain_address_is_refused_even_where_everything_is_allowed(
    runner: asyncio.Runner, host: str
) -> None:
    runner.run(must_not_connect(f"http://{host}:{{port}}/", parse_networks(["0.0.0.0/0", "::/0"])))


@pytest.mark.parametrize("answers", [["127.0.0.1", ENTRY], [ENTRY, "127.0.0.1"], ["::1", ENTRY, "127.0.0.1"]])
@pytest.mark.parametrize("public_works", [True, False])
def test_of_a_public_and_a_private_answer_only_the_public_one_is_tried(
    runner: asyncio.Runner, answers: list[str], public_works: bool
) -> None:
    async def reach() -> None:
        victim, entry = Listener(), Listener(GOOD.replace(b"secret", b"public"))
        with bind("127.0.0.1", "::1", ENTRY) as (four, six, public):
            port = four.getsockname()[1]
            servers = [await asyncio.start_server(victim.serve, sock=sock.dup()) for sock in (four, six)]
            if public_works:
                servers.append(await asyncio.start_server(entry.serve, sock=public.dup()))
            try:
                fetched = attack(f"http://mixed.test:{port}/", ENTRY_ONLY, {"mixed.test": answers})
                if public_works:
                    assert await fetched == b"public"
                else:
                    with pytest.raises(ProviderBadResponse):
                        await fetched
            finally:
                for server in servers:
                    server.close()
                    await server.wait_closed()
            assert (victim.connections, entry.connections) == (0, int(public_works))

    runner.run(reach())


def test_a_name_that_turns_private_is_judged_again(runner: asyncio.Runner) -> None:
    """Rebinding: what is judged is what is connected to, and nothing is kept from the time before."""

    async def turn() -> None:
        victim, entry = Listener(), Listener(GOOD)
        names = {"turning.test": [ENTRY]}
        resolver = Resolver(names)
        fetcher = SafeFetcher(find_allowed_networks=lambda: ENTRY_ONLY, resolver=resolver)
        with bind(ENTRY, "127.0.0.1") as bound:
            servers = [
                await asyncio.start_server(listener.serve, sock=sock.dup())
                for listener, sock in zip((entry, victim), bound, strict=True)
            ]
            url = f"http://turning.test:{bound[0].getsockname()[1]}/"
            limits = {"limit_bytes": 100, "timeout_s": 5}
            try:
                assert await fetcher.fetch(url, trusted_origin=None, proxy=None, **limits) == b"secret"
                assert resolver.asked == ["turning.test"]
                names["turning.test"] = ["127.0.0.1"]
                with pytest.raises(ProviderBadResponse, match="fetches nothing from"):
                    await fetcher.fetch(url, trusted_origin=None, proxy=None, **limits)
            finally:
                await fetcher.close()
                for server in servers:
                    server.close()
                    await server.wait_closed()
        assert (victim.connections, entry.connections) == (0, 1)

    runner.run(turn())


def test_a_ring_of_redirects_is_left(runner: asyncio.Runner) -> None:
    async def go_round() -> None:
        entry = Listener(b"HTTP/1.1 307 Again\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")
        async with listen(entry, ENTRY) as port:
            with pytest.raises(ProviderBadResponse, match="redirected too often"):
                await attack(f"http://{ENTRY}:{port}/", ENTRY_ONLY)
        assert entry.connections == 1 + MAX_REDIRECTS

    runner.run(go_round())
