"""Fixtures of every test: a factory of gateways, and hypothesis without a stopwatch; the tables at the end of a run."""

import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes.compiled import share
from tests.fakes.gateway import RunningGateway, make_template, start_gateway
from tests.faults.table import write_table

# A machine's speed is no property of the code: examples are bounded by number, never by time.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

share()

StartGateway = Callable[..., Awaitable[RunningGateway]]

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For the SDKs: each of their clients would read the certificates of this machine anew (20 ms), and none speaks TLS."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: the collector looks at it once, and not again with every test that asks it to look."""
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def template_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("template") / "gateway.db"


@pytest.fixture
async def gateway_with(tmp_path: Path, template_path: Path) -> AsyncIterator[StartGateway]:
    """``gateway = await gateway_with({"channel": […]})``: started, and after the test stopped and audited."""
    if not template_path.exists():
        await make_template(template_path)
    started: list[RunningGateway] = []

    async def start(config: dict[str, Any], **kwargs: Any) -> RunningGateway:
        number = len(started)
        gateway = await start_gateway(tmp_path / f"data{number}", template_path, config, **kwargs)
        started.append(gateway)
        return gateway

    yield start
    for gateway in reversed(started):
        await gateway.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Also in the process that only collects the reports of others, which loads no other conftest than this."""
    stats = terminalreporter.stats
    lines = write_table(report for kind in ("passed", "failed") for report in stats.get(kind, ()))
    if lines:
        terminalreporter.section("what faults come to")
        for line in lines:
            terminalreporter.write_line(line)
