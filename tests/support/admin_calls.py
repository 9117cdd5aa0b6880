"""Calls of the admin API."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import orjson
from jsonschema import Draft202012Validator
from yarl import URL

from gateway.config.live_settings import SettingsService
from gateway.config.merge import EffectiveConfig
from gateway.domain.audit_log import OPERATOR, AuditFilter
from gateway.server.admin.operation import OPERATIONS
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


@attrs.frozen
class AdminApi:
    """A gateway's admin API, every answer of which is held against its door's shape."""

    gateway: RunningGateway

    async def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        reported, answer = await ask_office(self.gateway, method, path, body)
        assert reported == status, answer
        if status < 300:
            self._check(method, path, answer)
        return answer

    def _check(self, method: str, path: str, answer: Any) -> None:
        parts = path.partition("?")[0].split("/")
        for (verb, place), door in self.gateway.app[OPERATIONS].items():
            theirs = place.removeprefix(PREFIX).split("/")
            if (
                verb == method
                and len(theirs) == len(parts)
                and all(one == other or one.startswith("{") for one, other in zip(theirs, parts, strict=True))
            ):
                Draft202012Validator(orjson.loads(orjson.dumps(door.handler.answer, default=dict))).validate(answer)
                return
        raise AssertionError(f"no door at {method} {path}")

    async def tell(self, path: str) -> Any:
        """One setting, as the list has it."""
        _, _, section, key = path.split("/")
        return (await self("GET", "/settings"))["sections"][section][key]

    async def list_trail(self, *nouns: str) -> list[tuple[str, str, Any]]:
        """What was done to settings, or to things of those nouns, in its order."""
        rows = await self.gateway.app[SERVICES].admin.audit_log.list_audit(AuditFilter(), 100)
        reported = [(row.action, row.subject, orjson.loads(row.detail)) for row in rows][::-1]
        return [row for row in reported if row[0].partition(".")[0] in (nouns or ("setting",))]

    @property
    def settings(self) -> SettingsService:
        settings = self.gateway.app[SERVICES].admin.settings
        assert isinstance(settings, SettingsService)
        return settings

    @property
    def settled(self) -> EffectiveConfig:
        """The configuration in force."""
        return self.settings._live.effective

    async def list_stored(self) -> dict[str, Any]:
        rows = await self.settings._store.list_settings()
        return {row.path: row.value for row in rows}


async def expire_key(gateway: RunningGateway, key_id: int) -> None:
    """Let a key's end be in the past, which no client can ask for."""
    accounts = gateway.app[SERVICES].auth.accounts
    key = await accounts.get_stored_key(key_id)
    owner = await accounts.register.get_owner(key)
    await accounts.register.put_key(key, attrs.evolve(key, expires_s=1), owner, OPERATOR)
    await accounts.directory.reload()
