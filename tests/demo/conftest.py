"""A running demo upstream, and who asks it."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from gateway.demo.server import DemoUpstream
from tests.support.started_gateways import NO_TLS


@pytest.fixture
async def demo() -> AsyncIterator[DemoUpstream]:
    upstream = DemoUpstream(pace_s=0)
    await upstream.start()
    yield upstream
    await upstream.stop()


@pytest.fixture
async def sdk(demo: DemoUpstream) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(verify=NO_TLS)
    given: dict[str, Any] = {"base_url": demo.base_url, "api_key": demo.api_key, "max_retries": 0, "http_client": http}
    async with openai.AsyncOpenAI(**given) as client:
        yield client


@pytest.fixture
async def plain(demo: DemoUpstream) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {demo.api_key}"}) as session:
        yield session
