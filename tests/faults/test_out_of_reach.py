"""U1 and U3: nothing listens, nobody answers, no such name; TLS that is not TLS, or not to be trusted."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.fakes.gateway import channel
from tests.fakes.upstream import STALL, ScriptedUpstream
from tests.faults.scene import (
    audit,
    call,
    check_error,
    check_row_of_failure,
    check_row_of_success,
    good_script,
    healthy,
    site,
)

REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@contextmanager
def deaf_listener() -> Iterator[str]:
    """An address whose queue of connections is full, so that the next one is never accepted."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(address)
        yield f"http://127.0.0.1:{address[1]}/v1"
        for sock in waiting:
            sock.close()


@contextmanager
def nobody() -> Iterator[str]:
    """An address on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@contextmanager
def no_such_name() -> Iterator[str]:
    yield "http://provider.invalid/v1"


PLACES = [(nobody, {"upstream_error"}), (deaf_listener, {"upstream_timeout"}), (no_such_name, {"upstream_error"})]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("place", "codes"), PLACES)
async def test_a_provider_out_of_reach_is_an_error(
    gateway_with: StartGateway,
    place: object,
    codes: set[str],
    stream: bool,
) -> None:
    with place() as base_url:  # type: ignore[operator]
        # A resolver may take longer to say no than the channel is willing to wait.
        timers = {"connect_timeout_s": 5 if place is no_such_name else 0.15}
        gateway = await gateway_with(site(channel(base_url, "bad", **timers)))
        heard = await call(gateway, stream=stream)
        (code,) = codes
        check_error(heard, code)
        check_row_of_failure(await audit(gateway), code, attempts=1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", [place for place, _ in PLACES])
async def test_a_provider_out_of_reach_is_passed_over(
    gateway_with: StartGateway,
    place: object,
    stream: bool,
) -> None:
    async with ScriptedUpstream(good_script(stream=stream)) as good:
        with place() as base_url:  # type: ignore[operator]
            bad = channel(base_url, "bad", connect_timeout_s=0.15)
            gateway = await gateway_with(site(bad, healthy(good)))
            heard = await call(gateway, stream=stream)
            assert heard.status == 200
            check_row_of_success(await audit(gateway), "healthy", attempts=2)
            assert len(good.received) == 1


async def test_three_channels_are_tried_and_the_last_fault_is_the_answer(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as silent, ScriptedUpstream(good_script(stream=False)) as fourth:
        with nobody() as one, nobody() as two:
            ups = [channel(one, "one"), channel(two, "two"), channel(silent.base_url, "three", total_timeout_s=0.15)]
            gateway = await gateway_with(site(*ups, healthy(fourth)))
            check_error(await call(gateway, stream=False), "upstream_timeout")
            row = await audit(gateway, silent, channel="three")
            check_row_of_failure(row, "upstream_timeout", attempts=3)
            assert not fourth.received


@pytest.mark.parametrize("stream", [False, True])
async def test_tls_to_a_plaintext_port_is_never_downgraded(gateway_with: StartGateway, stream: bool) -> None:
    async with ScriptedUpstream([STALL], greeting=REFUSAL) as plain:
        base_url = plain.base_url.replace("http://", "https://")
        gateway = await gateway_with(site(channel(base_url, "bad")))
        check_error(await call(gateway, stream=stream), "upstream_error")
        check_row_of_failure(await audit(gateway, plain), "upstream_error", attempts=1)
        assert not plain.received


async def test_tls_to_a_port_that_says_nothing_is_a_timeout(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as plain:
        base_url = plain.base_url.replace("http://", "https://")
        gateway = await gateway_with(site(channel(base_url, "bad", connect_timeout_s=0.15)))
        check_error(await call(gateway, stream=True), "upstream_timeout")
        await audit(gateway, plain, ending="upstream_failed")
        assert not plain.received


@pytest.fixture(scope="session")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A server context whose certificate has the right name and nobody's trust."""
    openssl = shutil.which("openssl")
    if openssl is None:
        assert "CI" not in os.environ, "the openssl command is missing, and CI installs it"
        pytest.skip("makes its certificate with the openssl command")
    folder: Path = tmp_path_factory.mktemp("tls")
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([openssl, *made, *names, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize("stream", [False, True])
async def test_a_certificate_that_nobody_vouches_for_is_not_accepted(
    gateway_with: StartGateway,
    self_signed: ssl.SSLContext,
    stream: bool,
) -> None:
    async with ScriptedUpstream(good_script(stream=stream), tls=self_signed) as bad:
        async with ScriptedUpstream(good_script(stream=stream)) as good:
            gateway = await gateway_with(site(channel(bad.base_url, "bad"), healthy(good)))
            assert (await call(gateway, stream=stream)).status == 200
            check_row_of_success(await audit(gateway, bad), "healthy", attempts=2)
        check_error(await call(gateway, stream=stream), "upstream_error")
        assert not bad.received
