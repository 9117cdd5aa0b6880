"""Requests as permitted users see them: listed, looked at, summed, and exported as a file."""

import asyncio
import csv
import io
import re
from typing import Any

import aiohttp
import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.audit_log import OPERATOR
from gateway.domain.request_log import (
    MAX_ERROR_CHARS,
    NO_CHANNEL,
    SUCCESS_CODE,
    FailedAttempt,
    RequestFilter,
    RequestPage,
    StoredRequest,
    format_attempts,
)
from gateway.domain.usage import UsageSource
from gateway.server.admin.export import FORMATS, format_csv
from gateway.server.admin.request_history import MAX_EXPORTS, PAGE_ROWS
from gateway.server.admin.requests import RequestView, build_row
from gateway.server.context import SERVICES
from gateway.storage.request_log import RequestLogRepository
from tests.support.request_asker import IDS, THEIRS, Asker, make, sign_in, start
from tests.support.request_records import make_row, refuse
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

ROWS = [
    make(0, "14 23:59"),
    make(1, "15 00:00", channel="up2", served_model="m-2026", attempts=2, tried="up=upstream_timeout:120,up2=ok:85"),
    make(2, "15 10:10", status=502, outcome="failed", error_code="upstream_error", error="It broke OFF"),
    refuse(make(3, "15 11:00", error_code="model_not_found", error="No channel serves 'x'", model="x", **THEIRS)),
    make(4, "15 12:00", outcome="client_closed", status=499, **THEIRS),
    make(5, "15 12:01", cost_nanos=99, unpriced=True, model="=cmd|' /C calc'!A0"),
]


UNKNOWN = dict.fromkeys(("step", "model", "channel", "cause", "error_code", "status"))
"""What is null in an attempt of a row that has no more than version 0.9 wrote."""


@pytest.fixture
async def operator(gateway_with: StartGateway) -> Asker:
    return await start(gateway_with, ROWS)


READERS = ("/requests", f"/requests/{IDS[0]}", "/requests/export", "/usage", "/requests/facets")


@pytest.mark.parametrize("path", READERS)
async def test_a_record_that_waits_for_its_commit_is_stored_before_records_are_read(
    gateway_with: StartGateway, path: str
) -> None:
    asker = await start(gateway_with, [])
    storage = asker.gateway.app[SERVICES].storage
    row = make(0, "15 12:00", model="m-that-waited")
    storage.write_queue.put(row)
    async with asker.open(path) as response:
        assert response.status == 200
        answer = await response.text()
    assert not storage.write_queue
    assert "m-that-waited" in answer or '"requests":1' in answer


FOUND = [
    ("", [5, 4, 3, 2, 1, 0]),
    ("limit=2", [5, 4]),
    ("limit=2&before=3", [1, 0]),
    ("after=0&limit=2", [0, 1]),
    ("after=4", [4, 5]),
    ("key=2", [4, 3]),
    ("account=other", [4, 3]),
    ("account=other&key=1", []),
    ("model=x", [3]),
    ("channel=up2", [1]),
    ("served_model=m-2026", [1]),
    ("served_model=m", [4, 2, 0]),
    ("status=499", [4]),
    ("status=error", [3, 2]),
    ("status=ok", [5, 4, 1, 0]),
    ("outcome=client_closed", [4]),
    ("text=broke+off", [2]),
    ("text=MODEL_not", [3]),
    (f"text={IDS[4]}", [4]),
    ("unpriced=true", [5]),
    ("unpriced=false", [4, 3, 2, 1, 0]),
    ("text=", [5, 4, 3, 2, 1, 0]),
    ("since=2026-03-15", [5, 4, 3, 2, 1]),
    ("until=2026-03-14", [0]),
    ("since=2026-03-15T00:00:00Z&until=2026-03-15T11:00:00Z", [2, 1]),
    ("since=2026-03-15T12:00:00%2B01:00&until=2026-03-15T12:00", [3]),
    ("since=2026-03-15&until=2026-03-15&status=200&key=1", [5, 1]),
    ("since=2030-01-01", []),
]
REFUSED = [
    ("status=x", 400, "status"),
    ("status=-1", 400, "status"),
    ("outcome=happily", 400, "outcome"),
    ("unpriced=1", 400, "unpriced"),
    ("since=yesterday", 400, "since"),
    ("until=2026-02-30", 400, "until"),
    ("until=", 400, "until"),
    ("since=0001-01-01T00:00%2B23:59", 400, "since"),
    ("before=x", 400, "before"),
    ("before=1&after=1", 400, "after"),
    ("after=", 400, "after"),
    ("after=-1", 400, "after"),
    ("after=1.5", 400, "after"),
    ("after=t12.11", 400, "after"),
    (f"after={2**63}", 400, "after"),
    ("key=one", 400, "key"),
    (f"text={'x' * (MAX_ERROR_CHARS + 1)}", 400, "text"),
    ("account=nobody", 404, "account"),
]


async def test_requests_are_found_by_everything_that_they_have(operator: Asker) -> None:
    for query, expected in FOUND:
        assert await operator.list_ids(query) == expected, query
    for query, status, param in REFUSED:
        found, reported = await operator.ask(f"/requests?{query}")
        assert (found, reported["error"]["param"]) == (status, param), query
    _, page = await operator.ask("/requests?limit=4&status=200")
    assert (page["more"], page["next"], page["newest"], page["searched_to"]) == (False, None, "6", None)
    _, page = await operator.ask("/requests?limit=4")
    assert (page["more"], page["next"], page["searched_to"]) == (True, "3", "2026-03-15T10:10:00Z")
    assert await operator.list_ids(f"before={page['next']}") == [1, 0]
    row = page["data"][3]
    assert (row["started_at"], row["settled_at"]) == ("2026-03-15T10:09:59Z", "2026-03-15T10:10:00Z")
    assert (row["error"], row["error_code"], row["cost_usd"]) == ("It broke OFF", "upstream_error", 0.000003)


async def test_members_see_their_accounts_and_not_who_stands_behind_the_gateway(operator: Asker) -> None:
    gateway = operator.gateway
    for member in (await sign_in(gateway, "member", 1), await sign_in(gateway, "viewer", 1)):
        assert await member.list_ids("") == [5, 2, 1, 0]
        assert await member.list_ids("account=acme&limit=1") == [5]
        assert await member.list_ids("key=2") == []
        assert await member.list_ids(f"text={IDS[4]}") == []
        _, page = await member.ask("/requests")
        assert {(row["channel"], row["tried"]) for row in page["data"]} == {(None, "")}
        _, one = await member.ask(f"/requests/{IDS[1]}")
        assert [(tried["channel"], tried["error_code"]) for tried in one["attempts_made"]] == [
            (None, "upstream_timeout"),
            (None, None),
        ]
        for path in (
            "/requests?channel=up",
            "/usage?by=channel",
            "/usage?by=account",
            "/usage?channel=up",
            "/requests?served_model=m",
            "/requests/export?served_model=m",
        ):
            assert (await member.ask(path))[0] == 403, path
        assert (await member.ask("/requests/facets?channel=up"))[0] == 403
        places = [f"/{path}?account={name}" for name in ("other", "none") for path in ("requests", "usage")]
        answers = [await member.ask(place) for place in places]
        assert {(status, reported["error"]["param"]) for status, reported in answers} == {(404, "account")}
        answers = [await member.ask(f"/requests/{request_id}") for request_id in (IDS[4], f"req_{99:024x}")]
        assert {(status, reported["error"]["code"]) for status, reported in answers} == {(404, "not_found")}
        _, used = await member.ask("/usage?by=key")
        assert [(line["key"], line["requests"]) for line in used["data"]] == [("acme/test", 4)]
        assert used["total"]["requests"] == 4
        _, facets = await member.ask("/requests/facets")
        assert (facets["channels"], [one["value"] for one in facets["keys"]]) == ([], [1])
        assert [one["value"] for one in facets["statuses"]] == [200, 502]


async def test_one_request_says_how_it_went_and_what_its_cost_is_made_of(operator: Asker) -> None:
    _, one = await operator.ask(f"/requests/{IDS[1]}")
    assert one["attempts_made"] == [
        {**UNKNOWN, "channel": "up", "error_code": "upstream_timeout", "ms": 120},
        {**UNKNOWN, "channel": "up2", "ms": 85},
    ]
    assert one["timing"] == {"first_byte_ms": 4, "total_ms": 5}
    assert [(line["what"], line["quantity"], line["unit_usd"], line["estimated"]) for line in one["lines"]] == [
        ("input_tokens", 1, 1.0, False),
        ("output_tokens", 1, 2.0, False),
    ]
    assert sum(line["cost_usd"] for line in one["lines"]) == pytest.approx(one["cost_usd"])
    _, failed = await operator.ask(f"/requests/{IDS[2]}")
    expected = {**UNKNOWN, "model": "m", "channel": "up", "error_code": "upstream_error", "status": 502, "ms": 5}
    assert failed["attempts_made"] == [expected]
    _, refused = await operator.ask(f"/requests/{IDS[3]}")
    assert refused["attempts_made"] == []
    _, expensive = await operator.ask(f"/requests/{IDS[5]}")
    (line,) = expensive["lines"]
    assert (line["what"], line["cost_usd"], line["unit_usd"]) == ("request", 9.9e-08, None)
    for request_id in ("req_none", "1", "..%2Fkeys", "%00"):
        assert (await operator.ask(f"/requests/{request_id}"))[0] == 404


async def test_a_request_for_a_route_shows_its_steps_and_to_members_no_channel_and_no_model(
    gateway_with: StartGateway,
) -> None:
    tried = format_attempts(
        [
            FailedAttempt(NO_CHANNEL, "budget", 0, step=1, model="dear", cause="budget"),
            FailedAttempt("up", "upstream_timeout", 120, 504, "timeout", 2, "gpt-5"),
            FailedAttempt("up2", SUCCESS_CODE, 85, step=3, model="org/claude"),
        ]
    )
    rows = [make(0, "15 12:00", route=""), make(1, "15 12:01", model="fast", route="fast", attempts=2, tried=tried)]
    operator = await start(gateway_with, rows)
    assert await operator.list_ids("route=fast") == [1]
    assert await operator.list_ids("route=slow") == []
    _, one = await operator.ask(f"/requests/{IDS[1]}")
    first, second, third = one["attempts_made"]
    assert one["route"] == "fast"
    assert first == {**UNKNOWN, "step": 1, "model": "dear", "cause": "budget", "error_code": "budget", "ms": 0}
    assert second == {
        "step": 2,
        "model": "gpt-5",
        "channel": "up",
        "cause": "timeout",
        "error_code": "upstream_timeout",
        "status": 504,
        "ms": 120,
    }
    assert third == {**UNKNOWN, "step": 3, "model": "org/claude", "channel": "up2", "ms": 85}
    member = await sign_in(operator.gateway, "member", 1)
    _, seen = await member.ask(f"/requests/{IDS[1]}")
    assert (seen["route"], seen["tried"]) == ("fast", "")
    assert {(tried["channel"], tried["model"]) for tried in seen["attempts_made"]} == {(None, None)}
    assert [(tried["step"], tried["cause"]) for tried in seen["attempts_made"]] == [
        (1, "budget"),
        (2, "timeout"),
        (3, None),
    ]


async def test_usage_is_of_every_request_by_day_hour_and_all_that_they_have(operator: Asker) -> None:
    async def ask(query: str) -> list[tuple[Any, int, int]]:
        status, found = await operator.ask(f"/usage?{query}")
        assert status == 200, found
        return [(line[found["by"]], line["requests"], line["failed"]) for line in found["data"]]

    assert await ask("") == [("2026-03-14", 1, 0), ("2026-03-15", 5, 2)]
    assert await ask("by=hour") == [
        ("2026-03-14T23:00:00Z", 1, 0),
        ("2026-03-15T00:00:00Z", 1, 0),
        ("2026-03-15T10:00:00Z", 1, 1),
        ("2026-03-15T11:00:00Z", 1, 1),
        ("2026-03-15T12:00:00Z", 2, 0),
    ]
    late = [("2026-03-15T11:00:00Z", 1, 1), ("2026-03-15T12:00:00Z", 2, 0)]
    assert await ask("by=hour&since=2026-03-15T11:59:00Z") == late
    assert await ask("by=status") == [(200, 3, 0), (499, 1, 0), (502, 1, 1), (403, 1, 1)]
    assert await ask("by=channel") == [("up", 4, 1), ("up2", 1, 0)]
    assert await ask("by=account&since=2026-03-15") == [("acme", 3, 1), ("other", 2, 1)]
    assert await ask("by=key&channel=up2") == [("acme/test", 1, 0)]
    assert await ask("by=model&status=502") == [("m", 1, 1)]
    assert await ask("by=day&since=2026-03-15T10:00:00Z&until=2026-03-15T11:00:00Z") == [("2026-03-15", 1, 1)]
    _, found = await operator.ask("/usage?by=model")
    assert [line["model"] for line in found["data"]] == ["m", ROWS[5].model]
    assert (found["total"]["requests"], found["total"]["failed"]) == (6, 2)
    assert (found["since"], found["until"]) == ("2026-02-14", "2026-03-15")
    _, found = await operator.ask("/usage?by=hour")
    assert (found["since"], found["until"]) == ("2026-03-14T13:00:00Z", "2026-03-15T13:00:00Z")
    for query, param in (
        ("by=week", "by"),
        ("since=2026-03-16", "since"),
        ("since=2026-03-15&until=2026-03-14", "since"),
        ("by=hour&since=2026-02-01", "since"),
        ("status=error", "status"),
    ):
        status, reported = await operator.ask(f"/usage?{query}")
        assert (status, reported["error"]["param"]) == (400, param), query


async def test_facets_are_what_there_is_to_choose_by(operator: Asker) -> None:
    _, facets = await operator.ask("/requests/facets")
    assert facets["models"] == [{"value": "m", "requests": 4}, {"value": ROWS[5].model, "requests": 1}]
    assert facets["keys"] == [
        {"value": 1, "name": "acme/test", "requests": 4},
        {"value": 2, "name": "other/theirs", "requests": 2},
    ]
    assert facets["statuses"][0] == {"value": 200, "requests": 3}
    assert facets["channels"] == [{"value": "up", "requests": 4}, {"value": "up2", "requests": 1}]
    assert (facets["since"], facets["until"]) == ("2026-02-14T00:00:00Z", "2026-03-16T00:00:00Z")
    _, facets = await operator.ask("/requests/facets?status=error&since=2026-03-15T11:00:00Z")
    assert [one["value"] for one in facets["keys"]] == [2]
    assert (await operator.ask("/requests/facets?status=x"))[1]["error"]["param"] == "status"


async def read(asker: Asker, query: str) -> tuple[aiohttp.ClientResponse, bytes]:
    async with asker.open(f"/requests/export?{query}") as response:
        return response, await response.read()


async def test_an_export_is_a_file_of_the_same_rows_as_the_list(operator: Asker) -> None:
    _, listed = await operator.ask("/requests")
    response, raw = await read(operator, "format=jsonl")
    assert (response.status, response.content_type) == (200, "application/jsonl")
    assert response.headers["Content-Disposition"] == 'attachment; filename="requests.jsonl"'
    assert [orjson.loads(line) for line in raw.splitlines()] == listed["data"]
    names = list(orjson.loads(raw.splitlines()[0]))
    response, raw = await read(operator, "")
    assert (response.content_type, response.charset) == ("text/csv", "utf-8")
    assert raw.count(b"\r\n") == raw.count(b"\n") == 7
    rows = list(csv.DictReader(io.StringIO(raw.decode(), newline="")))
    assert [row["id"] for row in rows] == [row["id"] for row in listed["data"]]
    assert list(rows[0]) == names
    assert rows[0]["model"] == f"'{ROWS[5].model}"
    assert (rows[1]["stream"], rows[2]["channel"], rows[0]["error_code"]) == ("true", "", "")
    response, raw = await read(operator, "format=jsonl&status=error&account=acme")
    assert [orjson.loads(line)["id"] for line in raw.splitlines()] == [IDS[2]]
    _, raw = await read(operator, "format=csv&model=nothing")
    assert raw.count(b"\n") == 1
    for query, param in (("format=xlsx", "format"), ("since=x", "since")):
        status, reported = await operator.ask(f"/requests/export?{query}")
        assert (status, reported["error"]["param"]) == (400, param)


async def test_a_members_export_is_of_its_account(operator: Asker) -> None:
    member = await sign_in(operator.gateway, "viewer", 2)
    _, raw = await read(member, "format=jsonl")
    rows = [orjson.loads(line) for line in raw.splitlines()]
    found = [(row["id"], row["channel"], row["account"]) for row in rows]
    assert found == [(IDS[4], None, "other"), (IDS[3], None, "other")]
    assert (await read(member, "channel=up"))[0].status == 403
    assert (await read(member, "account=acme"))[0].status == 404


class CountingLog:
    """The log of a gateway; it counts the pages that are asked for."""

    def __init__(self, log: RequestLogRepository) -> None:
        self.log, self.pages = log, 0

    async def list_requests(self, wanted: RequestFilter, limit: int) -> RequestPage:
        self.pages += 1
        return await self.log.list_requests(wanted, limit)


async def test_an_export_is_read_no_faster_than_it_is_taken_and_ends_with_its_reader(
    gateway_with: StartGateway,
) -> None:
    """Its file is of 8 MB: more than any buffer on the way takes."""
    total = 30 * PAGE_ROWS
    rows = [make(number, "15 12:00", error="x" * MAX_ERROR_CHARS, model="m" * 256) for number in range(6, total + 6)]
    operator = await start(gateway_with, rows)
    history = operator.gateway.app[SERVICES].admin.history
    history.log = log = CountingLog(history.log)
    async with operator.open("/requests/export?format=jsonl") as response:
        await response.content.readline()
        seen = -1
        while seen != log.pages:  # until it waits for its reader
            seen = log.pages
            await asyncio.sleep(0.1)
        assert 1 <= log.pages < 25
        assert history.exports == 1
        async with operator.open("/requests/export"):
            assert history.exports == MAX_EXPORTS
            refused, reported = await operator.ask("/requests/export")
            assert (refused, reported["error"]["code"]) == (429, "rate_limit_exceeded")
            _, raw = await read(await sign_in(operator.gateway, "viewer", 2), "format=jsonl")
            assert raw == b""
    async with asyncio.timeout(5):
        while history.exports:  # noqa: ASYNC110 - looked at from outside
            await asyncio.sleep(0.01)
    _, raw = await read(operator, "format=jsonl")
    assert raw.count(b"\n") == total


async def test_an_export_breaks_off_with_its_session_and_with_the_gateway(gateway_with: StartGateway) -> None:
    rows = [make(number, "15 12:00", error="x" * MAX_ERROR_CHARS) for number in range(6, 40 * PAGE_ROWS)]
    operator = await start(gateway_with, rows)
    gateway = operator.gateway
    history, drain = gateway.app[SERVICES].admin.history, gateway.app[SERVICES].drain
    history.retry_s = 0.0
    member = await sign_in(gateway, "viewer", 1)
    async with member.open("/requests/export") as response:
        await response.content.readline()
        (session,) = await gateway.app[SERVICES].auth.sessions._members.list_sessions(1)
        await gateway.app[SERVICES].auth.sessions._members.delete_sessions([session.digest])
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    async with operator.open("/requests/export") as response:
        await response.content.readline()
        drain.open = False
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert history.exports == 0


@table_rows(("source", "implausible"), [("bound", True), ("upstream", False), ("estimate", False)])
def test_a_row_says_whether_its_provider_said_what_cannot_be(source: UsageSource, implausible: bool) -> None:
    row = make_row(1, usage_source=source)
    view = build_row(StoredRequest(1, row), OPERATOR, RequestView)
    assert (view.usage_capped, view.usage_implausible) == (implausible, implausible)


def test_an_export_has_every_field_of_a_row() -> None:
    header = FORMATS["csv"].header.decode().strip().split(",")
    assert sorted(header) == sorted(field.name for field in attrs.fields(RequestView))


@given(st.integers(0, 10**18))
def test_an_amount_in_a_csv_file_has_no_exponent_and_is_exact(nanos: int) -> None:
    usd = nanos / 10**9
    cell = format_csv([[usd, None, True, "=x"]]).decode().strip()
    amount, *rest = cell.split(",")
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)?", amount)
    assert float(amount) == usd
    assert rest == ["", "true", "'=x"]
