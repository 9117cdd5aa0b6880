"""Eight clients that nobody wants: ``python -m tests.support.attackers URL KEY SECONDS``, or beside a test as tasks."""

import asyncio
import contextlib
import random
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

from tests.support.compressed_runs import compress_run
from tests.support.gateway import CHAT
from tests.support.raw_client import hello, post

MB = 2**20
HELD = 150
"""Connections that each of those that hold them opens at a time."""
Attack = Callable[["Target"], Awaitable[None]]


class Target:
    """A gateway under attack; ``key`` is a good one, for those that have one."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self.place = parts.hostname or "", parts.port or 0
        self.key = key
        self.bomb = compress_run(b" ", 64)
        self.rng = random.Random(17)  # noqa: S311 - no secret

    async def open(self) -> socket.socket:
        """A connection; narrow: the kernel of a client that does not read holds little."""
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        try:
            async with asyncio.timeout(2):
                await asyncio.get_running_loop().sock_connect(sock, self.place)
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[list[socket.socket]]:
        """So many connections, for the length of the block."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(contextlib.closing(await self.open())) for _ in range(count)]

    async def tell(self, sock: socket.socket, data: bytes, wait_s: float = 1.0) -> bytes:
        """Send, and hear what is said next."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(wait_s):
            await loop.sock_sendall(sock, data)
            return await loop.sock_recv(sock, 65536)


def ask(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *lines]).encode() + b"\r\n\r\n"


async def send_junk(target: Target) -> None:
    """What is no HTTP, or badly framed."""
    sock = await target.open()
    with contextlib.closing(sock):
        junk = target.rng.choice(
            [
                target.rng.randbytes(2_000),
                ask("/healthz") + b"NONSENSE\r\n\r\n",
                b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
                post(b"{}", "Transfer-Encoding: gzip, chunked"),
                post(b"{" * 100_000, key=target.key),
                ask("/" + "a" * 20_000),
            ]
        )
        await target.tell(sock, junk)


async def send_bombs(target: Target) -> None:
    """64 MB of nothing in 64 KB, without a key and with one."""
    sock = await target.open()
    with contextlib.closing(sock):
        key = target.rng.choice(["sk-unknown-key-of-a-stranger", target.key])
        await target.tell(sock, post(target.bomb, "Content-Encoding: gzip", key=key))
        await asyncio.sleep(0.05)


async def leave(target: Target) -> None:
    """Calls that nobody waits for."""
    sock = await target.open()
    with contextlib.closing(sock):
        raw = post(hello(stream=target.rng.random() < 0.5), key=target.key)
        await asyncio.get_running_loop().sock_sendall(sock, raw[: target.rng.randint(1, len(raw))])


async def idle(target: Target) -> None:
    """Connections that say nothing, or nothing more."""
    async with target.hold(HELD) as held:
        for sock in held[::3]:
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(sock, ask("/healthz"))
        await asyncio.sleep(1)


async def flood(target: Target) -> None:
    """One request after the other."""
    sock = await target.open()
    with contextlib.closing(sock):
        for _ in range(100):
            path, line = target.rng.choice(
                [("/healthz", "A: b"), ("/v1/models", "Authorization: Bearer sk-unknown-key"), ("/nothing", "A: b")]
            )
            await target.tell(sock, ask(path, line))


async def drip(target: Target) -> None:
    """Heads and bodies that never end."""
    head = post(b"x" * 5_000, path=target.rng.choice([CHAT, "/admin/v1/session"]), key="sk-unknown-key-of-a-stranger")
    async with target.hold(HELD) as held:
        for end in (10, 60, 150, 151):
            for sock in held:
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(sock, head[:end])
            await asyncio.sleep(0.3)


async def read_nothing(target: Target) -> None:
    """Answers that nobody reads."""
    async with target.hold(20) as held:
        for sock in held:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(0.1):
                    path = target.rng.choice(["/docs", "/healthz", "/openapi.json"])
                    await asyncio.get_running_loop().sock_sendall(sock, ask(path) * 50)
        await asyncio.sleep(1)


async def send_much(target: Target) -> None:
    """The largest bodies that there may be, with a good key."""
    sock = await target.open()
    with contextlib.closing(sock):
        text = b"x" * target.rng.choice([1 * MB, 4 * MB, 15 * MB])
        body = b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}],"n":0}'
        await target.tell(sock, post(body, key=target.key), wait_s=10)
        await asyncio.sleep(0.25)


ATTACKS: tuple[Attack, ...] = (send_junk, send_bombs, leave, idle, flood, drip, read_nothing, send_much)


async def keep_on(attack: Attack, target: Target) -> None:
    """Again and again, whatever comes of it."""
    while True:
        try:
            await attack(target)
        except (OSError, TimeoutError):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def under_attack(url: str, key: str) -> AsyncIterator[None]:
    """All eight at once, as long as the block."""
    target = Target(url, key)
    tasks = [asyncio.create_task(keep_on(attack, target)) for attack in ATTACKS]
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def main(url: str, key: str, seconds: float) -> None:
    async with under_attack(url, key):
        await asyncio.sleep(seconds)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
