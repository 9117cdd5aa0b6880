"""Workers that are forked off one process, which has collected the tests: no worker imports and collects them again.

pytest-xdist starts a ``worker_launcher`` in place of each Python. The launcher hands its pipes to the process that has
collected, which forks: the child serves execnet and runs the tests that the controller names. Collected tests, and the
gateway, are in memory once.
"""

import atexit
import contextlib
import importlib.util
import json
import os
import pkgutil
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import execnet
import pytest
from _pytest.config import _prepareconfig
from _pytest.tmpdir import TempPathFactory

import gateway
from tests.support import worker_session

LAUNCHER = Path(__file__).with_name("worker_launcher.py")
COLLECTOR = "collector"


class Collector:
    """The process that collects, as the controller sees it; a plugin of the controller's pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = tempfile.mkdtemp(prefix="workers-")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._folder}/asked")
        self._listener.listen(64)
        self._control, self._remote = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        python = shlex.join([sys.executable, "-S", "-E", str(LAUNCHER), f"{self._folder}/asked"])
        config.option.tx = [f"popen//python={python}"] * len(config.option.tx)

    def pytest_xdist_getremotemodule(self) -> ModuleType:
        return worker_session

    def pytest_xdist_setupnodes(self, config: pytest.Config) -> None:
        """Start the process. It collects what the workers would collect: with the same arguments, in the same order."""
        workerinput: dict[str, Any] = {"workerid": COLLECTOR, "mainargv": sys.argv}
        config.hook.pytest_configure_node(node=SimpleNamespace(config=config, workerinput=workerinput))
        given = {"args": [str(word) for word in config.invocation_params.args], "workerinput": workerinput}
        fds = [self._listener.fileno(), self._remote.fileno()]
        code = f"import sys; sys.path = {sys.path!r}; from tests.support.forked_workers import collect; collect()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, fds), json.dumps(given)], pass_fds=fds, stdout=subprocess.DEVNULL
        )
        self._listener.close()
        self._remote.close()

    @pytest.hookimpl(trylast=True)  # pytest-xdist ends the workers
    def pytest_sessionfinish(self) -> None:
        """Wait until the process and all of its workers have ended; their CPU time counts as the controller's."""
        for end in (self._listener, self._remote, self._control):
            end.close()
        if self._process is not None:
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def can_fork(config: pytest.Config) -> bool:
    """Whether workers of this run can be forked. Coverage begins in each worker before it imports anything."""
    return (
        sys.platform == "linux"
        and bool(getattr(config.option, "tx", None))
        and all(spec == "popen" for spec in config.option.tx)
        and Path.cwd() == config.rootpath
        and not config.pluginmanager.hasplugin("_cov")
    )


def is_collector(config: pytest.Config) -> bool:
    """Whether this is the process that collects, before it has forked a worker."""
    return bool(getattr(config, "workerinput", {}).get("workerid") == COLLECTOR)


class CollectedTests:
    """What the process that collects has found; a plugin of its pytest."""

    def __init__(self, config: pytest.Config, listener: socket.socket, control: socket.socket) -> None:
        self._config = config
        self._listener = listener
        self._control = control
        self._failures: list[pytest.CollectReport] = []
        self._warnings: list[dict[str, Any]] = []
        self._session: pytest.Session

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._failures.append(report)

    def pytest_warning_recorded(self, warning_message: object, when: str, nodeid: str, location: object) -> None:
        self._warnings.append(
            {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork a worker for each launcher that asks, until the controller ends; in the process that collects."""
        self._session = session
        self._config.pluginmanager.unregister(self)
        while self._listener in select.select([self._listener, self._control], [], [])[0]:
            asked, _ = self._listener.accept()
            _, fds, _, _ = socket.recv_fds(asked, 1, 3)
            sys.stdout.flush()
            if not os.fork():
                self._listener.close()
                self._control.close()
                asked.send(b"!")
                self._serve(fds)
            for fd in fds:
                os.close(fd)
            asked.close()
        self._listener.close()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        return True

    def _serve(self, fds: list[int]) -> None:
        """Do in this child what ``python -c "…"`` does for execnet, and end it."""
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._find_capture().stop_global_capturing()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
            exec(eval(sys.stdin.readline()), {})  # noqa: S102, S307 - execnet's own way of beginning
            atexit._run_exitfuncs()
            status = 0
        except BaseException:  # noqa: BLE001 - the child must not go on as the process that collects
            traceback.print_exc()
        finally:
            os._exit(status)

    def _find_capture(self) -> Any:
        return self._config.pluginmanager.getplugin("capturemanager")

    def run(self, channel: execnet.Channel) -> None:
        """Run the tests that the controller names, as ``xdist.remote`` does; in a child."""
        import xdist.remote  # noqa: PLC0415

        config, session = self._config, self._session
        workerinput, _, options, _ = channel.receive()
        _set_environment(workerinput)
        config.workerinput = workerinput  # type: ignore[attr-defined]
        config.option.basetemp = options["basetemp"]
        config._tmp_path_factory = TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
        capture = self._find_capture()
        capture.start_global_capturing()  # into files of this worker's own
        capture.suspend_global_capture()
        worker = xdist.remote.interactor = xdist.remote.WorkerInteractor(config, channel)
        worker.pytest_sessionstart(session)
        worker.pytest_collection()
        for report in self._failures:
            worker.pytest_collectreport(report)
        for warning in self._warnings:
            worker.pytest_warning_recorded(**warning)
        worker.pytest_collection_finish(session)
        worker.pytest_runtestloop(session)
        status = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK
        config.hook.pytest_sessionfinish(session=session, exitstatus=status)
        config._ensure_unconfigure()


_collected: CollectedTests | None = None
"""In the process that collects, and in its children."""


def collect() -> None:
    """Collect the tests that ``sys.argv`` names and fork workers; what the process that collects runs."""
    global _collected  # noqa: PLW0603 - execnet's code in a child finds it by this module alone
    listening, control, given = sys.argv[1:]
    run = json.loads(given)
    _set_environment(run["workerinput"])
    config = _prepareconfig(run["args"], None)
    import xdist.remote  # noqa: PLC0415 - pytest wants to import its plugins itself

    xdist.remote.setup_config(config, None)
    config.workerinput, config.workeroutput = run["workerinput"], {}  # type: ignore[attr-defined]
    _collected = CollectedTests(config, socket.socket(fileno=int(listening)), socket.socket(fileno=int(control)))
    config.pluginmanager.register(_collected)
    _import_gateway()
    sys.exit(config.hook.pytest_cmdline_main(config=config))


def _import_gateway() -> None:
    """Import every module, once for all workers.

    A module that is imported while a test has patched a constant would otherwise keep the patched value: the next tests
    of this worker would find a limit of 1,000 bytes.
    """
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if ".migrations." not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def run_worker(channel: execnet.Channel) -> None:
    """Run tests in this worker; one that was not forked collects them first, as pytest-xdist does by itself."""
    if _collected is None:
        package = importlib.util.find_spec("xdist")  # not imported: pytest wants to do so itself
        assert package is not None
        assert package.origin is not None
        path = Path(package.origin).with_name("remote.py")
        code = compile(path.read_text(), path, "exec")
        exec(code, {"channel": channel, "__name__": "__channelexec__"})  # noqa: S102
    else:
        _collected.run(channel)


def _set_environment(workerinput: dict[str, Any]) -> None:
    os.environ["PYTEST_XDIST_WORKER"] = workerinput["workerid"]
    if "testrunuid" in workerinput:
        os.environ["PYTEST_XDIST_TESTRUNUID"] = workerinput["testrunuid"]
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
