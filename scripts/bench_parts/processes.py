"""The processes of a bench: started on a core of their own, awaited, asked once, and stopped."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from scripts.bench_parts.meter import pin, read_resident_kb
from scripts.bench_parts.wire import CHAT, TRUSTING, Address, Format, write_call

ROOT = Path(__file__).parents[2]
START_S = 180.0
END_S = 20.0
LOOK_S = 0.005


class NoRelay(Exception):
    """A relay is not installed, or did not start."""


@attrs.frozen
class Place:
    """Where relays are started.

    Attributes:
        folder: for all they write.
        upstream: the provider's port.
        core: the one they are pinned to, None if none is.
        others: the one that this process goes back to.
        files: descriptors that each may have.
        tree: of the gateway's source.
        before: of another gateway's, to be measured beside it.
        prefix: words before the command of each relay that is in Python, such as those of an instrument.
    """

    folder: Path
    upstream: int
    core: int | None
    others: int | None
    files: int
    tree: Path = ROOT
    before: Path = ROOT
    prefix: tuple[str, ...] = ()

    def make_folder(self, name: str) -> Path:
        """Make a folder that no relay has had: one may be started many times in a run."""
        folder = self.folder / f"{name}-{time.monotonic_ns()}"
        folder.mkdir()
        return folder

    def launch(
        self, command: list[str], log: Path, tree: Path = ROOT, environ: Mapping[str, str] = {}
    ) -> subprocess.Popen[bytes]:
        """Start ``command`` on the relay's core: what it starts in turn stays there, too."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        pin(self.core)
        try:
            with log.open("ab") as file:
                return subprocess.Popen(command, stdout=file, stderr=file, cwd=tree, env={**kept, **environ})
        finally:
            pin(self.others)


@attrs.define
class Relay:
    """One that runs.

    Attributes:
        pid: the process that does the work.
        start_s: from its start until it has answered a request.
        rest_kb: its resident memory then.
        on: what it has switched on.
        log: what it writes; None if not ours to look at.
    """

    name: str
    pid: int
    port: int
    process: subprocess.Popen[bytes]
    format: Format = CHAT
    tls: bool = False
    on: str = ""
    log: Path | None = None
    start_s: float = 0.0
    rest_kb: int = 0
    beside: list[Callable[[], None]] = attrs.Factory(list)

    @property
    def address(self) -> Address:
        """How it is asked."""
        return Address(self.port, self.format, self.tls)

    def stop(self) -> None:
        """End it, and what runs beside it; killed if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        for stop in self.beside:
            stop()


def start_python(
    name: str, words: list[str], core: int | None, others: int | None, prefix: tuple[str, ...] = ()
) -> Relay:
    """A module in a process of its own, at the port that it prints."""
    pin(core)
    try:
        process = subprocess.Popen([*prefix, sys.executable, "-m", *words], stdout=subprocess.PIPE, cwd=ROOT)
    finally:
        pin(others)
    line = process.stdout.readline() if process.stdout else b""
    if not line.strip().isdigit():
        process.kill()
        raise NoRelay(f"{words[0]} did not start")
    return Relay(name, process.pid, int(line), process)


def await_found(process: subprocess.Popen[bytes], log: Path, find: Callable[[], int]) -> int:
    """What ``find`` finds, once that is not 0. Raises ``NoRelay`` with the log if the process ends before."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        found = find()
        if found:
            return found
        time.sleep(LOOK_S)
    process.kill()
    process.wait()
    raise NoRelay(f"it did not start: {_read_end(log)}")


def _read_end(log: Path) -> str:
    return log.read_text(errors="replace")[-600:].strip() if log.is_file() else ""


def await_answer(relay: Relay, log: Path, began_s: float) -> Relay:
    """The relay, once it has answered a request. Raises ``NoRelay`` as ``await_found``."""
    await_found(relay.process, log, lambda: int(_answers(relay.address)))
    relay.start_s = time.monotonic() - began_s
    relay.rest_kb = read_resident_kb(relay.pid)
    return relay


def _answers(address: Address) -> bool:
    """Whether a request is answered with 200 now."""
    with contextlib.closing(socket.socket()) as plain:
        plain.settimeout(5)
        try:
            plain.connect(("127.0.0.1", address.port))
            line = TRUSTING.wrap_socket(plain) if address.tls else plain
            line.sendall(write_call(address))
            return line.recv(4096).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


def find_port() -> int:
    """One that is free now: not every relay can be told to take any, and to say which."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
