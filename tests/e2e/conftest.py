"""The real SDKs as the callers, without retries unless a test is about them; and the languages of providers."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from tests.support import sdk_clients
from tests.support.gateway import KEY, RunningGateway
from tests.support.started_gateways import NO_TLS, StartGateway, starting


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """All of it is in one event loop: clients and gateways, those that stand and those that are started."""
    folder = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(folder) and item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session")
async def gateway_with(tmp_path: Path, template_path: Path) -> AsyncIterator[StartGateway]:
    async with starting(tmp_path, template_path) as start:
        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def sdk() -> AsyncIterator[sdk_clients.MakeClient]:
    """``sdk(gateway)``: a client of the gateway, closed after the test."""
    made: list[AsyncOpenAI] = []

    def make(gateway: RunningGateway, **more: Any) -> AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(verify=NO_TLS)
        options = {"api_key": KEY, "max_retries": 0, "http_client": http, **more}
        client = AsyncOpenAI(base_url=f"{gateway.url}/v1", **options)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()


@pytest_asyncio.fixture(loop_scope="session")
async def claude() -> AsyncIterator[sdk_clients.MakeClaude]:
    """``claude(gateway)``: the same of the other library, which finds ``/v1`` by itself."""
    made: list[AsyncAnthropic] = []

    def make(gateway: RunningGateway, **more: Any) -> AsyncAnthropic:
        http = anthropic.DefaultAsyncHttpxClient(verify=NO_TLS)
        options = {"api_key": KEY, "max_retries": 0, "http_client": http, **more}
        client = AsyncAnthropic(base_url=gateway.url, **options)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()


@pytest_asyncio.fixture(loop_scope="session")
async def google() -> AsyncIterator[sdk_clients.MakeGoogle]:
    """``google(gateway)``: the same of Google's library, which finds ``/v1beta`` by itself."""
    opened: list[tuple[httpx2.Client, httpx2.AsyncClient]] = []

    def make(gateway: RunningGateway, key: str = KEY) -> genai.Client:
        whole, parted = httpx2.Client(verify=NO_TLS), httpx2.AsyncClient(verify=NO_TLS)
        opened.append((whole, parted))
        options = types.HttpOptions(base_url=gateway.url, httpx_client=whole, httpx_async_client=parted)
        return genai.Client(api_key=key, vertexai=False, http_options=options)

    yield make
    for whole, parted in opened:
        whole.close()
        await parted.aclose()


@pytest.fixture(params=sdk_clients.PROVIDERS_OF_FORMATS, ids=sdk_clients.name_provider)
def provider_type(request: pytest.FixtureRequest) -> sdk_clients.ProviderType:
    """Every language in turn."""
    found: sdk_clients.ProviderType = request.param
    return found


@pytest.fixture(params=sdk_clients.THINKING, ids=sdk_clients.name_provider)
def thinking(request: pytest.FixtureRequest) -> sdk_clients.ProviderType:
    """Every language in turn, each with thoughts."""
    found: sdk_clients.ProviderType = request.param
    return found
