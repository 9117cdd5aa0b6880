"""Proxies that lead wherever they are asked to, which here is always the same provider; and certificates."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from tests.support.certificates import write_certificate


@attrs.define
class Passed:
    """What a proxy was told, one item a connection."""

    asked: list[bytes] = attrs.field(factory=list)
    port: int = 0


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _lead_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    there, back = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(_pipe(reader, back), _pipe(there, writer))


@asynccontextmanager
async def tunnel(port: int, reply: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> AsyncIterator[Passed]:
    """A proxy for CONNECT, which answers ``reply`` and leads on to ``port`` here."""
    passed = Passed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply)
        if b" 200 " in reply:
            await _lead_on(reader, writer, port)
        else:
            await reader.read(1)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        passed.port = server.sockets[0].getsockname()[1]
        yield passed
        await asyncio.sleep(0.01)


@asynccontextmanager
async def socks(
    port: int, *, password: bytes = b"", reply: bytes = b"\x05\x00\x00\x01" + bytes(6)
) -> AsyncIterator[Passed]:
    """A SOCKS5 proxy (RFC 1928, RFC 1929), which answers ``reply`` and leads on to ``port`` here."""
    passed = Passed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        offered = await reader.readexactly((await reader.readexactly(2))[1])
        writer.write(b"\x05\x02" if password else b"\x05\x00")
        if password:
            user = await reader.readexactly((await reader.readexactly(2))[1])
            given = await reader.readexactly((await reader.readexactly(1))[0])
            writer.write(b"\x01\x00" if given == password else b"\x01\x01")
            offered += user
        kind = (await reader.readexactly(4))[3]
        length = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        passed.asked.append(offered + b"|" + await reader.readexactly(length + 2))
        writer.write(reply)
        await _lead_on(reader, writer, port)

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(play, "127.0.0.1", 0)
    async with server:
        passed.port = server.sockets[0].getsockname()[1]
        yield passed
        await asyncio.sleep(0.01)


def make_context(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context for the host ``name``, and the file with its certificate, which nobody vouches for."""
    certificate, private = write_certificate(folder, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    return context, certificate
