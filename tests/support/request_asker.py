"""Requests of two accounts, and users of the admin API who ask about them; every answer must have its schema."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import attrs
from jsonschema import Draft202012Validator

from gateway.auth.sessions import ClientInfo
from gateway.domain.member import Credential, Member, Role
from gateway.domain.request_log import RequestRecord
from gateway.server.admin.operation import OPERATIONS
from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.server.sessions import CONSOLE_HEADER, COOKIE
from gateway.storage.ledger import LedgerRepository
from tests.support.gateway import RunningGateway, channel
from tests.support.request_records import make_row, read_ms
from tests.support.started_gateways import StartGateway

NOW_S = read_ms("2026-03-15 12:30") / 1000
CONFIG: dict[str, Any] = {
    "channel": [channel("http://127.0.0.1:9/v1", models=["m"])],
    "account": [{"name": "acme"}, {"name": "other"}],
    "key": [
        {"name": "test", "account": "acme", "secret": "sk-test-key-of-the-only-caller"},
        {"name": "theirs", "account": "other", "secret": "sk-test-key-of-another-account"},
    ],
    "price": [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}],
}
IDS = [f"req_{number:024x}" for number in range(6)]


def make(number: int, at: str, **values: Any) -> RequestRecord:
    """A row of the first account's key, settled at a time of a March; a token went in and one came out."""
    used = {"prompt_tokens": 1, "completion_tokens": 1, "cost_nanos": 3_000}
    unused = dict.fromkeys(("cached_tokens", "images", "duration_ms", "characters"), 0)
    plain = {"status": 200, "outcome": "completed", "error_code": None, "error": "", "attempts": 1, "tried": ""}
    owner = {"account_id": 1, "account": "acme", "key_id": 1, "key_name": "test"}
    settled_ms = read_ms(f"2026-03-{at}")
    row = make_row(number, settled_ms=settled_ms, **used | unused | plain | owner | values)
    return attrs.evolve(row, id=IDS[number] if number < len(IDS) else row.id, started_ms=settled_ms - 5)


THEIRS: dict[str, Any] = {"account_id": 2, "account": "other", "key_id": 2, "key_name": "theirs"}


@attrs.frozen
class Asker:
    """Somebody who asks the admin API; every answer is held against its door's shape."""

    gateway: RunningGateway
    headers: dict[str, str]

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
        async with (
            aiohttp.ClientSession(read_bufsize=2**12) as client,
            client.get(f"{self.gateway.url}{PREFIX}{path}", headers=self.headers) as response,
        ):
            yield response

    async def ask(self, path: str) -> tuple[int, Any]:
        async with self.open(path) as response:
            value = await response.json()
        if response.status == 200:
            plain = re.sub(r"/req_\w+$", "/{id}", path.partition("?")[0])
            Draft202012Validator(dict(self.gateway.app[OPERATIONS]["GET", PREFIX + plain].handler.answer)).validate(
                value
            )
        return response.status, value

    async def list_ids(self, query: str) -> list[int]:
        status, found = await self.ask(f"/requests?{query}")
        assert status == 200, found
        return [IDS.index(row["id"]) for row in found["data"]]


async def sign_in(gateway: RunningGateway, role: Role, account_id: int) -> Asker:
    """A member of an account, with a session."""
    sessions = gateway.app[SERVICES].auth.sessions
    member = await sessions._members.add_member(Member(0, account_id, f"{role}{account_id}", role, passphrase="hash"))
    entry = await sessions.open(member, Credential("hash", is_known=True), ClientInfo())
    return Asker(gateway, {"Cookie": f"{COOKIE}={entry.reference}", CONSOLE_HEADER: "1"})


async def start(gateway_with: StartGateway, rows: list[RequestRecord]) -> Asker:
    """The bearer of the token, at a gateway that has these rows: they were charged to no purse."""
    gateway = await gateway_with(CONFIG, clock=lambda: NOW_S)
    gateway.audited = False
    await LedgerRepository(gateway.app[SERVICES].admin.history.log._database).post(rows)
    return Asker(gateway, {"Authorization": f"Bearer {gateway.admin_token}"})
