"""The HTTP client for providers: every test that knows it runs on both event loops."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop

from gateway.upstream.client import PooledHttpClient
from tests.support.sockets import check_sockets, count_sockets

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture
async def upstream() -> AsyncIterator[PooledHttpClient]:
    """The client. Nothing of it is left afterwards: no socket, no task, no exception that was never retrieved."""
    loop, unheard, sockets = asyncio.get_running_loop(), list[dict[str, Any]](), count_sockets()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    tasks = asyncio.all_tasks()
    client = PooledHttpClient()
    yield client
    await client.close()
    del client
    gc.collect(1)
    await check_sockets(sockets)
    assert not unheard
    assert asyncio.all_tasks() - tasks <= {asyncio.current_task()}


def pytest_asyncio_loop_factories(item: pytest.Function) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS if "upstream" in getattr(item, "fixturenames", ()) else {"asyncio": LOOPS["asyncio"]}
