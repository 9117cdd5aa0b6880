"""U1 and U3: nothing listens, nobody answers, no such name; TLS that is not TLS, or not to be trusted."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.domain.request_log import parse_attempts
from tests.support.fault_scene import (
    UNHURRIED,
    audit,
    call,
    check_error,
    check_row_of_failure,
    check_row_of_success,
    check_trail,
    good_script,
    healthy,
    read_word,
    site,
)
from tests.support.gateway import HELLO, KEY, channel
from tests.support.gateway_process import GatewayProcess, ask_chat, open_caller
from tests.support.outcome_table import Channels, Notes
from tests.support.scripted_upstream import STALL, ScriptedUpstream
from tests.support.started_gateways import StartGateway

MakeContext = Callable[[str], tuple[ssl.SSLContext, Path]]

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
def anonymous() -> Iterator[str]:
    """An address on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@contextmanager
def no_such_name() -> Iterator[str]:
    yield "http://provider.invalid/v1"


PLACES = [(anonymous, {"upstream_error"}), (deaf_listener, {"upstream_timeout"}), (no_such_name, {"upstream_error"})]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("place", "codes"), PLACES)
async def test_a_provider_out_of_reach_is_an_error(
    standing_with: StartGateway, notes: Notes, place: object, codes: set[str], stream: bool
) -> None:
    with place() as base_url:  # type: ignore[operator]
        # A resolver may take longer to say no than the channel is willing to wait.
        timers = {"connect_timeout_s": 5 if place is no_such_name else 0.15}
        gateway = await standing_with(site(channel(base_url, "bad", **timers)))
        heard = await call(gateway, stream=stream)
        notes.add_cell("U1", read_word(heard), stream=stream, when="before", channels="one")
        (code,) = codes
        check_error(heard, code)
        row = await audit(gateway)
        check_row_of_failure(row, code, attempts=1)
        check_trail(heard, row, ("bad", code))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", [place for place, _ in PLACES])
async def test_a_provider_out_of_reach_is_passed_over(
    standing_with: StartGateway, notes: Notes, place: object, stream: bool
) -> None:
    async with ScriptedUpstream(good_script(stream=stream)) as good:
        with place() as base_url:  # type: ignore[operator]
            bad = channel(base_url, "bad", connect_timeout_s=0.15)
            gateway = await standing_with(site(bad, healthy(good)))
            heard = await call(gateway, stream=stream)
            notes.add_cell("U1", read_word(heard), stream=stream, when="before", channels="two")
            assert heard.status == 200
            row = await audit(gateway)
            check_row_of_success(row, "healthy", attempts=2)
            assert [one.channel for one in parse_attempts(row.tried)] == ["bad", "healthy"]
            assert len(good.received) == 1


async def test_three_channels_are_tried_and_the_first_fault_is_the_answer(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as silent, ScriptedUpstream(good_script(stream=False)) as fourth:
        with anonymous() as one, anonymous() as two:
            ups = [
                channel(one, "one", priority=2),
                channel(two, "two", priority=1),
                channel(silent.base_url, "three", total_timeout_s=0.15),
            ]
            gateway = await standing_with(site(*ups, healthy(fourth)))
            heard = await call(gateway, stream=False)
            check_error(heard, "upstream_error")
            assert b"The provider could not be reached: connection refused" in heard.body
            row = await audit(gateway, silent, channel="three")
            check_row_of_failure(row, "upstream_error", attempts=3, bought=True)
            tried = [(one.channel, one.code) for one in parse_attempts(row.tried)]
            assert tried == [("one", "upstream_error"), ("two", "upstream_error"), ("three", "upstream_timeout")]
            assert not fourth.received


@pytest.mark.parametrize("channels", ["one", "two"])
@pytest.mark.parametrize("stream", [False, True])
async def test_tls_to_a_plaintext_port_is_never_downgraded(
    standing_with: StartGateway, notes: Notes, stream: bool, channels: Channels
) -> None:
    async with (
        ScriptedUpstream([STALL], greeting=REFUSAL) as plain,
        ScriptedUpstream(good_script(stream=stream)) as good,
    ):
        base_url = plain.base_url.replace("http://", "https://")
        gateway = await standing_with(site(channel(base_url, "bad"), *([healthy(good)] if channels == "two" else ())))
        heard = await call(gateway, stream=stream)
        notes.add_cell("U3", read_word(heard), stream=stream, when="before", channels=channels)
        row = await audit(gateway, plain)
        if channels == "two":
            check_row_of_success(row, "healthy", attempts=2)
            check_trail(heard, row, ("bad", "upstream_error"), ("healthy", "ok"))
        else:
            check_error(heard, "upstream_error")
            check_row_of_failure(row, "upstream_error", attempts=1)
        assert not plain.received


async def test_tls_to_a_port_that_says_nothing_is_a_timeout(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([STALL]) as plain:
        base_url = plain.base_url.replace("http://", "https://")
        gateway = await standing_with(site(channel(base_url, "bad", connect_timeout_s=0.15)))
        check_error(await call(gateway, stream=True), "upstream_timeout")
        await audit(gateway, plain, outcome="failed")
        assert not plain.received


@pytest.fixture(scope="session")
def make_context(tmp_path_factory: pytest.TempPathFactory) -> MakeContext:
    """``make_context("IP:127.0.0.1")``: a server's context with a certificate for that, and the certificate's file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        assert "CI" not in os.environ, "the openssl command is missing, and CI installs it"
        pytest.skip("makes its certificates with the openssl command")

    def make(subject: str) -> tuple[ssl.SSLContext, Path]:
        folder = tmp_path_factory.mktemp("tls")
        made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=127.0.0.1", "-addext", f"subjectAltName={subject}"]
        files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
        subprocess.run([openssl, *made, *names, *files], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        return context, folder / "cert.pem"

    return make


@pytest.mark.parametrize("stream", [False, True])
async def test_a_certificate_that_nobody_vouches_for_is_not_accepted(
    standing_with: StartGateway, notes: Notes, make_context: MakeContext, stream: bool
) -> None:
    tls, _ = make_context("IP:127.0.0.1")
    async with ScriptedUpstream(good_script(stream=stream), tls=tls) as bad:
        async with ScriptedUpstream(good_script(stream=stream)) as good:
            gateway = await standing_with(site(channel(bad.base_url, "bad"), healthy(good)))
            heard = await call(gateway, stream=stream)
            notes.add_cell("U3", read_word(heard), stream=stream, when="before", channels="two")
            assert heard.status == 200
            row = await audit(gateway, bad)
            check_row_of_success(row, "healthy", attempts=2)
            check_trail(heard, row, ("bad", "upstream_error"), ("healthy", "ok"))
        heard = await call(gateway, stream=stream)
        notes.add_cell("U3", read_word(heard), stream=stream, when="before", channels="one")
        check_error(heard, "upstream_error")
        assert not bad.received


TRUSTING = """
import os, sys
os.environ["SSL_CERT_FILE"] = sys.argv.pop(1)
from gateway.cli.main import main
main(sys.argv[1:])
"""
"""The gateway with one certificate that it trusts, as an operator's own authority would be."""


@pytest.mark.slow
@pytest.mark.parametrize(("subject", "status"), [("IP:127.0.0.1", 200), ("DNS:elsewhere.invalid", 502)])
async def test_a_certificate_of_another_name_is_not_accepted_whoever_vouches_for_it(
    tmp_path: Path, notes: Notes, make_context: MakeContext, subject: str, status: int
) -> None:
    """Trust alone is shown to suffice for the right name, so that it is the name which does not."""
    tls, certificate = make_context(subject)
    command = ("-c", TRUSTING, str(certificate), "serve")
    async with ScriptedUpstream(good_script(stream=False), tls=tls) as up:
        owner = {"account": [{"name": "acme"}], "key": [{"name": "test", "account": "acme", "secret": KEY}]}
        tables = {"channel": [channel(up.base_url, **UNHURRIED)], **owner}
        async with GatewayProcess(tmp_path / "data", tables, command=command) as gateway, open_caller() as caller:
            async with ask_chat(caller, gateway.url, HELLO) as response:
                assert response.status == status, await response.text()
            if status != 200:
                notes.add_cell("U3", str(response.status), stream=False, when="before", channels="one")
        assert len(up.received) == (status == 200)
