"""The gateway serves HTTPS itself: over its own certificate, which is renewed under open connections."""

import asyncio
import hashlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from gateway.storage.data_folder import find_holder
from tests.support.certificates import write_certificate
from tests.support.command_line import run_many
from tests.support.fault_scene import PRICE
from tests.support.gateway import CHAT, HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess
from tests.support.scripted_upstream import DONE, LAST_CHUNK, SSE_HEAD, ScriptedUpstream, Step, chunk, delta, event

pytestmark = pytest.mark.slow


@asynccontextmanager
async def serving(folder: Path, **server: Any) -> AsyncIterator[tuple[GatewayProcess, asyncio.Event]]:
    """A gateway with TLS, and the event after which its provider ends a stream."""
    go_on = asyncio.Event()

    async def wait(_received: object) -> None:
        await go_on.wait()

    certificate, key = write_certificate(folder)
    script: list[Step] = [SSE_HEAD, chunk(event(delta("a"))), wait, chunk(event(delta("b", "stop")) + DONE), LAST_CHUNK]
    async with ScriptedUpstream(script) as up:
        tables = {
            "server": {"log_format": "json", "tls_certificate": str(certificate), "tls_key": str(key), **server},
            "channel": [channel(up.base_url, first_byte_timeout_s=30, idle_timeout_s=30, total_timeout_s=60)],
            "price": [PRICE],
            "account": [{"name": "acme"}],
            "key": [{"name": "test", "account": "acme", "secret": KEY}],
        }
        async with GatewayProcess(folder / "data", tables) as gateway:
            yield gateway, go_on


def trust(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


async def find_shown(url: str) -> str:
    """The SHA-256 of the certificate that a new connection gets."""
    async with connected(url) as (_, shown):
        return shown


Ask = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Ask, str]]:
    """A connection that is kept: how to ask over it for the status line of a probe, and its certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    async def ask() -> bytes:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        return head.partition(b"\r\n")[0]

    try:
        yield ask, hashlib.sha256(shown).hexdigest()
    finally:
        writer.close()
        await writer.wait_closed()


def command(gateway: GatewayProcess, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--data", str(gateway.data)], env={"GATEWAY_DISCOVER": "0"})


async def test_a_renewal_leaves_open_connections_and_a_stream_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, go_on):
        assert gateway.url.startswith("https://127.0.0.1:")
        headers = {"Authorization": f"Bearer {KEY}"}
        connector = aiohttp.TCPConnector(ssl=trust(tmp_path))
        async with (
            aiohttp.ClientSession(headers=headers, connector=connector) as client,
            connected(gateway.url) as (ask, first),
        ):
            assert await ask() == b"HTTP/1.1 200 OK"
            stream = await client.post(gateway.url + CHAT, json={**HELLO, "stream": True})
            assert b"a" in await stream.content.readany()
            write_certificate(tmp_path)
            done = await asyncio.to_thread(command, gateway, "reload")
            assert done.exit_code == 0, done.output
            assert "the certificate changed; it expires at" in done.stdout
            second = await find_shown(gateway.url)
            assert second != first
            assert (find_holder(gateway.data) or {})["certificate"] == second
            go_on.set()
            assert (await stream.content.read()).endswith(DONE)
            assert await ask() == b"HTTP/1.1 200 OK"
        async with (
            aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=trust(tmp_path))) as client,
            client.get(f"{gateway.url}/v1/models") as response,
        ):
            assert response.status == 200
        listed = await asyncio.to_thread(command, gateway, "accounts")
        assert (listed.exit_code, "acme" in listed.stdout) == (0, True), listed.output


async def test_a_signal_renews_too_and_half_a_renewal_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        first = await find_shown(gateway.url)
        old_key = (tmp_path / "key.pem").read_bytes()
        write_certificate(tmp_path)
        new_key = (tmp_path / "key.pem").read_bytes()
        (tmp_path / "key.pem").write_bytes(old_key)
        refused = await asyncio.to_thread(command, gateway, "reload")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "does not belong to the certificate" in refused.stderr
        assert await find_shown(gateway.url) == first
        (tmp_path / "key.pem").write_bytes(new_key)
        os.kill(gateway.pid, signal.SIGHUP)
        async with asyncio.timeout(20):
            while await find_shown(gateway.url) == first:  # noqa: ASYNC110 - another process has no event to tend
                await asyncio.sleep(0.02)


async def test_plain_http_and_old_tls_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (gateway, _):
        host, port = gateway.url.removeprefix("https://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        with_http = b""
        with suppress(ConnectionError):
            with_http = await reader.read()
        writer.close()
        assert not with_http.startswith(b"HTTP")
        old = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.deprecated_call():
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection((host, int(port))) as sock, pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(old.wrap_socket, sock, server_hostname=host)
        opened = await asyncio.to_thread(command, gateway, "open", "--print")
        assert opened.stdout.startswith("https://")
        found = await asyncio.to_thread(command, gateway, "doctor", "--config", str(gateway.config))
        assert "The certificate is valid until" in found.stdout
        assert f"answers at {gateway.url}" in found.stdout


def test_files_that_cannot_be_used_are_named_at_the_start(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    (tmp_path / "x.toml").write_text('[server]\ntls_certificate = "cert.pem"\ntls_key = "missing.pem"\n')
    words = ["serve", "--port", "0", "--data", str(tmp_path / "data"), "--config", str(tmp_path / "x.toml")]
    ((code, out, err),) = run_many(tmp_path, words)
    assert (code, out) == (2, "")
    assert "missing.pem cannot be read: No such file or directory" in err
    assert "Traceback" not in err
