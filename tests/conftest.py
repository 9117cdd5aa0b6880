"""Fixtures of every test: a factory of gateways, the log as it is written; hypothesis without a stopwatch; tables."""

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from gateway.log import configure_log
from gateway.storage import backup_encryption
from tests.support.first_start import find_template, start_first
from tests.support.forked_workers import Collector, can_fork, is_collector
from tests.support.gateway import RunningGateway, make_template
from tests.support.outcome_table import write_table
from tests.support.postgres import SharedPostgres
from tests.support.repositories import close_databases, has_databases
from tests.support.shared_gateways import GatewayPool
from tests.support.started_gateways import ReadLog, StartGateway, starting
from tests.support.statement_cache import share
from tests.support.suite_times import CPU, WHOLE_RUN, measure_cpu_s, read_times, store_times, write_times

# A machine's speed is no property of the code: a number bounds the examples, no time. `make soak` sets EXAMPLES.
settings.register_profile(
    "gateway",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "12")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gateway")

share()

TESTS = Path(__file__).parent
MEMORY = Path("/dev/shm")  # noqa: S108 - below it pytest makes a folder that only this user can read
ROOM = 6 * 2**30
GC_THRESHOLD = 10_000
"""As in a gateway that serves, see ``gateway/serve.py``."""


def pytest_configure(config: pytest.Config) -> None:
    """Put what tests write into memory, where there is room and programs may run: thousands of databases are made.

    Collect once, in a process of which the workers are forked.
    """
    if can_fork(config):
        config.pluginmanager.register(Collector(config))
    with contextlib.suppress(OSError):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= ROOM and not room.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


UNIT = {"domain", "formats", "providers", "routing", "auth", "proxy", "test_errors.py", "test_parsing.py"}
"""Folders and files of ``tests/`` whose tests open no socket; ``make test-unit`` runs these alone."""


ARCHITECTURE = TESTS / "architecture"
AUDITS = pytest.StashKey[bool]()
"""Whether the books of gateways are looked at after this test: after the last of a module, and after every fault."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave ``tests/architecture`` to ``make check``, which names that folder."""
    named = any(ARCHITECTURE.name in argument for argument in config.args)
    return True if collection_path == ARCHITECTURE and not named else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What pytest collects stays: the garbage collector never looks at it, whichever test asks it to look.

    It looks as seldom as in a gateway that serves: at every 700 objects it takes a fourteenth of the time of all tests.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # with what little garbage there is: to look for it takes a second and more
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Send one report instead of three for a test that passes, with the time of all three: each report costs CPU.

    All of them are sent where pytest's own ``--durations`` is given, and where there are no workers.
    """
    item.config.stash[AUDITS] = (
        nextitem is None or nextitem.path != item.path or item.path.is_relative_to(TESTS / "faults")
    )
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations") is not None:
        return None
    began_s = measure_cpu_s()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    whole_s, cpu_s = sum(report.duration for report in reports), measure_cpu_s() - began_s
    for report in reports:
        if report.when == "call" or not report.passed:
            report.duration = whole_s
            report.user_properties = [*report.user_properties, (CPU, cpu_s)]
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for a gateway that stands runs in the event loop in which it stands; and gives it back last of all.

    Browser tests come first: they begin in one worker then, and each worker that has some starts a browser.
    """
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)
    folders: dict[Path, str] = {}  # of each file, asked once: there are forty items a file
    for item in items:
        folder = folders.get(item.path)
        if folder is None:
            inside = item.path.is_relative_to(TESTS)
            folder = folders[item.path] = item.path.relative_to(TESTS).parts[0] if inside else ""
        if folder in UNIT and not hasattr(getattr(item, "module", None), "ScriptedUpstream"):
            item.add_marker(pytest.mark.unit)
        if folder == "architecture":  # they read all of the code: a minute on a machine with much else to do
            item.add_marker(pytest.mark.timeout(300))
        names: list[str] = getattr(item, "fixturenames", [])
        if "standing_with" in names:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            names.remove("standing_with")
            names.insert(0, "standing_with")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start a gateway before workers are forked, where there are tests that start some."""
    if is_collector(session.config) and any(
        "template_path" in getattr(item, "fixturenames", ()) for item in session.items
    ):
        asyncio.run(start_first(opens_pages=len(session.items) >= WHOLE_RUN))


@pytest.fixture(scope="session")
def template_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return find_template() or tmp_path_factory.mktemp("template") / "gateway.db"


@pytest.fixture(scope="session")
def shared_postgres() -> SharedPostgres:
    """A database on the PostgreSQL server of the run, which starts when the first test asks for it."""
    return SharedPostgres()


@pytest.fixture(scope="module")
def cheap_passphrases() -> Iterator[None]:
    """The keys of encrypted backups are derived with the least of work, instead of a fifth of a second each."""
    given = backup_encryption._PASSES, backup_encryption._MEMORY_KIB, backup_encryption._LANES
    assert given == (3, 65_536, 4), "the backups that there are could not be read"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup_encryption, "_PASSES", 1)
        patch.setattr(backup_encryption, "_MEMORY_KIB", 8 * backup_encryption._LANES)
        yield


@pytest.fixture(autouse=True)
def databases_end() -> Iterator[None]:
    """No database of a test's own outlives it; the test's event loop may be closed by then."""
    yield
    if has_databases():
        asyncio.run(close_databases())


@pytest.fixture
async def gateway_with(tmp_path: Path, template_path: Path) -> AsyncIterator[StartGateway]:
    """``gateway = await gateway_with({"channel": […]})``: started, and after the test stopped and audited."""
    async with starting(tmp_path, template_path) as start:
        yield start


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stand(tmp_path_factory: pytest.TempPathFactory, template_path: Path) -> AsyncIterator[GatewayPool]:
    """The gateways that outlive tests."""
    if not template_path.exists():
        await make_template(template_path)
    stand = GatewayPool(tmp_path_factory.mktemp("stand"), template_path)
    yield stand
    await stand.close()


@pytest_asyncio.fixture(loop_scope="session")
async def standing_with(stand: GatewayPool, pytestconfig: pytest.Config) -> AsyncIterator[StartGateway]:
    """``gateway = await standing_with({"channel": […]})``: one that stands already, looked at after the test."""
    async with AsyncExitStack() as stack:

        async def lend(config: dict[str, Any], **kwargs: Any) -> RunningGateway:
            gateway = await stand.lend(config, **kwargs)
            stack.push_async_callback(stand.take_back, gateway, audits=pytestconfig.stash[AUDITS])
            return gateway

        yield lend


@pytest.fixture
def read_log(capfd: pytest.CaptureFixture[str]) -> Iterator[ReadLog]:
    """``read_log()`` returns what has been written since the test began: the log as JSON, with libraries' debug lines.

    The log is configured as a command configures it. pytest's ``caplog`` sees nothing of such a log.
    """
    root = logging.getLogger()
    level = root.level
    configure_log("json", logging.DEBUG)

    def read() -> str:
        written = capfd.readouterr()
        return written.out + written.err

    yield read
    root.setLevel(level)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Also in the process that only collects the reports of others, which loads no other conftest than this."""
    stats = terminalreporter.stats
    lines = write_table(report for kind in ("passed", "failed") for report in stats.get(kind, ()))
    if lines:
        terminalreporter.section("what faults come to")
        for line in lines:
            terminalreporter.write_line(line)
    times = read_times(stats)
    if len(times) >= WHOLE_RUN and (cache := terminalreporter.config.cache) is not None:
        cpu_s = measure_cpu_s()
        store_times(times, cpu_s, cache.mkdir("suite"))
        terminalreporter.section("slowest tests, with set-up and end")
        for line in write_times(times, cpu_s):
            terminalreporter.write_line(line)
