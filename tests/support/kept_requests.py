"""A gateway that keeps bodies, requests to it, and what it shows of them."""

from typing import Any

from gateway.server.context import SERVICES
from gateway.storage.bodies.body_store import BodyStore
from tests.support.admin_calls import AdminApi
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import ScriptedUpstream


def config(up: ScriptedUpstream, rule: str = "all", key_rule: str | None = None) -> dict[str, Any]:
    key = {"name": "test", "account": "acme", "secret": KEY}
    if key_rule is not None:
        key["keep_bodies"] = key_rule
    return {"channel": [channel(up.base_url)], "key": [key], "requests": {"keep_bodies": rule}}


async def ask(gateway: RunningGateway, body: Any = HELLO, **headers: str) -> str:
    """The id of a request that has ended."""
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.post(body, headers=lines) as response:
        await response.read()
        return str(response.headers["X-Request-Id"])


async def show(gateway: RunningGateway, request_id: str, status: int = 200) -> Any:
    return await AdminApi(gateway)("GET", f"/requests/{request_id}/body", status=status)


def find_store(gateway: RunningGateway) -> BodyStore | None:
    store: BodyStore | None = gateway.app[SERVICES].open_bodies.instance
    return store


def say(text: str) -> dict[str, Any]:
    return {**HELLO, "messages": [{"role": "user", "content": text}]}
