"""A chat application with many users behind one key, each of whom may spend a cent a day.

``make soak ARGS=tests/e2e/test_chat_application.py`` has a thousand users; ``GATEWAY_TEST_USERS=200`` makes them fewer.
"""

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import openai
import orjson
import pytest
from openai import AsyncOpenAI, RateLimitError

from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import RequestRecord
from tests.support.cluster import start_nodes
from tests.support.command_line import environment
from tests.support.fast_provider import SwiftUpstream, slow
from tests.support.forked_commands import Forked
from tests.support.gateway import KEY, channel
from tests.support.gateway_process import GatewayProcess, eventually
from tests.support.postgres import SharedPostgres
from tests.support.spending_callers import is_at_rest
from tests.support.started_gateways import NO_TLS

CALLERS = 50
ANSWERS, REFUSALS = 5, 2
"""Calls of each user that the limit covers, and that it does not."""
COST_USD = 0.002
LIMIT = {"name": "a cent a day", "of": "user", "usd": 0.01, "window": "day", "keys": ["chat-app"]}
MANY_USERS = int(os.environ.get("GATEWAY_TEST_USERS") or 1_000)
ASK: list[Any] = [{"role": "user", "content": "Hello"}]
DAYS = 2
"""A run at midnight UTC has its requests on two days."""


@attrs.frozen
class UserFields:
    """How an application names its users: the fields of a call by the SDK."""

    name: str

    def __str__(self) -> str:
        return self.name

    def build_user(self, number: int) -> str:
        return f"u{number}" if self.name == "openai" else f"8d1f4a52-0c5e-4b0f-9a55-{number:012}"

    def build_fields(self, user: str) -> dict[str, Any]:
        if self.name == "openai":
            return {"user": user}
        headers = {"Id": user, "Name": "Ann%20Example", "Email": f"{user}@example.com", "Role": "user"}
        return {
            "extra_headers": {
                **{f"X-OpenWebUI-User-{name}": value for name, value in headers.items()},
                "X-OpenWebUI-Chat-Id": f"chat-of-{user}",
            }
        }


OPENAI, OPEN_WEBUI = UserFields("openai"), UserFields("open-webui")
SOAK = [pytest.mark.soak, pytest.mark.timeout(0)]


def find_zone() -> str:
    """Return a time zone in which it is about noon, so that no test runs over midnight."""
    ahead = 12 - time.gmtime().tm_hour
    return f"Etc/GMT{-ahead:+d}"


@attrs.define
class Application:
    """The application: callers that send calls to ``clients`` in turn, and what became of the calls of each user."""

    clients: Sequence[AsyncOpenAI]
    user_fields: UserFields
    answered: Counter[str] = attrs.Factory(Counter)
    refused: Counter[str] = attrs.Factory(Counter)
    refusals: list[RateLimitError] = attrs.Factory(list)

    async def call_all(self, users: Sequence[str]) -> None:
        """Call for ``users``, one by one, by all callers at once."""
        work = zip(users, itertools.cycle(self.clients), strict=False)
        await asyncio.gather(*(self._call_each(work) for _ in range(CALLERS)))

    async def spend_rest(self, users: Sequence[str]) -> None:
        """Call until every user has spent the limit: what a user may spend can be at another node for a moment."""
        async with asyncio.timeout(60):
            while poor := [user for user in users if self.answered[user] < ANSWERS]:
                await self.call_all(poor)
        if len(self.clients) > 1:
            await self.call_all([*users] * len(self.clients))

    async def _call_each(self, work: Iterator[tuple[str, AsyncOpenAI]]) -> None:
        for user, client in work:
            try:
                await client.chat.completions.create(
                    model="m", messages=ASK, max_tokens=9, **self.user_fields.build_fields(user)
                )
                self.answered[user] += 1
            except RateLimitError as error:
                self.refused[user] += 1
                self.refusals.append(error)


def mix_calls(users: Sequence[str]) -> list[str]:
    """Return the calls of all users. Those of ten users are mixed, so that many of one user run at once."""
    calls: list[str] = []
    for first in range(0, len(users), 10):
        group = [*users[first : first + 10]] * (ANSWERS + REFUSALS)
        random.shuffle(group)
        calls += group
    return calls


@asynccontextmanager
async def serve(
    path: Path, tables: Mapping[str, Any], nodes: int, shared_postgres: SharedPostgres
) -> AsyncIterator[Sequence[GatewayProcess]]:
    """One gateway over SQLite, or the nodes of a cluster."""
    if nodes == 1:
        async with GatewayProcess(path / "data", tables) as gateway:
            yield [gateway]
    else:
        async with start_nodes(path, [await shared_postgres.empty()] * nodes, tables) as gateways:
            yield gateways


@asynccontextmanager
async def open_clients(gateways: Sequence[GatewayProcess]) -> AsyncIterator[list[AsyncOpenAI]]:
    async with AsyncExitStack() as stack:
        clients = []
        for gateway in gateways:
            http = openai.DefaultAsyncHttpxClient(verify=NO_TLS)
            client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, http_client=http, timeout=120)
            clients.append(await stack.enter_async_context(client))
        yield clients


def check_refusals(refusals: Sequence[RateLimitError]) -> None:
    """Every refusal names the limit and its user, was sent once, and says that no retry helps before tomorrow."""
    for error in refusals:
        headers = error.response.headers
        assert (error.code, headers["x-should-retry"]) == ("insufficient_quota", "false")
        assert error.response.request.headers["x-stainless-retry-count"] == "0"
        assert "The limit 'a cent a day' of the user '" in error.message
        assert 0 < int(headers["Retry-After"]) <= 24 * 3600
        assert "x-gateway-attempts" not in headers


async def read_usage(gateway: GatewayProcess, folder: Path) -> Mapping[str, Any]:
    """Return the usage by user as the command line prints it, which is what the admin API answers."""
    out, err = folder / "usage.json", folder / "usage.err"
    words = ["gateway", "usage", "--by", "user", "--key", "chat-app", "--days", str(DAYS), "--json"]
    places = ["--data", str(gateway.data), "--config", str(gateway.config)]
    process = Forked([*words, *places], cwd=folder, env=environment(), out=out, err=err)
    async with asyncio.timeout(60):
        while process.poll() is None:  # noqa: ASYNC110 - another process has no event to tend
            await asyncio.sleep(0.01)
    assert process.poll() == 0, err.read_text()
    report: dict[str, Any] = orjson.loads(out.read_bytes())
    assert report == await gateway.ask(f"usage?by=user&since={report['since']}")
    return report


def check_usage(report: Mapping[str, Any], rows: Sequence[RequestRecord]) -> None:
    """The sums of each user are those of the rows, to the nano, and all users together are the key's total."""
    costs, requests = Counter[str](), Counter[str]()
    for row in rows:
        costs[row.end_user] += row.cost_nanos
        requests[row.end_user] += 1
    assert {line["user"]: line["cost_nanos"] for line in report["data"]} == costs
    assert {line["user"]: line["requests"] for line in report["data"]} == requests
    assert report["total"]["cost_nanos"] == costs.total()
    for name in ("unlisted", "other", "unattributed"):
        assert report[name]["requests"] == 0, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("user_fields", "nodes", "count"),
    [
        pytest.param(OPENAI, 1, 40, marks=pytest.mark.timeout(180)),
        pytest.param(OPEN_WEBUI, 4, 40, marks=pytest.mark.timeout(180)),
        *(pytest.param(fields, nodes, MANY_USERS, marks=SOAK) for fields in (OPENAI, OPEN_WEBUI) for nodes in (1, 4)),
    ],
    ids=str,
)
async def test_each_user_of_an_application_spends_a_cent_a_day(
    tmp_path: Path, shared_postgres: SharedPostgres, user_fields: UserFields, count: int, nodes: int
) -> None:
    users = [user_fields.build_user(number) for number in range(count)]
    tables = {
        "account": [{"name": "acme", "timezone": find_zone()}],
        "key": [{"name": "chat-app", "account": "acme", "secret": KEY}],
        "price": [{"model": "m", "usd_per_call": COST_USD}],
        "limit": [LIMIT],  # its days are those of the account
    }
    async with SwiftUpstream() as up, AsyncExitStack() as stack:
        up.behaviour = slow(0.02)
        patient = channel(up.base_url, first_byte_timeout_s=60, total_timeout_s=90)
        gateways = await stack.enter_async_context(
            serve(tmp_path, {**tables, "channel": [patient]}, nodes, shared_postgres)
        )
        gateway = gateways[0]
        clients = await stack.enter_async_context(open_clients(gateways))
        application = Application(clients, user_fields)
        start_s = time.monotonic()
        await application.call_all(mix_calls(users))
        took_s = time.monotonic() - start_s
        await application.spend_rest(users)
        assert application.answered == dict.fromkeys(users, ANSWERS)
        assert nodes > 1 or application.refused == dict.fromkeys(users, REFUSALS)
        check_refusals(application.refusals)
        await eventually(lambda: is_at_rest(gateways), 60)
        rows, _ = await gateway.read_rows()
        costs = Counter(row.cost_nanos for row in rows)
        assert costs == {round(COST_USD * NANOS_PER_USD): count * ANSWERS, 0: application.refused.total()}
        assert len(up.seen) == count * ANSWERS
        check_usage(await read_usage(gateway, tmp_path), rows)
        await gateway.check_books()
        print(f"{user_fields.name}: {count} users, {len(rows)} calls in {took_s:.1f} s")  # noqa: T201
