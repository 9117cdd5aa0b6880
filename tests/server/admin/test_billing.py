"""The admin API's money: credits as entries, usage along every axis, and an audit that finds what is wrong."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
import pytest

from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from tests.support.admin_calls import Ask, ask_office
from tests.support.capped_calls import RESERVE, stream_until
from tests.support.fault_scene import PRICE, site, until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.raw_client import connect
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

COST_USD = 0.000019
"""Of one call that the good provider answers: 5 tokens at 1,000 nano-USD and 7 at 2,000."""
OTHER_KEY = "sk-test-key-of-another-caller"
ACME, TEST = "/accounts/acme/credits", "/keys/1/credits"
START = datetime(2026, 11, 15, 12, tzinfo=UTC)
CONFIG = {
    "account": [{"name": "acme", "quota_usd": 10}, {"name": "free"}],
    "key": [
        {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 5, "quota_period": "monthly"},
        {"name": "other", "account": "free", "secret": OTHER_KEY},
    ],
    "price": [PRICE, {**PRICE, "model": "dear", "input_usd_per_million": 10}],
}


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        yield up


@pytest.fixture
async def gateway(gateway_with: StartGateway, up: ScriptedUpstream) -> RunningGateway:
    ahead_s = START.timestamp() - time.time()  # no test begins on one day, or in one month, and ends in the next
    config = site(channel(up.base_url, models=["m", "dear", "free"]), **CONFIG)
    return await gateway_with(config, clock=lambda: time.time() + ahead_s)


@pytest.fixture
def ask(gateway: RunningGateway) -> Ask:
    return partial(ask_office, gateway)


async def call(gateway: RunningGateway, model: str = "m", key: str = KEY) -> tuple[int, str | None]:
    """Status and error code of a small call."""
    headers = {"Authorization": f"Bearer {key}"}
    async with gateway.post({**HELLO, "model": model}, headers=headers) as response:
        value = await response.json()
        return response.status, value.get("error", {}).get("code")


@contextmanager
def database(gateway: RunningGateway) -> Iterator[sqlite3.Connection]:
    """The gateway's database, past the gateway. What is executed is in force at once."""
    path = gateway.folder.private_file("gateway.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


async def test_a_top_up_is_an_entry_on_top_of_the_quota_and_the_quota_stays(ask: Ask) -> None:
    status, made = await ask("POST", ACME, {"amount_usd": 2.5, "reference": "pay-1", "note": "thank you"})
    at = datetime.fromisoformat(made.pop("at"))
    assert START.date() == at.date()
    entry = {
        "sequence": made["sequence"],
        "kind": "top_up",
        "account_id": 1,
        "key_id": None,
        "amount_usd": 2.5,
        "reference": "pay-1",
        "note": "thank you",
    }
    standing = {"spent_usd": 0, "credit_usd": 2.5, "held_usd": 0, "left_usd": 12.5, "overrun_usd": 0, "resets_at": None}
    assert (status, made) == (201, {**entry, "added": True, **standing})
    _, shown = await ask("GET", "/accounts/acme")
    assert shown["quota_usd"] == 10
    assert {name: shown[name] for name in standing} == standing
    _, listed = await ask("GET", ACME)
    assert [{name: item[name] for name in entry} for item in listed["data"]] == [entry]
    assert (await ask("GET", TEST))[1]["data"] == []


async def test_a_credit_of_a_month_is_for_this_month_and_says_when_it_ends(ask: Ask) -> None:
    status, made = await ask("POST", TEST, {"amount_usd": 1})
    assert (status, made["account_id"], made["key_id"]) == (201, 1, 1)
    assert (made["credit_usd"], made["left_usd"]) == (1, 6)
    assert made["resets_at"] == "2026-12-01T00:00:00Z"


async def test_set_makes_the_balance_what_it_says_by_the_difference(gateway: RunningGateway, ask: Ask) -> None:
    assert await call(gateway) == (200, None)
    status, made = await ask("POST", ACME, {"kind": "set", "amount_usd": 3})
    assert (status, made["left_usd"], made["spent_usd"]) == (201, 3, COST_USD)
    assert made["amount_usd"] == pytest.approx(3 - 10 + COST_USD, abs=1e-12)
    _, made = await ask("POST", ACME, {"kind": "set", "amount_usd": 3})
    assert (made["amount_usd"], made["left_usd"]) == (0, 3)
    _, made = await ask("POST", ACME, {"kind": "set", "amount_usd": 0})
    assert (made["amount_usd"], made["left_usd"]) == (-3, 0)
    assert await call(gateway) == (403, "insufficient_quota")
    _, made = await ask("POST", ACME, {"kind": "set", "amount_usd": 1})
    assert (made["left_usd"], made["spent_usd"]) == (1, COST_USD)
    assert await call(gateway) == (200, None)
    _, listed = await ask("GET", f"{ACME}?limit=2")
    assert [item["amount_usd"] for item in listed["data"]] == [1, -3]


async def test_a_negative_top_up_takes_away_and_what_is_spent_beyond_it_is_an_overrun(
    gateway: RunningGateway, ask: Ask
) -> None:
    _, made = await ask("POST", ACME, {"amount_usd": -4})
    assert (made["left_usd"], made["overrun_usd"]) == (6, 0)
    assert await call(gateway) == (200, None)
    _, made = await ask("POST", ACME, {"amount_usd": -6})
    assert (made["left_usd"], made["overrun_usd"]) == (-COST_USD, COST_USD)
    assert await call(gateway) == (403, "insufficient_quota")
    assert (await ask("GET", "/audit"))[1]["ok"] is True


async def test_a_refused_key_works_again_as_soon_as_it_is_topped_up(
    gateway_with: StartGateway, up: ScriptedUpstream
) -> None:
    key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 0.000001}
    gateway = await gateway_with(site(channel(up.base_url), key=[key]))
    assert await call(gateway) == (403, "insufficient_quota")
    status, made = await ask_office(gateway, "POST", TEST, {"amount_usd": 1})
    assert (status, made["left_usd"]) == (201, 1.000001)
    assert await call(gateway) == (200, None)
    assert len(up.received) == 1
    rows = await gateway.rows(2)
    assert [(row.outcome, row.error_code, row.cost_nanos) for row in rows] == [
        ("refused", "insufficient_quota", 0),
        ("completed", None, 19_000),
    ]


async def test_a_reference_counts_once_however_often_it_comes(ask: Ask) -> None:
    credit = {"amount_usd": 1, "reference": "pay-7"}
    answers = await asyncio.gather(*(ask("POST", ACME, credit) for _ in range(20)))
    assert {status for status, _ in answers} == {201}
    assert sorted(made["added"] for _, made in answers) == [False] * 19 + [True]
    assert len({made["sequence"] for _, made in answers}) == 1
    assert {made["left_usd"] for _, made in answers} == {11}
    for other in ({"amount_usd": 2}, {"kind": "set"}):
        status, refused = await ask("POST", ACME, {**credit, **other})
        assert (status, refused["error"]["code"], refused["error"]["param"]) == (409, "conflict", "reference")
    assert (await ask("GET", "/accounts/acme"))[1]["left_usd"] == 11
    _, made = await ask("POST", TEST, credit)
    assert (made["added"], made["left_usd"]) == (True, 6)


async def test_a_set_under_a_known_reference_sets_nothing_again(gateway: RunningGateway, ask: Ask) -> None:
    credit = {"kind": "set", "amount_usd": 2, "reference": "start-of-year"}
    _, made = await ask("POST", ACME, credit)
    assert (made["added"], made["left_usd"]) == (True, 2)
    assert await call(gateway) == (200, None)
    _, again = await ask("POST", ACME, credit)
    assert (again["added"], again["sequence"]) == (False, made["sequence"])
    assert again["left_usd"] == pytest.approx(2 - COST_USD, abs=1e-12)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (ACME, {}, 400, "amount_usd"),
        (ACME, {"amount_usd": None}, 400, "amount_usd"),
        (ACME, {"amount_usd": "5"}, 400, "amount_usd"),
        (ACME, {"amount_usd": True}, 400, "amount_usd"),
        (ACME, {"amount_usd": [1]}, 400, "amount_usd"),
        (ACME, {"amount_usd": 1e300}, 400, "amount_usd"),
        (ACME, {"amount_usd": -1e10}, 400, "amount_usd"),
        (ACME, {"amount_usd": 9e9}, 400, "amount_usd"),
        (ACME, {"amount_usd": 1, "kind": "charge"}, 400, "kind"),
        (ACME, {"amount_usd": 1, "kind": None}, 400, "kind"),
        (ACME, {"amount_usd": 1, "reference": ""}, 400, "reference"),
        (ACME, {"amount_usd": 1, "reference": "a" * 65}, 400, "reference"),
        (ACME, {"amount_usd": 1, "reference": "a\nb"}, 400, "reference"),
        (ACME, {"amount_usd": 1, "reference": 7}, 400, "reference"),
        (ACME, {"amount_usd": 1, "note": "a" * 257}, 400, "note"),
        (ACME, {"amount_usd": 1, "amount": 1}, 400, "amount"),
        (ACME, {"amount_usd": 1, "key_id": 2}, 400, "key_id"),
        (ACME, [], 400, None),
        ("/accounts/free/credits", {"amount_usd": 1}, 400, "quota_usd"),
        ("/keys/2/credits", {"amount_usd": 1, "kind": "set"}, 400, "quota_usd"),
        ("/accounts/nobody/credits", {"amount_usd": 1}, 404, "account"),
        ("/keys/999/credits", {"amount_usd": 1}, 404, None),
        ("/keys/x/credits", {"amount_usd": 1}, 404, None),
    ],
)
async def test_a_credit_that_cannot_be_says_why_and_adds_nothing(
    standing_with: StartGateway, path: str, body: Any, status: int, param: str | None
) -> None:
    ask = partial(ask_office, await standing_with(site(channel("http://127.0.0.1:9/v1"), **CONFIG)))
    before = (await ask("GET", "/accounts"))[1], (await ask("GET", "/keys"))[1]
    found, value = await ask("POST", path, body)
    code = {400: "invalid_request", 404: "not_found"}[status]
    assert (found, value["error"]["code"], value["error"]["param"]) == (status, code, param)
    assert ((await ask("GET", "/accounts"))[1], (await ask("GET", "/keys"))[1]) == before
    assert (await ask("GET", ACME))[1]["data"] == []


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/accounts/nobody/credits", 404, "account"),
        ("/keys/999/credits", 404, None),
        ("/keys/-1/credits", 404, None),
        (f"{ACME}?limit=x", 400, "limit"),
        ("/usage?by=week", 400, "by"),
        ("/usage?by=", 400, "by"),
        ("/usage?since=yesterday", 400, "since"),
        ("/usage?until=2026-13-01", 400, "until"),
        ("/usage?until=", 400, "until"),
        ("/usage?key=one", 400, "key"),
        ("/usage?account=nobody", 404, "account"),
        ("/usage?until=0001-01-01", 400, "until"),
        ("/usage/forecast?account=nobody", 404, "account"),
        ("/usage/forecast?key=999", 404, None),
        ("/usage/forecast?key=one", 400, "key"),
        ("/usage?since=9999-12-31", 400, "since"),
    ],
)
async def test_a_question_that_cannot_be_answered_says_why(ask: Ask, path: str, status: int, param: str | None) -> None:
    found, value = await ask("GET", path)
    assert (found, value["error"]["param"]) == (status, param)


@pytest.fixture
async def used(gateway: RunningGateway) -> RunningGateway:
    """Two calls of one key for one model, one for another, one of another account; and one for what is no model."""
    for model, key in (("m", KEY), ("m", KEY), ("dear", KEY), ("m", OTHER_KEY)):
        assert await call(gateway, model, key) == (200, None)
    assert await call(gateway, "nothing") == (404, "model_not_found")
    await gateway.rows(5)
    return gateway


SUMS: Mapping[str, list[tuple[str, int, int]]] = {
    "": [("2026-11-15", 5, 121_000)],
    "by=day": [("2026-11-15", 5, 121_000)],
    "by=model": [("dear", 1, 64_000), ("m", 3, 57_000)],
    "by=key": [("acme/test", 4, 102_000), ("free/other", 1, 19_000)],
    "by=channel": [("up", 4, 121_000)],
    "by=provider": [("custom", 4, 121_000)],
    "by=account": [("acme", 4, 102_000), ("free", 1, 19_000)],
    "by=model&account=free": [("m", 1, 19_000)],
    "by=model&key=1": [("dear", 1, 64_000), ("m", 2, 38_000)],
    "by=key&model=m": [("acme/test", 2, 38_000), ("free/other", 1, 19_000)],
    "by=key&account=acme&model=dear": [("acme/test", 1, 64_000)],
    "by=account&key=2&account=acme": [],
    "by=key&until=2026-01-01": [],
    "by=key&since=9998-01-01&until=9998-12-31": [],
    "by=model&model=nothing": [],
}
"""Of every query: its lines with their requests and nano-USD."""


async def test_usage_is_summed_along_every_axis(used: RunningGateway) -> None:
    for query, expected in SUMS.items():
        status, found = await ask_office(used, "GET", f"/usage?{query}")
        axis = found["by"]
        lines = [(line[axis], line["requests"], line["cost_nanos"]) for line in found["data"]]
        assert (status, lines) == (200, expected), query
        for line in [*found["data"], found["total"]]:
            answered = line["requests"] - line["failed"]
            assert (line["prompt_tokens"], line["completion_tokens"]) == (5 * answered, 7 * answered), query
            assert (line["cached_tokens"], line["cost_usd"]) == (0, line["cost_nanos"] / 10**9), query
        assert found["total"]["cost_nanos"] == sum(cost for _, _, cost in expected), query
        answered = sum(line["requests"] - line["failed"] for line in found["data"])
        assert found["total"]["requests"] - found["total"]["failed"] == answered, query


async def test_what_a_deleted_key_used_is_still_told(used: RunningGateway) -> None:
    _, made = await ask_office(used, "POST", "/keys", {"name": "brief", "account": "acme"})
    assert await call(used, "m", made["secret"]) == (200, None)
    await used.rows(6)
    assert (await ask_office(used, "DELETE", f"/keys/{made['id']}"))[0] == 200
    _, found = await ask_office(used, "GET", "/usage?by=key")
    assert [line["key"] for line in found["data"]] == ["acme/test", "free/other", f"{made['id']} (deleted)"]
    _, account = await ask_office(used, "GET", "/accounts/acme")
    assert account["spent_usd"] == pytest.approx(0.000121, abs=1e-12)


async def test_what_is_held_is_shown_while_it_is_held(gateway_with: StartGateway) -> None:
    go = asyncio.Event()
    async with ScriptedUpstream(stream_until(go)) as up:
        gateway = await gateway_with(site(channel(up.base_url), **CONFIG))
        async with gateway.post({**HELLO, "stream": True}) as response:
            await response.content.readany()
            for path, quota in (("/accounts/acme", 10), ("/keys/1", 5)):
                _, shown = await ask_office(gateway, "GET", path)
                assert (shown["spent_usd"], shown["held_usd"]) == (0, RESERVE / 10**9)
                assert shown["left_usd"] == pytest.approx(quota - RESERVE / 10**9, abs=1e-12)
            _, audited = await ask_office(gateway, "GET", "/audit")
            assert (audited["ok"], audited["open_holds"], audited["held_usd"]) == (True, 1, RESERVE / 10**9)
            _, made = await ask_office(gateway, "POST", TEST, {"kind": "set", "amount_usd": 1})
            assert made["left_usd"] == pytest.approx(1 - RESERVE / 10**9, abs=1e-12)
            go.set()
            await response.read()
        _, shown = await ask_office(gateway, "GET", "/keys/1")
        assert (shown["held_usd"], shown["left_usd"]) == (0, pytest.approx(1 - COST_USD, abs=1e-12))


@pytest.mark.parametrize(
    ("tampering", "whose"),
    [
        ("UPDATE entries SET amount_nanos = amount_nanos + 1 WHERE kind = 'charge'", {"key 1"}),
        ("UPDATE requests SET cost_nanos = cost_nanos - 1", {"key 1"}),
        ("UPDATE usage_days SET cost_nanos = 0", {"key 1", "account 1"}),
        ("UPDATE entries SET amount_nanos = 0 WHERE kind = 'top_up'", {"account 1"}),
        ("DELETE FROM entries WHERE kind = 'set'", {"key 1"}),
        ("DELETE FROM requests", {"key 1"}),
    ],
)
async def test_the_audit_finds_money_that_was_changed_past_the_ledger(
    gateway: RunningGateway, ask: Ask, tampering: str, whose: set[str]
) -> None:
    assert await call(gateway) == (200, None)
    await gateway.rows(1)
    await ask("POST", ACME, {"amount_usd": 1})
    await ask("POST", TEST, {"kind": "set", "amount_usd": 1})
    status, audited = await ask("GET", "/audit")
    assert (status, audited["ok"], audited["problems"], audited["purses"]) == (200, True, [], 2)
    assert (audited["charged_nanos"], audited["charged_usd"]) == (19_000, COST_USD)
    gateway.audited = False
    with database(gateway) as connection:
        connection.execute(tampering)
    _, audited = await ask("GET", "/audit")
    assert audited["ok"] is False
    assert {problem.partition(":")[0] for problem in audited["problems"]} == whose


async def leave_while_it_is_written(gateway: RunningGateway, method: str, path: str, body: Any) -> None:
    """An admin operation whose caller is gone before the store has taken it."""
    changes = gateway.app[SERVICES].admin.changes
    raw = orjson.dumps(body)
    with database(gateway) as other:
        other.execute("BEGIN IMMEDIATE")
        _, writer = await connect(gateway.url)
        head = f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.admin_token}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
        await until(lambda: changes)
        connections = len(gateway.runner.server.connections)  # type: ignore[union-attr]
        writer.close()
        await until(lambda: len(gateway.runner.server.connections) < connections)  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
        other.execute("ROLLBACK")
    await until(lambda: not changes)


async def test_a_change_comes_into_force_though_its_caller_has_left(gateway: RunningGateway, ask: Ask) -> None:
    _, made = await ask("POST", "/keys", {"name": "lost", "account": "acme"})
    key = f"/keys/{made['id']}"
    assert await call(gateway, "m", made["secret"]) == (200, None)
    await gateway.rows(1)
    await leave_while_it_is_written(gateway, "PATCH", key, {"status": "disabled"})
    assert await call(gateway, "m", made["secret"]) == (401, "key_disabled")
    await leave_while_it_is_written(gateway, "DELETE", key, {})
    assert await call(gateway, "m", made["secret"]) == (401, "invalid_api_key")


async def test_a_credit_counts_though_its_caller_has_left(gateway: RunningGateway, ask: Ask) -> None:
    await leave_while_it_is_written(gateway, "POST", ACME, {"amount_usd": 1, "reference": "lost"})
    _, made = await ask("POST", ACME, {"amount_usd": 1, "reference": "lost"})
    assert (made["added"], made["left_usd"]) == (False, 11)
    assert (await ask("GET", "/audit"))[1]["ok"] is True
