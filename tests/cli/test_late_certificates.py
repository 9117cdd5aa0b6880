"""aiohttp's TLS contexts read the trusted certificates at their first connection, and verify as ever."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.certificates import write_certificate

CLIENT = """
import asyncio, gc, pathlib, ssl, sys
from gateway.cli.late_certificates import import_aiohttp

assert "aiohttp" not in sys.modules
import_aiohttp()
import aiohttp, uvloop

def count_certificates():
    contexts = [found for found in gc.get_objects() if isinstance(found, ssl.SSLContext)]
    return len(contexts), sum(context.cert_store_stats()["x509"] for context in contexts)

async def get(url):
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            try:
                async with session.get(url) as response:
                    print(response.status)
            except aiohttp.ClientConnectorCertificateError:
                print("refused")
            if late:
                pathlib.Path(late[0]).rename(late[1])
                late.clear()

assert count_certificates() == (2, 0), count_certificates()
url, loop, *late = sys.argv[1:]
with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
    runner.run(get(url))
print(count_certificates()[1])
assert ssl.create_default_context().cert_store_stats()["x509"] == count_certificates()[1]
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_certificates_are_read_at_the_first_connection_and_verify(tmp_path: Path, loop: str) -> None:
    (tmp_path / "another").mkdir()
    unrelated, _ = write_certificate(tmp_path / "another")
    async with serve_tls(tmp_path) as (url, certificate):
        assert await run_client(url, loop, certificate) == ["404", "404", "1"]
        assert await run_client(url, loop, unrelated) == ["refused", "refused", "1"]


async def test_certificates_that_could_not_be_read_are_read_at_the_next_connection(tmp_path: Path) -> None:
    async with serve_tls(tmp_path) as (url, certificate):
        missing = tmp_path / "missing.pem"
        assert await run_client(url, "uvloop", missing, str(certificate), str(missing)) == ["refused", "404", "1"]


@asynccontextmanager
async def serve_tls(folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """A server's URL, and the file of its certificate."""
    certificate, key = write_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = TestServer(web.Application(), host="127.0.0.1", scheme="https")
    await server.start_server(ssl=context)
    try:
        yield str(server.make_url("/")), certificate
    finally:
        await server.close()


async def run_client(url: str, loop: str, trusted: Path, *late: str) -> list[str]:
    """Return what the client prints if it trusts the certificate in the file ``trusted``.

    ``late``: a file, and its new name after the first request.
    """
    environ = {**os.environ, "SSL_CERT_FILE": str(trusted), "SSL_CERT_DIR": str(trusted.parent / "none")}
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, url, loop, *late, env=environ, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await client.communicate()
    assert client.returncode == 0
    return printed.decode().split()
