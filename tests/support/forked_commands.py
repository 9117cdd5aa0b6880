"""A ``python -m …`` that begins where its imports end: forked off a process that has made them once.

To start Python and to import the gateway takes almost a second of a processor, the gateway's own start a tenth of that.
What is about a start itself, or about memory at rest, starts Python as a user would.
"""

import gc
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

import gateway.cli.main
import gateway.config.loader
import gateway.serve
import gateway.storage.migrations.run  # noqa: F401 - what ``gateway serve`` imports on its way, all of it

_PASSED = 3
_STABLE = multiprocessing.get_context("forkserver")
_STABLE.set_forkserver_preload([__name__])


class Forked:
    """A running ``python -m WORDS``, in the way of ``subprocess.Popen``. It does not outlive the tests.

    Args:
        words: the module, and what it finds in ``sys.argv``.
        cwd: where it runs.
        env: all of its environment.
        out: a file for its standard output; None: nobody reads that.
        err: a file for what it says on standard error.
        listener: the socket that a service manager hands over: its descriptor 3.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        out: Path | None = None,
        err: Path,
        listener: socket.socket | None = None,
    ) -> None:
        files = (Path(os.devnull) if out is None else out, err)
        for path in files:
            path.open("wb").close()  # it is there from now on
        self._process = _STABLE.Process(target=_run, args=(list(words), cwd, dict(env), files, listener), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or the signal that ended it as a negative number; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises ``subprocess.TimeoutExpired``."""
        wait([self._process.sentinel], timeout)
        ended = self.returncode
        if ended is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return ended

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    words: list[str], cwd: Path, env: Mapping[str, str], files: Sequence[Path], listener: socket.socket | None
) -> None:
    gc.freeze()  # what was there before is shared with others, as long as nobody touches it
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if listener is not None:
        os.environ["LISTEN_PID"] = str(os.getpid())
        if (descriptor := listener.detach()) != _PASSED:
            os.dup2(descriptor, _PASSED)
            os.close(descriptor)
    for number, path in enumerate(files, start=1):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = list(words)
    sys.path.insert(0, str(cwd))
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
