"""Calls of the admin API."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
from yarl import URL

from gateway.domain.audit_log import OPERATOR
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from tests.support.gateway import RunningGateway

Ask = Callable[..., Awaitable[tuple[int, Any]]]


async def ask_office(gateway: RunningGateway, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of an operation of the admin API."""
    url = URL(f"{gateway.url}{PREFIX}{path}", encoded=True)
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    async with gateway.client.request(method, url, json=body, headers=headers) as response:
        return response.status, await response.json()


async def expire_key(gateway: RunningGateway, key_id: int) -> None:
    """Let a key's end be in the past, which no client can ask for."""
    accounts = gateway.app[SERVICES].auth.accounts
    key = await accounts.get_key_noun(key_id)
    owner = await accounts.register.get_owner(key)
    await accounts.register.put_key(key, attrs.evolve(key, expires_s=1), owner, OPERATOR)
    await accounts.directory.reload()
