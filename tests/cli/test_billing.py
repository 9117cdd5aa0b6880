"""The commands about money, as an operator sees them: credits, usage, the audit."""

import asyncio
import json
import shutil
import signal
import sqlite3
import urllib.error
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gateway.cli.main import main
from gateway.cli.options import Amount
from gateway.cli.output_billing import (
    FORECASTS,
    fill_days,
    find_decimals,
    fit_usage,
    format_bars,
    format_cost,
    list_usage_columns,
)
from gateway.cli.table import fill_columns
from gateway.cli.text import clean, format_usd
from gateway.domain.request_log import RequestRecord
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from tests.support.command_line import Server, run_many, start_server, stop_server
from tests.support.gateway import furnish, make_template
from tests.support.table_rows import table_rows

JANUARY = ["--since", "2026-01-01", "--until", "2026-01-31"]
STEERING = "evil\x1b[31m\r\nmodel"
LONG = "sentence-transformers/all-MiniLM-L6-v2-multilingual-日本語"
USED = [
    # day, model, requests, cost of each in nano-USD
    (10, "big", 3, 2_000_000_000),
    (11, LONG, 1, 1),
    (14, "big", 1, 500_000_000),
    (14, STEERING, 2, 0),
]


def make_row(day: int, model: str, number: int, cost_nanos: int) -> RequestRecord:
    """A call on a day of January 2026, of the key that the first start makes; those at no cost went above a cap."""
    at_ms = int(datetime(2026, 1, day, 12, tzinfo=UTC).timestamp() * 1000)
    return RequestRecord(
        id=f"{day}-{model}-{number}",
        started_ms=at_ms,
        settled_ms=at_ms,
        operation="chat",
        account_id=1,
        account="local",
        key_id=1,
        key_name="first",
        model=model,
        channel="demo",
        status=200,
        outcome="completed",
        error_code=None,
        stream=False,
        attempts=1,
        prompt_tokens=1_000_000,
        completion_tokens=2_000,
        cached_tokens=30,
        usage_source="upstream",
        cost_nanos=cost_nanos,
        reserved_nanos=cost_nanos,
        overrun_nanos=0 if cost_nanos else 7,
        first_byte_ms=1,
        total_ms=2,
    )


async def post(data: Path, rows: list[RequestRecord]) -> None:
    database = await open_database(f"sqlite:///{data / 'gateway.db'}")
    await LedgerRepository(database).post(rows)
    await database.close()


async def prepare(data: Path, template: Path) -> None:
    if not template.exists():
        await make_template(template)
    await furnish(data, template, declared=False)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory, template_path: Path) -> Path:
    """A data folder with an account, a key and what they used in January 2026; to be copied."""
    data = tmp_path_factory.mktemp("used") / "data"
    data.mkdir(mode=0o700)
    asyncio.run(prepare(data, template_path))
    ((code, _, _),) = run_many(data.parent, ["keys", "enable", "1", "--data", str(data)])
    assert code == 0
    asyncio.run(post(data, [make_row(day, model, n, cost) for day, model, count, cost in USED for n in range(count)]))
    return data


@pytest.fixture(scope="module")
def server(used: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("money") / "data"
    shutil.copytree(used, data)
    started = start_server(data)
    yield started
    assert json.loads(started.invoke("audit", "--json").stdout)["ok"]
    assert stop_server(started, signal.SIGTERM) == 0


def table(server: Server, *words: str, width: int = 80) -> list[str]:
    result = server.invoke(*words, env={"COLUMNS": str(width)})
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.splitlines()]


@pytest.mark.slow
def test_a_key_without_money_is_refused_until_it_is_topped_up(server: Server) -> None:
    server.ask("prices", "set", "demo-chat", "--input", "0.1", "--output", "0.4")
    key = server.ask("keys", "create", "--quota-usd", "0")
    number = str(key["id"])
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        server.chat(key["secret"])
    assert json.load(refused.value)["error"]["code"] == "insufficient_quota"
    refused.value.close()
    assert server.invoke("keys", "top-up", number, "0.5").stdout == (
        f"Added $0.50 to the key {number}. $0.50 is left.\n"
    )
    assert "demo-chat" in server.chat(key["secret"])
    shown = server.ask("keys", "show", number)
    assert 0 < shown["spent_usd"] < 0.001
    assert shown["left_usd"] == pytest.approx(0.5 - shown["spent_usd"])
    assert server.ask("keys", "set-balance", number, "0")["left_usd"] == 0
    with pytest.raises(urllib.error.HTTPError, match="403") as refused:
        server.chat(key["secret"])
    refused.value.close()
    assert server.invoke("keys", "delete", number, "--yes").exit_code == 0


@pytest.mark.slow
def test_usage_by_user_has_what_is_beyond_the_lines(server: Server) -> None:
    report = server.ask("usage", "--by", "user", *JANUARY)
    assert (report["by"], report["data"]) == ("user", [])
    assert report["unattributed"]["requests"] == report["total"]["requests"] > 0
    title, _, header, line, total = table(server, "usage", "--by", "tag:team", *JANUARY)
    assert title.startswith("Usage from 2026-01-01")
    assert [text.split()[0] for text in (header, line, total)] == ["TAG", "(unattributed)", "total"]
    assert server.invoke("usage", "--by", "tag:", *JANUARY).exit_code == 1


@pytest.mark.slow
def test_credits_add_up_and_are_listed_newest_first(server: Server) -> None:
    server.ask("accounts", "add", "books", "--quota-usd", "10", "--quota-period", "monthly")
    reset = server.ask("accounts", "show", "books")["resets_at"]
    added = server.invoke("accounts", "top-up", "books", "5.25", "--reference", "invoice-1", "--note", "for May")
    assert added.stdout == f"Added $5.25 to the account books. $15.25 is left until {reset}.\n"
    taken = server.invoke("accounts", "top-up", "books", "-0.25")
    assert taken.stdout == f"Took $0.25 from the account books. $15.00 is left until {reset}.\n"
    words = ["accounts", "top-up", "--data", str(server.data), "--", "books", "-1"]
    assert "$14.00 is left" in CliRunner().invoke(main, words).stdout
    put = server.invoke("accounts", "set-balance", "books", "50", "--reference", "reset")
    assert put.stdout == f"The balance of the account books is set (+$36.00). $50.00 is left until {reset}.\n"
    listed = server.ask("accounts", "credits", "books")["data"]
    assert [(credit["kind"], credit["amount_usd"]) for credit in listed] == [
        ("set", 36), ("top_up", -1), ("top_up", -0.25), ("top_up", 5.25),
    ]  # fmt: skip
    assert server.ask("accounts", "credits", "books", "--limit", "1")["data"] == listed[:1]
    header, *rows = table(server, "accounts", "credits", "books")
    assert header.split() == ["TIME", "KIND", "AMOUNT", "REFERENCE", "NOTE"]
    assert [row.split()[1:3] for row in rows][:2] == [["set", "+$36.00"], ["top-up", "-$1.00"]]
    assert rows[3].endswith("invoice-1  for May")
    server.ask("accounts", "delete", "books", "--yes")


@pytest.mark.slow
def test_a_reference_is_worth_one_credit(server: Server) -> None:
    server.ask("accounts", "add", "payer", "--quota-usd", "1")
    words = ("accounts", "top-up", "payer")
    first = server.ask(*words, "5", "--reference", "r1")
    assert (first["added"], first["kind"], first["amount_usd"], first["left_usd"]) == (True, "top_up", 5, 6)
    again = server.invoke(*words, "5", "--reference", "r1")
    assert again.exit_code == 0
    assert again.stdout.startswith("Nothing changed: the reference 'r1' was used before, for the top-up of +$5.00 at ")
    assert again.stdout.endswith("$6.00 is left.\n")
    other = server.invoke(*words, "7", "--reference", "r1")
    assert (other.exit_code, other.stdout) == (1, "")
    assert "Another credit has the reference 'r1'" in other.stderr
    assert server.ask("accounts", "show", "payer")["left_usd"] == 6
    server.ask("accounts", "delete", "payer", "--yes")


@pytest.mark.slow
def test_what_cannot_be_credited_is_refused_and_changes_nothing(server: Server) -> None:
    for words, code, message in (
        (("accounts", "top-up", "nobody", "5"), 1, "No account is called 'nobody'"),
        (("keys", "top-up", "999", "5"), 1, "No key has the id 999"),
        (("keys", "set-balance", "1", "5"), 1, "There is no quota to add to"),
        (("accounts", "credits", "nobody"), 1, "No account is called 'nobody'"),
        (("accounts", "top-up", "local", "99999999999"), 1, "amount_usd: expected an amount"),
        (("accounts", "top-up", "local", "five"), 2, "'five' is not an amount in dollars"),
        (("accounts", "top-up", "local", "nan"), 2, "'nan' is not an amount in dollars"),
        (("accounts", "top-up", "local", "0.10000000000000000001"), 2, "too many digits"),
        (("accounts", "top-up", "local", "5", "--refrence", "r"), 2, "--refrence"),
        (("accounts", "top-up", "local"), 2, "Missing argument 'USD'"),
    ):
        result = server.invoke(*words)
        assert (result.exit_code, result.stdout) == (code, ""), words
        assert message in result.stderr, words
    assert server.ask("accounts", "credits", "local")["data"] == []


@pytest.mark.slow
def test_usage_by_day_has_a_bar_a_row_and_shows_the_days_between(server: Server) -> None:
    title, _, header, *rows = table(server, "usage", *JANUARY)
    assert title == "Usage from 2026-01-01 to 2026-01-31 (UTC)"
    assert header.split() == ["DAY", "REQUESTS", "IN", "OUT", "CACHED", "COST"]
    assert [row.split()[:6] for row in rows] == [
        ["2026-01-10", "3", "3,000,000", "6,000", "90", "$6.0000"],
        ["2026-01-11", "1", "1,000,000", "2,000", "30", "<$0.0001"],
        ["2026-01-12", "0", "0", "0", "0", "$0.0000"],
        ["2026-01-13", "0", "0", "0", "0", "$0.0000"],
        ["2026-01-14", "3", "3,000,000", "6,000", "90", "$0.5000"],
        ["total", "7", "7,000,000", "14,000", "210", "$6.5000"],
    ]
    assert [len(row.split()) for row in rows] == [7, 7, 6, 6, 7, 6]
    assert rows[0].split()[6] == "█" * (80 - cell_len(rows[0].rstrip("█")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "width", "columns", "bar"),
    [
        ("day", 26, "COST", 0),
        ("day", 32, "COST", 10),
        ("day", 40, "REQUESTS COST", 8),
        ("day", 60, "REQUESTS IN OUT COST", 9),
        ("day", 200, "REQUESTS IN OUT CACHED COST", 30),
        ("key", 80, "REQUESTS IN OUT CACHED COST", 23),
        ("account", 40, "REQUESTS COST", 14),
        ("model", 30, "COST", 0),
        ("model", 60, "REQUESTS COST", 6),
        ("model", 80, "REQUESTS IN OUT CACHED COST", 6),
        ("model", 120, "REQUESTS IN OUT CACHED COST", 13),
    ],
)
def test_usage_fits_the_terminal_and_cannot_steer_it(
    server: Server, by: str, width: int, columns: str, bar: int
) -> None:
    lines = table(server, "usage", "--by", by, *JANUARY, width=width)[2:]
    assert lines[0].split() == [by.upper(), *columns.split()]
    assert lines[1].count("█") == bar
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert "$6.50" in lines[-1]


@pytest.mark.slow
def test_bars_are_of_signs_where_there_are_no_blocks(server: Server) -> None:
    words = ["usage", *JANUARY, "--data", str(server.data)]
    result = CliRunner(charset="ascii").invoke(main, words, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "######" in result.stdout


@pytest.mark.slow
def test_usage_is_by_what_was_asked_the_highest_cost_first(server: Server) -> None:
    assert [line["model"] for line in server.ask("usage", "--by", "model", *JANUARY)["data"]] == ["big", LONG, STEERING]
    assert [line["key"] for line in server.ask("usage", "--by", "key", *JANUARY)["data"]] == ["local/first"]
    only = server.ask("usage", *JANUARY, "--model", "big", "--key", "1", "--account", "local")
    assert [(line["day"], line["cost_nanos"]) for line in only["data"]] == [
        ("2026-01-10", 6_000_000_000),
        ("2026-01-14", 500_000_000),
    ]
    assert only["total"] == {
        "requests": 4,
        "prompt_tokens": 4_000_000,
        "completion_tokens": 8_000,
        "cached_tokens": 120,
        "cost_nanos": 6_500_000_000,
        "cost_usd": 6.5,
        "saved_nanos": 0,
        "saved_usd": 0.0,
        "failed": 0,
        "total_ms": 8,
    }
    last = server.ask("usage", "--days", "4", "--until", "2026-01-14")
    assert (last["since"], [line["day"] for line in last["data"]]) == ("2026-01-11", ["2026-01-11", "2026-01-14"])
    assert server.ask("usage", *JANUARY, "--key", "999")["data"] == []


@pytest.mark.slow
def test_usage_that_cannot_be_is_told_apart_from_none(server: Server) -> None:
    for words, code, message in (
        (("--since", "lately"), 2, "'lately' is neither a date such as 2027-01-31"),
        (("--until", "2026-02-30"), 2, "'2026-02-30' is neither a date"),
        (("--days", "0"), 2, "--days"),
        (("--days", "3", "--since", "2026-01-01"), 2, "either --days or --since"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), 2, "--since is after --until"),
        (("--by", "week"), 2, "--by"),
        (("--since", "tomorrow"), 2, "--since is in the future"),
        (("--account", "nobody"), 1, "No account is called 'nobody'"),
        (("--forecast", "--days", "3"), 2, "--forecast goes with --account and --key only"),
        (("--forecast", "--model", "big"), 2, "--forecast goes with --account and --key only"),
        (("--forecast", "--account", "nobody"), 1, "No account is called 'nobody'"),
        (("--until", "2025-01-01"), 0, "No usage from 2024-12-03 to 2025-01-01 (UTC)."),
    ):
        result = server.invoke("usage", *words)
        assert (result.exit_code, result.stdout) == (code, ""), words
        assert message in result.stderr, words


@pytest.mark.slow
def test_a_forecast_says_when_a_quota_is_reached_and_by_what(server: Server) -> None:
    assert "No key or account with a quota." in server.invoke("usage", "--forecast").output
    key = server.ask("keys", "create", "--name", "forecast", "--quota-usd", "3", "--quota-period", "daily")
    spent = server.ask("keys", "create", "--name", "spent", "--quota-usd", "0")
    header, *rows = table(server, "usage", "--forecast", width=120)
    assert header.split() == ["QUOTA", "OF", "SPENT", "LIMIT", "UNTIL", "EXPECTED", "REACHED", "BY"]
    assert [row.split("  ")[0] for row in rows] == ["key local/spent", "key local/forecast"]
    assert "used up" in rows[0]
    assert "not in this period  this period" in rows[1]
    (line,) = server.ask("usage", "--forecast", "--key", str(key["id"]))["data"]
    assert (line["name"], line["spent_usd"], line["limit_usd"], line["reached_at"]) == ("local/forecast", 0, 3, None)
    for number in (key["id"], spent["id"]):
        assert server.invoke("keys", "delete", str(number), "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ({"reached_at": "2026-12-14T09:30:00Z", "ends_at": None}, "2026-12-14 09:30"),
        ({"reached_at": None, "ends_at": None}, "not within a year"),
        ({"reached_at": None, "ends_at": "2027-01-01T00:00:00Z"}, "not in this period"),
        ({"spent_usd": 5.0, "reached_at": "2026-12-14T09:30:00Z"}, "used up"),
    ],
)
def test_a_forecast_is_a_time_or_words(line: dict[str, Any], shown: str) -> None:
    (reached,) = [column for column in FORECASTS if column.title == "REACHED"]
    assert reached.read({"spent_usd": 1.0, "limit_usd": 5.0, **line}) == shown


@pytest.mark.slow
def test_what_is_spent_and_left_stands_beside_the_quota(server: Server) -> None:
    header, row = table(server, "accounts")
    assert header.split() == ["NAME", "STATUS", "SPENT", "MADE"]
    assert row.split()[2].startswith("$6.5")
    made = server.ask("accounts", "add", "bound", "--quota-usd", "2.5", "--quota-status", "429")
    assert (made["quota_status"], made["left_usd"]) == (429, 2.5)
    assert server.ask("accounts", "edit", "bound", "--quota-status", "none")["quota_status"] is None
    header, first, second = table(server, "accounts")
    assert header.split() == ["NAME", "STATUS", "QUOTA", "SPENT", "LEFT", "MADE"]
    assert {first.split()[0]: first.split()[2:], second.split()[0]: second.split()[2:]}["bound"] == [
        "$2.50", "lifetime", "$0.00", "$2.50", "here",
    ]  # fmt: skip
    shown = dict(line.split("  ", 1) for line in table(server, "accounts", "show", "bound"))
    names = ("quota", "spent", "credit", "held", "left", "overrun", "resets at")
    assert [shown[name].strip() for name in names] == ["$2.50", "$0.00", "$0.00", "$0.00", "$2.50", "$0.00", "-"]
    server.ask("accounts", "delete", "bound", "--yes")


@pytest.mark.slow
def test_a_cost_above_a_quota_is_marked(server: Server) -> None:
    words = ("requests", "--limit", "100")
    assert [line.count("!") for line in table(server, *words, "--model", STEERING) if "$" in line] == [1, 1]
    assert not any("!" in line for line in table(server, *words, "--model", "big"))


@pytest.mark.slow
def test_books_that_agree_say_what_they_hold(server: Server) -> None:
    lines = table(server, "audit")
    assert lines[0] == "The ledger is correct: every balance is the sum of its entries."
    assert [line.split()[0] for line in lines[2:]] == ["balances", "charged", "reserved", "by", "not"]
    report = server.ask("audit")
    assert report["ok"]
    assert report["charged_nanos"] >= 6_500_000_001
    assert report["problems"] == []


@pytest.mark.slow
def test_without_a_gateway_money_is_moved_shown_and_audited_too(used: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(used, data)
    words = [
        ["accounts", "edit", "local", "--quota-usd", "20", "--json"],
        ["accounts", "top-up", "local", "-3", "--reference", "r", "--json"],
        ["accounts", "top-up", "local", "-3", "--reference", "r", "--json"],
        ["accounts", "credits", "local", "--json"],
        ["usage", "--by", "model", *JANUARY, "--json"],
        ["usage", *JANUARY],
        ["audit", "--json"],
    ]
    done = run_many(tmp_path, *([*command, "--data", str(data)] for command in words))
    assert [(code, err) for code, _, err in done] == [(0, "")] * len(words)
    edited, credited, again, credits_, usage, shown, audit = (out for _, out, _ in done)
    assert json.loads(edited)["left_usd"] == 20 - 6.500000001
    assert (json.loads(credited)["added"], json.loads(again)["added"]) == (True, False)
    assert json.loads(again)["left_usd"] == 17 - 6.500000001
    assert [credit["reference"] for credit in json.loads(credits_)["data"]] == ["r"]
    assert json.loads(usage)["total"]["cost_nanos"] == 6_500_000_001
    assert "2026-01-12" in shown
    assert json.loads(audit)["ok"]


@pytest.mark.slow
def test_books_that_do_not_agree_are_told_and_exit_with_1(used: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(used, data)
    with sqlite3.connect(data / "gateway.db") as database:
        database.execute("UPDATE entries SET amount_nanos = amount_nanos + 5 WHERE request_id = '10-big-0'")
    database.close()
    words = ["audit", "--data", str(data)]
    ((code, reported, _), (json_code, report, _)) = run_many(tmp_path, words, [*words, "--json"])
    assert (code, json_code) == (1, 1)
    assert reported.startswith(
        "The ledger does not match:\n\n  key 1: 6500000006 charged in entries, 6500000001 in the"
    )
    assert json.loads(report)["ok"] is False
    assert len(json.loads(report)["problems"]) == 1


LINES = st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**6)), min_size=1, max_size=8)


@given(LINES, st.integers(1, 60), st.booleans())
def test_bars_are_as_long_as_their_share_and_never_longer_than_the_room(
    amounts: list[tuple[int, int]], width: int, plain: bool
) -> None:
    lines = [{"cost_nanos": cost, "requests": requests} for cost, requests in amounts]
    bars = format_bars(lines, width, as_text=plain)
    values = [cost for cost, _ in amounts] if any(cost for cost, _ in amounts) else [count for _, count in amounts]
    assert [bool(bar) for bar in bars] == [value > 0 for value in values]
    assert all(cell_len(bar) <= width for bar in bars)
    full = ("#" if plain else "█") * width
    assert all((bar == full) for bar, value in zip(bars, values, strict=True) if value == max(values))
    ordered = sorted(zip(values, map(cell_len, bars), strict=True))
    assert [length for _, length in ordered] == sorted(length for _, length in ordered)
    for bar, value in zip(bars, values, strict=True):
        assert abs(cell_len(bar) - width * value / max(values)) <= 1


@given(st.text(min_size=1, max_size=60), st.integers(0, 10**15), st.integers(26, 250))
def test_columns_and_bars_fit_whatever_is_counted(label: str, count: int, width: int) -> None:
    line = {"requests": count, "prompt_tokens": count, "completion_tokens": 0, "cached_tokens": count}
    lines = [{"model": name, "cost_usd": 0.0001, **line} for name in (label, "total")]
    cached = f"{count:,} (100%)" if count else "0"
    numbers = {"REQUESTS": f"{count:,}", "IN": f"{count:,}", "OUT": "0", "CACHED": cached, "COST": "$0.0001"}
    filled, bar = fit_usage(fill_columns(list_usage_columns("model", 4), lines), width)
    columns = [one.column.title for one in filled]
    assert columns[0] == "MODEL"
    assert columns[-1] == "COST"
    least = min(24, max(5, cell_len(clean(label))))
    if bar:
        taken = sum(max(len(name), len(numbers[name])) for name in columns[1:]) + 2 * len(columns)
        assert 6 <= bar <= 30
        assert width - taken - bar >= least
    else:
        assert columns == ["MODEL", "COST"]
        assert width < least + 6 + len("$0.0001") + 2 * 2


@pytest.mark.parametrize(
    ("cached", "saved", "cells"),
    [(80, 1.5, ["80 (80%)", "$1.5000"]), (0, -0.00001, ["0", "-<$0.0001"]), (0, -2.0, ["0", "-$2.0000"])],
)
def test_what_caches_saved_has_a_column(cached: int, saved: float, cells: list[str]) -> None:
    line = {"day": "2026-01-31", "requests": 1, "prompt_tokens": 100, "completion_tokens": 0, "cost_usd": 1.0}
    filled = fill_columns(
        list_usage_columns("day", 4, saves=True), [{**line, "cached_tokens": cached, "saved_usd": saved}]
    )
    assert [column.column.title for column in filled][-3:] == ["CACHED", "SAVED", "COST"]
    assert [column.cells[0] for column in filled][-3:-1] == cells


@given(st.sets(st.integers(0, 90), min_size=1))
def test_every_day_from_the_first_to_the_last_has_one_line(numbers: set[int]) -> None:
    start = date(2026, 1, 31)
    used = {(start + timedelta(days=number)).isoformat(): number for number in sorted(numbers)}
    filled = list(fill_days([{"day": day, "requests": 1, "number": number} for day, number in used.items()]))
    span = range(min(numbers), max(numbers) + 1)
    assert [line["day"] for line in filled] == [(start + timedelta(days=number)).isoformat() for number in span]
    assert [line["day"] for line in filled if line["requests"]] == list(used)


@table_rows(
    ("amount", "total", "text"),
    [
        (0.0, 0.0, "$0.00"),
        (0.0, 5.0, "$0.00"),
        (1234.5, 2000.0, "$1,234.50"),
        (0.00009, 5.0, "<$0.0001"),
        (0.0001, 5.0, "$0.0001"),
        (0.0125, 0.5, "$0.0125"),
        (0.0000005, 0.5, "<$0.000001"),
        (0.000000001, 0.0001, "$0.000000001"),
        (0.00000525, 0.00000525, "$0.00000525"),
    ],
)
def test_costs_of_a_table_have_the_decimals_that_they_need(amount: float, total: float, text: str) -> None:
    assert format_cost(amount, find_decimals([amount, total])) == text


@given(st.decimals(Decimal(-900_000), Decimal(900_000), places=9))
def test_an_amount_reaches_the_gateway_as_it_was_written(amount: Decimal) -> None:
    sent = Amount().convert(str(amount), None, None)
    assert Decimal(str(json.loads(json.dumps(sent)))) == amount


@given(st.text())
def test_what_is_no_amount_is_never_taken_for_one(text: str) -> None:
    try:
        sent: Any = Amount().convert(text, None, None)
    except click.BadParameter:
        return
    assert Decimal(text) == Decimal(repr(sent))


def test_an_amount_below_zero_has_its_sign_in_front() -> None:
    assert format_usd(-0.25) == "-$0.25"
    assert format_usd(-1234.56789) == "-$1,234.5679"
