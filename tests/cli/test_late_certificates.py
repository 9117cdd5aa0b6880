"""aiohttp's TLS contexts read the trusted certificates at their first connection, and verify as ever."""

import asyncio
import os
import ssl
import sys
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.certificates import write_certificate

CLIENT = """
import asyncio, gc, ssl, sys
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

assert count_certificates() == (2, 0), count_certificates()
url, loop = sys.argv[1:]
with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
    runner.run(get(url))
print(count_certificates()[1])
assert ssl.create_default_context().cert_store_stats()["x509"] == count_certificates()[1]
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_certificates_are_read_at_the_first_connection_and_verify(tmp_path: Path, loop: str) -> None:
    (tmp_path / "another").mkdir()
    certificate, key = write_certificate(tmp_path)
    unrelated, _ = write_certificate(tmp_path / "another")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = TestServer(web.Application(), host="127.0.0.1", scheme="https")
    await server.start_server(ssl=context)
    try:
        url = str(server.make_url("/"))
        assert await run_client(url, loop, certificate) == ["404", "404", "1"]
        assert await run_client(url, loop, unrelated) == ["refused", "refused", "1"]
    finally:
        await server.close()


async def run_client(url: str, loop: str, trusted: Path) -> list[str]:
    """Return what the client prints if it trusts the certificate in the file ``trusted``."""
    environ = {**os.environ, "SSL_CERT_FILE": str(trusted), "SSL_CERT_DIR": str(trusted.parent / "none")}
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, url, loop, env=environ, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await client.communicate()
    assert client.returncode == 0
    return printed.decode().split()
