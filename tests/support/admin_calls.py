"""Calls of the admin API."""

from collections.abc import Awaitable, Callable
from typing import Any

from yarl import URL

from gateway.server.admin.operation import PREFIX
from tests.support.gateway import RunningGateway

Ask = Callable[..., Awaitable[tuple[int, Any]]]


async def ask_office(gateway: RunningGateway, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of an operation of the admin API."""
    url = URL(f"{gateway.url}{PREFIX}{path}", encoded=True)
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    async with gateway.client.request(method, url, json=body, headers=headers) as response:
        return response.status, await response.json()
