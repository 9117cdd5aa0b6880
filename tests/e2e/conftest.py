"""The real SDK as the caller, without retries unless a test is about them."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.fakes.gateway import KEY, RunningGateway

MakeClient = Callable[..., AsyncOpenAI]


@pytest.fixture
async def sdk() -> AsyncIterator[MakeClient]:
    """``sdk(gateway)``: a client of the gateway, closed after the test."""
    made: list[AsyncOpenAI] = []

    def make(gateway: RunningGateway, **more: Any) -> AsyncOpenAI:
        options = {"api_key": KEY, "max_retries": 0, **more}
        client = AsyncOpenAI(base_url=f"{gateway.url}/v1", **options)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()
