"""The drivers of the upstream port: every contract test runs over each of them, and ours on both loops."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from gateway.upstream.aiohttp_client import AiohttpClient
from gateway.upstream.fast_client import FastHttpClient
from gateway.upstream.interface import HttpClient
from tests.support.sockets import check_sockets, count_sockets

DRIVERS = [AiohttpClient, FastHttpClient]
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[HttpClient]:
    driver: HttpClient = request.param()
    yield driver
    await driver.close()
    del driver
    gc.collect(1)  # the young ones: what was not released says so now, in the test that is to blame


@pytest.fixture
async def wire() -> AsyncIterator[FastHttpClient]:
    """Our own driver. What is left of it afterwards is nothing: no socket, no task, nothing that nobody heard."""
    loop, unheard, sockets = asyncio.get_running_loop(), list[dict[str, Any]](), count_sockets()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    tasks = asyncio.all_tasks()
    driver = FastHttpClient()
    yield driver
    await driver.close()
    del driver
    gc.collect(1)
    await check_sockets(sockets)
    assert not unheard
    assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}


def pytest_asyncio_loop_factories(item: pytest.Function) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """What knows a driver runs on both loops; the rest, and what is said of aiohttp, on the one that pytest has."""
    names = getattr(item, "fixturenames", ())
    return LOOPS if "upstream" in names or "wire" in names else {"asyncio": LOOPS["asyncio"]}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Aiohttp is not ours to try on every loop."""
    ours: list[pytest.Item] = []
    theirs: list[pytest.Item] = []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        spare = params.get("upstream") is AiohttpClient and uvloop.new_event_loop in params.values()
        (theirs if spare else ours).append(item)
    if theirs:
        config.hook.pytest_deselected(items=theirs)
        items[:] = ours
