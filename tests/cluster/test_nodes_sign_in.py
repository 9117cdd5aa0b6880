"""Members and browsers that come to another node with each request, as through a load balancer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pyotp
import pytest

from gateway.auth.login_throttle import PAIR_PACE
from gateway.cluster.state.values import PURPOSE
from gateway.server.sessions import CONSOLE_HEADER
from gateway.storage.encryption import SecretBox
from tests.support.cluster import MASTER_KEY, start_nodes
from tests.support.gateway import channel
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PASSPHRASE = "purple hedgehog wagon"
PAGE = {CONSOLE_HEADER: "1", "Sec-Fetch-Site": "same-origin"}
WITHIN_S = 30


@pytest.fixture
async def url(shared_postgres: SharedPostgres) -> str:
    return await shared_postgres.empty()


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as opened:
        yield opened


async def post(browser: aiohttp.ClientSession, node: GatewayProcess, path: str, body: Any) -> tuple[int, Any]:
    async with browser.post(f"{node.url}/admin/v1/{path}", json=body, headers=PAGE) as response:
        return response.status, await response.json()


async def find_setup_token(url: str) -> str:
    """Return the token of the link that every start prints, once the nodes have stored it: they are ready before."""
    connection = await asyncpg.connect(url)
    sealed: Any = None

    async def is_stored() -> bool:
        nonlocal sealed
        sealed = await connection.fetchval("SELECT value FROM shared_values WHERE kind = 'setup'")
        return sealed is not None

    try:
        await eventually(is_stored, WITHIN_S)
    finally:
        await connection.close()
    box = SecretBox(bytes.fromhex(MASTER_KEY)).derive(PURPOSE)
    return box.open(sealed, context=f"setup:{b'token'.hex()}").decode()


async def test_a_browser_may_come_to_another_node_each_time(
    tmp_path: Path, url: str, browser: aiohttp.ClientSession
) -> None:
    tables = {"channel": [channel("http://127.0.0.1:9/v1")], "account": [{"name": "acme"}]}
    async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
        first, second = nodes
        fields = {"token": await find_setup_token(url), "name": "ada", "passphrase": PASSPHRASE}
        assert (await post(browser, second, "setup", fields))[0] == 201
        assert (await post(browser, first, "setup", {**fields, "name": "eve"}))[0] == 404, "it is used up"

        status, made = await post(browser, first, "session/second-factor", {"passphrase": PASSPHRASE})
        assert status == 200, made
        code = pyotp.TOTP(made["secret"]).now()
        status, confirmed = await post(browser, second, "session/second-factor/confirm", {"code": code})
        assert (status, len(confirmed["recovery_codes"])) == (200, 10)

        wrong = {"name": "ada", "passphrase": "not that one at all"}
        tried = [
            (await post(browser, nodes[number % 2], "session", wrong))[0]
            for number in range(PAIR_PACE.free_attempts + 2)
        ]
        assert tried == [401] * PAIR_PACE.free_attempts + [429] * 2, "the nodes count together"


async def test_what_is_kept_for_others_is_sealed_and_works_at_every_node(tmp_path: Path, url: str) -> None:
    tables = {"channel": [channel("http://127.0.0.1:9/v1")], "account": [{"name": "acme"}]}
    async with start_nodes(tmp_path, [url] * 2, tables) as nodes:
        key = await nodes[0].ask("keys", {"name": "k", "account": "acme"})
        async with open_caller(key["secret"]) as caller:
            settings = {"session": {"type": "realtime", "model": "m", "instructions": "secret words"}}
            async with caller.post(f"{nodes[0].url}/v1/realtime/client_secrets", json=settings) as response:
                secret = (await response.json())["value"]
        connection = await asyncpg.connect(url)
        try:
            rows = await connection.fetch("SELECT kind, value FROM shared_values ORDER BY kind")
        finally:
            await connection.close()
        assert [row["kind"] for row in rows] == ["client_secret", "setup"]
        assert not any(word in row["value"] for row in rows for word in (b"secret words", secret.encode()))

        async def open_session(node: GatewayProcess) -> int:
            async with open_caller(secret) as caller, caller.get(f"{node.url}/v1/realtime?model=other") as response:
                return response.status

        assert [await open_session(node) for node in nodes] == [400, 400], "it is known, and for another model"
        await nodes[1].ask(f"keys/{key['id']}", {"status": "disabled"}, "PATCH")

        async def is_void() -> bool:
            return [await open_session(node) for node in nodes] == [401, 401]

        await eventually(is_void, WITHIN_S)
