"""The drivers of the upstream port: every contract test runs over each of them."""

import gc
from collections.abc import AsyncIterator

import pytest

from gateway.upstream.client import AiohttpUpstream
from gateway.upstream.port import Upstream

DRIVERS = [AiohttpUpstream]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    driver: Upstream = request.param()
    yield driver
    await driver.close()
    del driver
    gc.collect(1)  # the young ones: what was not released says so now, in the test that is to blame
