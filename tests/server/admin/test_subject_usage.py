"""Usage by user, session and tag through the admin API: lines, what is beyond them, filters, and the CSV."""

import csv
import io
from typing import Any

import attrs
import pytest
from sqlalchemy import insert

from gateway.domain.ledger import day_of
from gateway.domain.request_log import RequestRecord
from gateway.domain.subject_usage import OTHER_VALUES, SubjectKey
from gateway.domain.traffic import SUMMED_FIELDS
from gateway.server.context import SERVICES
from gateway.storage.schema import subject_usage
from tests.support.request_asker import THEIRS, Asker, make, sign_in, start
from tests.support.request_records import refuse
from tests.support.started_gateways import StartGateway

UNATTRIBUTED = {"end_user": "", "session": "", "tags": ""}


def ask_for(number: int, at: str, cost_nanos: int, **values: Any) -> RequestRecord:
    return attrs.evolve(make(number, at, cost_nanos=cost_nanos), **{**UNATTRIBUTED, **values})


ROWS = [
    ask_for(0, "14 23:59", 1, end_user="ann"),
    ask_for(1, "15 00:00", 20, end_user="ann", session="run-1", tags="team=web"),
    ask_for(2, "15 10:00", 30, end_user="=cmd", tags="env=test,team=app"),
    refuse(ask_for(3, "15 10:01", 0, end_user="ann")),
    ask_for(4, "15 12:00", 400, **THEIRS, end_user="bob", session="run-1"),
    ask_for(5, "15 12:01", 5_000),
]
TODAY = "since=2026-03-15&until=2026-03-15"


@pytest.fixture
async def operator(gateway_with: StartGateway) -> Asker:
    return await start(gateway_with, ROWS)


def read_costs(report: dict[str, Any]) -> dict[str, int]:
    kind = report["by"].partition(":")[0]
    lines = {line[kind]: line["cost_nanos"] for line in report["data"]}
    others = {
        f"({name})": report[name]["cost_nanos"]
        for name in ("unlisted", "other", "unattributed", "total")
        if name in report
    }
    return lines | {name: cost for name, cost in others.items() if cost}


CASES: list[tuple[str, dict[str, int]]] = [
    ("by=user", {"bob": 400, "=cmd": 30, "ann": 21, "(unattributed)": 5_000, "(total)": 5_451}),
    (f"by=user&{TODAY}", {"bob": 400, "=cmd": 30, "ann": 20, "(unattributed)": 5_000, "(total)": 5_450}),
    (
        "by=user&since=2026-03-15T11:00:00Z&until=2026-03-15T12:00:00Z",
        {"bob": 400, "=cmd": 30, "ann": 20, "(unattributed)": 5_000, "(total)": 5_450},
    ),
    ("by=user&limit=1", {"bob": 400, "(unlisted)": 51, "(unattributed)": 5_000, "(total)": 5_451}),
    ("by=user&key=2", {"bob": 400, "(total)": 400}),
    ("by=user&account=acme", {"=cmd": 30, "ann": 21, "(unattributed)": 5_000, "(total)": 5_051}),
    ("by=session", {"run-1": 420, "(unattributed)": 5_031, "(total)": 5_451}),
    ("by=tag:team", {"app": 30, "web": 20, "(unattributed)": 5_401, "(total)": 5_451}),
    ("by=user&value=ann", {"ann": 21, "(total)": 21}),
    (f"by=user&value=ann&{TODAY}", {"ann": 20, "(total)": 20}),
    ("by=user&value=ann&key=2", {}),
    ("by=session&value=run-1&key=2", {"run-1": 400, "(total)": 400}),
    ("by=tag:team&value=web", {"web": 20, "(total)": 20}),
    ("by=user&value=nobody", {}),
    ("by=tag:nothing", {"(unattributed)": 5_451, "(total)": 5_451}),
]  # fmt: skip


@pytest.mark.parametrize(("query", "expected"), CASES)
async def test_usage_is_summed_by_user_session_and_tag(operator: Asker, query: str, expected: dict[str, int]) -> None:
    status, report = await operator.ask(f"/usage?{query}")
    assert status == 200, report
    assert read_costs(report) == expected


async def test_a_line_has_every_sum(operator: Asker) -> None:
    _, report = await operator.ask(f"/usage?by=user&{TODAY}&account=acme")
    line = next(line for line in report["data"] if line["user"] == "ann")
    assert (line["requests"], line["failed"], line["prompt_tokens"]) == (2, 1, 2)
    assert (report["since"], report["until"]) == ("2026-03-15", "2026-03-15")


async def test_what_a_day_has_too_many_of_is_told_beside_one_of_them(operator: Asker) -> None:
    database = operator.gateway.app[SERVICES].admin.history.log._database
    other = SubjectKey("user", "", day_of(ROWS[1]), OTHER_VALUES, 1, 1)
    await database.change(insert(subject_usage).values(**other._asdict(), **dict.fromkeys(SUMMED_FIELDS, 7)))
    _, report = await operator.ask("/usage?by=user&value=ann")
    assert (report["total"]["cost_nanos"], report["other"]["cost_nanos"]) == (21, 7)


async def test_members_see_the_users_of_their_account(operator: Asker) -> None:
    member = await sign_in(operator.gateway, "viewer", 1)
    _, report = await member.ask("/usage?by=user&value=bob")
    assert read_costs(report) == {}
    _, report = await member.ask("/usage?by=user")
    assert read_costs(report) == {"=cmd": 30, "ann": 21, "(unattributed)": 5_000, "(total)": 5_051}


@pytest.mark.parametrize(
    ("query", "param"),
    [("by=tag:", "by"), ("by=tag:a b", "by"), ("by=users", "by"), ("by=user&model=m", "model"),
     ("by=model&value=m", "value"), ("by=tag:team&channel=up", "channel"), ("by=session&status=200", "status")],
)  # fmt: skip
async def test_what_cannot_be_summed_is_refused(operator: Asker, query: str, param: str) -> None:
    status, body = await operator.ask(f"/usage?{query}")
    assert (status, body["error"]["param"]) == (400, param)


async def test_usage_is_exported_as_csv(operator: Asker) -> None:
    async with operator.open("/usage/export?by=user&limit=2") as response:
        assert response.content_type == "text/csv"
        header, *lines = csv.reader(io.StringIO(await response.text()))
    cost = header.index("cost_nanos")
    assert header[:2] == ["line", "user"]
    assert [(*line[:2], line[cost]) for line in lines] == [
        ("value", "bob", "400"),
        ("value", "'=cmd", "30"),
        ("unlisted", "", "21"),
        ("other", "", "0"),
        ("unattributed", "", "5000"),
    ]
    async with operator.open("/usage/export?by=model") as response:
        assert (await response.text()).splitlines()[1].startswith("value,m,")
