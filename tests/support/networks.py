"""A network of a test's own, in Linux network namespaces: the test at one end, and a server to be lost at the other.

Nothing else is in it, and no packet leaves it. A namespace ends with the process that holds it, which ends with the
tests, even if they are killed.

python -m tests.support.networks HOLDER MODULE WORDS …  runs a module in the namespace of the process HOLDER.
"""

import asyncio
import ctypes
import os
import runpy
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import forkserver
from threading import Thread

import attrs
import pytest

from tests.support.tools import find_tool

HERE, THERE = "10.77.0.1", "10.77.0.2"
_SUBNET = "10.77.0.0/24"
_ABSENT = "02:00:00:00:00:01"
_CLONE_NEWNET = 0x40000000
_setns = ctypes.CDLL(None, use_errno=True).setns


@attrs.frozen
class Network:
    """The two ends; each is known by the process that holds its namespace."""

    here: int
    there: int

    def run_there(self, work: Callable[[], object]) -> None:
        """Run ``work`` at the other end; processes that it starts stay there."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                _enter(f"/proc/{self.there}/ns/net")
                work()
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        thread = Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def name_command(self, command: Sequence[str]) -> Sequence[str]:
        """The command that runs ``command`` at this end."""
        return (__name__, str(self.here), *command)

    def drop(self) -> None:
        """Lose every packet between the ends without a word to either: each is sent to a machine that is not there."""
        _name_neighbour(self.here, "here", THERE, _ABSENT)
        _name_neighbour(self.there, "there", HERE, _ABSENT)

    def refuse_host(self) -> None:
        """Let the other end be out of reach: "no route to host" (EHOSTUNREACH)."""
        _ip(self.here, "route", "add", "unreachable", THERE)

    def refuse_network(self) -> None:
        """Let there be no way to the other end: "network is unreachable" (ENETUNREACH)."""
        _ip(self.here, "route", "del", _SUBNET)


@asynccontextmanager
async def open_network() -> AsyncIterator[Network]:
    """Make a network and move to its near end: this thread, its later threads, and their processes.

    Skips the test without the rights to do so. A missing program is a failure in CI.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can make a network namespace")
    find_tool("ip", "iproute2")
    forkserver.ensure_running()  # it forks the processes of later tests, too, so it must stay outside
    with _hold_namespace() as here, _hold_namespace() as there:
        _connect(here, there)
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _enter(f"/proc/{here}/ns/net")
        try:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())  # former threads are outside
            yield Network(here, there)
        finally:
            _set(before)
            os.close(before)


def _connect(here: int, there: int) -> None:
    _ip(here, "link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(there))
    for holder, name, address in ((here, "here", HERE), (there, "there", THERE)):
        _ip(holder, "address", "add", f"{address}/24", "dev", name)
        _ip(holder, "link", "set", "lo", "up")
        _ip(holder, "link", "set", name, "up")
    # If the neighbour had to be asked for its address, a lost host would be noticed after three seconds.
    there_mac = _ip(there, "-br", "link", "show", "there").split()[2]
    _name_neighbour(here, "here", THERE, there_mac)


def _name_neighbour(holder: int, device: str, address: str, hardware: str) -> None:
    _ip(holder, "neighbour", "replace", address, "lladdr", hardware, "dev", device, "nud", "permanent")


@contextmanager
def _hold_namespace() -> Iterator[int]:
    """Start a process with a network namespace of its own; it ends when its standard input is closed."""
    command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            pytest.skip(f"no network namespace can be made here: {holder.stderr.read().strip()}")
        yield holder.pid


def _ip(holder: int, *words: str) -> str:
    command = ["nsenter", f"--net=/proc/{holder}/ns/net", "ip", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def _enter(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


def _set(descriptor: int) -> None:
    """Move this thread to a network namespace. Python has ``os.setns`` since 3.12."""
    if _setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


if __name__ == "__main__":
    _, process, *sys.argv = sys.argv
    _enter(f"/proc/{process}/ns/net")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
