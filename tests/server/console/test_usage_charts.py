"""Charts agree: every number of a page is what the rows say that its link opens. A reader walks through all links."""

import html
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import attrs
import pytest
import pytest_asyncio

from gateway.domain.request_log import Outcome, RequestRecord, has_failed
from gateway.domain.speed import MAX_ERROR
from gateway.domain.traffic import HOUR_MS
from gateway.server.console.filters import format_count, format_usd
from gateway.server.console.request_sums import find_since
from gateway.server.context import SERVICES
from gateway.storage.ledger import LedgerRepository
from gateway.storage.traffic_minutes import RowSeriesReader
from gateway.storage.usage_splits import SplitRepository
from tests.support.console_people import Person, invite, make_administrator
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.request_records import make_row, read_ms
from tests.support.started_gateways import StartGateway, starting

NOW_S = datetime(2026, 11, 30, 12, 20, tzinfo=UTC).timestamp()
CONFIG: dict[str, Any] = {
    "account": [{"name": "acme"}, {"name": "north co"}],
    "key": [
        {"name": "app", "account": "acme", "secret": KEY},
        {"name": "batch", "account": "acme", "secret": f"{KEY}1"},
        {"name": "other", "account": "north co", "secret": f"{KEY}2"},
    ],
    "channel": [channel("http://127.0.0.1:9/v1", models=["*"]), channel("http://127.0.0.1:9/v1", "spare")],
}
FAULTS: list[tuple[Outcome, str | None, int, bool]] = [
    ("failed", "upstream_error", 502, True), ("failed", "upstream_timeout", 504, True),
    ("refused", "rate_limit_exceeded", 429, False), ("refused", None, 400, True), ("interrupted", None, 500, True),
    ("blocked", "content_filter", 400, True), ("refused", "insufficient_quota", 429, False),
    ("refused", "invalid_request", 400, False),
]  # fmt: skip
MODELS = ["m", "a & b", "org/large", "small", "tiny", "mini", '"quoted"']
PAGES = {
    "": "everything",
    "?span=24h": "hours",
    "?span=30d&group=key": "keys",
    "?span=90d&group=status": "statuses",
    "?group=account&account=acme": "an account",
    "?since=2026-11-28T03:00:00Z&until=2026-11-29T09:00:00Z&group=channel": "a part, by hour",
    "?since=2026-11-20&until=2026-11-27": "days of last week",
    "?span=1h&group=key": "minutes",
    "?span=3h": "steps of five minutes",
    "?since=2026-11-30T09:40:00Z&until=2026-11-30T10:20:00Z": "forty minutes",
    "/usage?end_user=u1&span=30d": "an end user",
    "/usage?end_user=u%20%26%203&span=24h&group=account": "hours of an end user",
    "/usage?tag=team%3Da%20%26%20b&span=90d&group=account": "a tag",
    "/usage?tag=team%3Dc&since=2026-11-30T07:10:00Z&until=2026-11-30T12:05:00Z": "minutes of a tag",
    "/models/m?since=2026-11-30T08:00:00Z&until=2026-11-30T09:20:00Z": "a model, by minute",
    "/keys/1?span=30d": "a key",
    "/channels/up?span=30d": "a channel",
    "/accounts/north%20co?span=30d": "another account",
}


def make_rows(count: int = 300) -> list[RequestRecord]:
    """Rows of three months, as many on the last day as before; the same ones each time."""
    rng = random.Random(11)  # noqa: S311 - no secret
    rows = []
    for number in range(count):
        hours = 30 if number % 2 else 80 * 24
        settled_ms = int(NOW_S * 1000) - int(rng.random() * hours * HOUR_MS)
        fault = FAULTS[number % len(FAULTS)] if number % 5 == 0 else None
        key = rng.choice((1, 1, 2, 3))
        total_ms = int(rng.lognormvariate(7, 1))
        row = make_row(
            f"r{number}",
            settled_ms=settled_ms,
            account_id=2 if key == 3 else 1,
            account="north co" if key == 3 else "acme",
            key_id=key,
            key_name=("app", "batch", "other")[key - 1],
            model=MODELS[min(int(rng.expovariate(0.5)), len(MODELS) - 1)],
            channel=rng.choice(("up", "spare")),
            outcome="completed",
            status=200,
            error_code=None,
            attempts=1,
            stream=number % 3 > 0,
            total_ms=total_ms,
            first_byte_ms=total_ms // 3,
            prompt_tokens=rng.randrange(5_000),
            completion_tokens=rng.randrange(900),
            cached_tokens=0,
            cost_nanos=rng.randrange(10**8),
            saved_nanos=rng.randrange(10**6),
            end_user=("", "u1", "", "u & 3")[number % 4],
            session="",
            tags=("team=a & b", "team=c,b=1", "")[number % 3],
            limit_charges="",
        )
        row = attrs.evolve(row, cached_tokens=row.prompt_tokens // 3)
        if fault is not None:
            outcome, code, status, is_sent = fault
            row = attrs.evolve(
                row, outcome=outcome, error_code=code, status=status, cost_nanos=0, saved_nanos=0,
                attempts=int(is_sent), channel=row.channel if is_sent else None,
            )  # fmt: skip
        rows.append(row)
    return sorted(rows, key=lambda row: row.settled_ms)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def people(tmp_path_factory: pytest.TempPathFactory, template_path: Path) -> AsyncIterator[dict[str, Person]]:
    """Two members of one gateway for all tests: these only read, and to add up its rows takes longer than most."""
    folder = tmp_path_factory.mktemp("charts")
    async with starting(folder, template_path) as start, open_people(start) as found:
        yield found


@asynccontextmanager
async def open_people(start: StartGateway, rows: int = 300) -> AsyncIterator[dict[str, Person]]:
    gateway: RunningGateway = await start(CONFIG, clock=lambda: NOW_S)
    gateway.audited = False  # the rows are charged to balances that are in memory already
    database = gateway.app[SERVICES].storage.database
    await LedgerRepository(database).post(make_rows(rows))
    splits = SplitRepository(database)
    while await splits.look_at_new_rows() or await splits.add_day(NOW_S):
        pass
    async with AsyncExitStack() as stack:
        ada = await make_administrator(gateway)
        found = {"ada": ada, "ben": await invite(ada, "ben", "member", "acme")}
        for person in found.values():
            stack.push_async_callback(person.session.close)
        yield found


@attrs.define
class Walker:
    """Follows links to the request list, and reads the rows there."""

    person: Person
    seen: dict[str, list[dict[str, Any]]] = attrs.field(factory=dict)

    async def rows(self, href: str) -> list[dict[str, Any]]:
        query = dict(parse_qsl(html.unescape(href).partition("?")[2], strict_parsing=True))
        if period := query.pop("last", ""):
            query["since"] = find_since(period, NOW_S) or ""
        text = urlencode(query)
        if text not in self.seen:
            status, answer = await self.person.call("GET", f"/requests?limit=1000&{text}")
            assert status == 200, answer
            assert not answer["more"]
            self.seen[text] = answer["data"]
        return self.seen[text]


def add(rows: Sequence[dict[str, Any]], *names: str) -> int:
    return sum(int(row[name]) for row in rows for name in names)


def count_failed(rows: Sequence[dict[str, Any]]) -> int:
    return sum(row["outcome"] not in {"completed", "client_closed", "cancelled"} for row in rows)


SUMS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "spend": lambda rows: format_usd(add(rows, "cost_nanos") / 1e9),
    "requests": lambda rows: format_count(len(rows)),
    "errors": lambda rows: format_count(count_failed(rows)),
    "Input": lambda rows: format_count(add(rows, "prompt_tokens") - add(rows, "cached_tokens")),
    "Cached input": lambda rows: format_count(add(rows, "cached_tokens")),
    "Output": lambda rows: format_count(add(rows, "completion_tokens")),
    "Spent": lambda rows: format_usd(add(rows, "cost_nanos") / 1e9),
    "Requests": lambda rows: format_count(len(rows)),
    "Failed": lambda rows: format_count(count_failed(rows)),
    "Tokens": lambda rows: format_count(add(rows, "prompt_tokens", "completion_tokens")),
    "Saved by caches": lambda rows: format_usd(add(rows, "saved_nanos") / 1e9),
}
MEASURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "latency_ms": lambda row: row["total_ms"],
    "first_byte_ms": lambda row: row["first_byte_ms"] if row["stream"] else None,
    "tokens_per_s": lambda row: (
        row["completion_tokens"] * 1000 / (row["total_ms"] - row["first_byte_ms"])
        if row["stream"] and row["completion_tokens"]
        else None
    ),
}


def find_exact(rows: Sequence[dict[str, Any]], measure: str, percent: int) -> float | None:
    values = sorted(value for row in rows if (value := MEASURES[measure](row)) is not None)
    return values[-(-len(values) * percent // 100) - 1] if values else None


def read_number(text: str) -> float | None:
    """What a written duration or rate says, in milliseconds or tokens per second."""
    if text == "\N{EN DASH}":
        return None
    units = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "k": 1_000, "": 1}
    return sum(
        float(number.replace(",", "")) * units[unit] for number, unit in re.findall(r"([\d.,]+) ?(ms|s|min|h|k|)", text)
    )


def check_percentile(text: str, rows: Sequence[dict[str, Any]], measure: str, percent: int) -> None:
    exact, shown = find_exact(rows, measure, percent), read_number(text)
    if exact is None or shown is None:
        assert exact is shown is None
    else:
        assert shown == pytest.approx(exact, rel=MAX_ERROR + 0.06, abs=1)  # and how it is rounded


def list_legends(page: str) -> Iterator[tuple[str, int, str, str, str]]:
    """The chart, the column, the name, the link and the number of each series."""
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        chart, first = re.search(r'data-chart="(\w+)" data-first="(\d+)"', figure).groups()  # type: ignore[union-attr]
        for offset, entry in enumerate(re.findall(r"<li>.*?</li>", figure, re.DOTALL)):
            name, number = re.search(r'class="cut"[^>]*>(.*?)</(?:a|span)> <strong>(.*?)</strong>', entry).groups()  # type: ignore[union-attr]
            link = re.search(r'href="(.*?)"', entry)
            yield chart, int(first) + offset, html.unescape(name), link[1] if link else "", html.unescape(number)


def list_columns(page: str) -> list[tuple[str, list[str]]]:
    """The link and the numbers of each bucket of the table below the charts."""
    body = page.partition('id="chart-numbers"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    lines = [line for line in body.split("<tr>") if line.strip()]
    cells = [[html.unescape(cell.strip()) for cell in re.split("<td>", line)[1:]] for line in lines]
    return [(re.search(r'href="(.*?)"', line)[1], numbers) for line, numbers in zip(lines, cells, strict=True)]  # type: ignore[index]


@cache
def find_bucket(href: str) -> tuple[str, str]:
    """The bounds to which a link leads; many rows are compared with the same ones."""
    query = dict(parse_qsl(html.unescape(href).partition("?")[2]))
    return query["since"], query["until"]


def is_within(row: dict[str, Any], href: str) -> bool:
    """Whether a row is one of the bucket to which a link leads."""
    since, until = find_bucket(href)
    settled = row["settled_at"]
    return bool(since <= settled < until if len(until) > len("2026-11-30") else settled[:10] == since)


PERCENTS = {"Median": 50, "p95": 95, "p99": 99}


def check_number(chart: str, name: str, text: str, rows: list[dict[str, Any]]) -> None:
    if chart in MEASURES:
        check_percentile(text, rows, chart, PERCENTS[name])
    else:
        assert text == SUMS[name if chart == "tokens" else chart](rows), (chart, name)


async def check_headlines(walker: Walker, page: str) -> int:
    checked = 0
    for label, href, number in re.findall(
        r'<span class="label">([^<]*)</span><span class="value"><a href="(/console/requests[^"]*)">([^<]*)</a>', page
    ):
        if label in SUMS:
            assert html.unescape(number) == SUMS[label](await walker.rows(href)), label
            checked += 1
    for href, before in re.findall(r'class="change" href="(.*?)" title="(.*?) in the previous period"', page):
        rows = await walker.rows(href)
        assert before in {SUMS[name](rows) for name in ("Spent", "Requests", "Failed", "Tokens", "Saved by caches")}
        checked += 1
    return checked


async def check_charts(walker: Walker, page: str) -> int:
    """Check the number of each series and of each of its buckets; of three buckets, by their own links."""
    checked, columns = 0, list_columns(page)
    for chart, column, name, href, number in list_legends(page):
        if not href:
            continue
        rows = await walker.rows(href)
        check_number(chart, name, number, rows)
        for row_href, numbers in columns:
            check_number(chart, name, numbers[column], [row for row in rows if is_within(row, row_href)])
            checked += 1
        if chart == "tokens":
            for row_href, numbers in columns[:: max(1, len(columns) // 3)]:
                check_number(chart, name, numbers[column], await walker.rows(row_href))
    return checked


_LINE = re.compile(
    r'<tr><th scope="row"><a class="cut" href="([^"]*)".*?<td class="number">([\d,]+)</td>.*?'
    r'<td class="number">([^<]*)</td></tr>',
    re.DOTALL,
)


async def check_tables(walker: Walker, page: str) -> int:
    checked = 0
    for title in ("Models", "Keys", "Channels", "End users"):
        table = page.partition(f"<h2>{title}</h2>")[2].partition("</table>")[0]
        for href, requests, cost in _LINE.findall(table):
            rows = await walker.rows(href)
            assert (requests, html.unescape(cost)) == (SUMS["requests"](rows), SUMS["spend"](rows)), href
            checked += 1
    return checked


async def walk(person: Person, path: str) -> int:
    """Follow the links of a page; return the number of numbers that were checked."""
    status, page = await person.open(path)
    assert status == 200
    walker = Walker(person)
    checked = await check_headlines(walker, page) + await check_charts(walker, page)
    return checked + (await check_tables(walker, page) if path[:1] in {"", "?"} else 0)


@pytest.mark.slow
async def test_every_number_is_the_sum_of_the_rows_that_its_link_opens(
    people: dict[str, Person], subtests: pytest.Subtests
) -> None:
    for path, name in PAGES.items():
        with subtests.test(name):
            assert await walk(people["ada"], path) > 60


async def test_a_period_of_too_many_rows_is_widened_with_its_links(
    people: dict[str, Person], monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """An end user or tag with few of very many rows is not widened."""
    user, tag = "/usage?end_user=u1&span=24h&group=account", "/usage?tag=team%3Dc&span=24h&group=account"
    widened = [("?span=1h&group=key", 3, "whole hours from 2026-11-30 11:00"), (user, 3, "whole days from 2026-11-29")]
    for path, max_rows, words in (*widened, (user, 70, ""), (tag, 70, "")):
        with subtests.test(path, max_rows=max_rows):
            limited_reader = partial(RowSeriesReader, max_rows=max_rows)
            monkeypatch.setattr("gateway.server.admin.charts.RowSeriesReader", limited_reader)
            _, page = await people["ada"].open(path)
            assert ("last=" in page.partition('class="stats headlines"')[2]) == (not words)
            assert words in re.sub("<[^>]*>", "", page)
            assert ("The numbers cover whole" in page) == bool(words)
            span = path.partition("span=")[2].partition("&")[0]
            assert f'<option value="{span}" selected>' in page
            assert await walk(people["ada"], path) > 10


async def test_days_of_an_end_user_or_tag_have_causes_durations_and_a_change(
    people: dict[str, Person], monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """They come from the rows. Without these the page says what is missing, and compares no day with a part of one."""
    rows = make_rows()
    cases = {
        "end_user=u1": [row for row in rows if row.end_user == "u1"],
        "tag=team%3Dc": [row for row in rows if "team=c" in row.tags],
    }
    compared_rows = 0
    for query, own in cases.items():
        with subtests.test(query):
            _, answer = await people["ada"].call("GET", f"/usage/charts?{query}&group=account&since=2026-11-24")
            since_ms, now_ms = read_ms("2026-11-24 00:00"), int(NOW_S * 1000)
            shown = [row for row in own if row.settled_ms >= since_ms]
            completed = [row for row in shown if row.outcome == "completed"]
            assert answer["step"] == "day"
            assert answer["speed"]["requests"] == len(completed)
            assert sum(bucket["speed"]["requests"] for bucket in answer["buckets"] if bucket["speed"]) == len(completed)
            failed = [row for row in shown if has_failed(row)]
            assert sum(cause["requests"] for cause in answer["causes"]) == answer["total"]["failed"] == len(failed) > 0
            week_ms = 7 * 24 * HOUR_MS
            until_ms = (now_ms // HOUR_MS + 1) * HOUR_MS - week_ms
            before = [row for row in own if since_ms - week_ms <= row.settled_ms < until_ms]
            assert answer["before"]["requests"] == len(before)
            compared_rows += len(before)
            assert answer["before"]["cost_nanos"] == sum(row.cost_nanos for row in before)
    assert compared_rows > 0
    monkeypatch.setattr("gateway.server.admin.charts.RowSeriesReader", partial(RowSeriesReader, max_rows=-1))
    _, answer = await people["ada"].call("GET", "/usage/charts?end_user=u1&group=account&since=2026-11-24")
    assert (answer["speed"], answer["causes"], answer["before"]["requests"]) == (None, [], 0)
    assert "Errors are not shown by cause" in (await people["ada"].open("/usage?end_user=u1&span=7d"))[1]


async def test_a_member_s_numbers_are_those_of_its_account(people: dict[str, Person]) -> None:
    for path in ("?span=30d&group=account", "?account=north%20co&group=channel", "/keys/1?span=30d"):
        assert await walk(people["ben"], path) > 60
        _, page = await people["ben"].open(path)
        assert "north" not in page
        assert "spare" not in page
    status, _ = await people["ben"].call("GET", "/usage/charts?group=account")
    assert status == 403
    status, _ = await people["ben"].call("GET", "/usage/charts?channel=up")
    assert status == 403
    _, answer = await people["ben"].call("GET", "/usage/charts?key=3")
    assert (answer["total"]["requests"], answer["speed"], answer["causes"]) == (0, None, [])


async def test_a_deleted_account_has_no_link(tmp_path: Path, template_path: Path) -> None:
    """There is no page of it, and the list of requests finds accounts by their names."""
    async with starting(tmp_path, template_path) as start, open_people(start, rows=0) as people:
        ada = people["ada"]
        _, made = await ada.call("POST", "/accounts", {"name": "gone"})
        row = attrs.evolve(make_rows(1)[0], account_id=made["id"], account="gone", model="m", id="of-gone")
        row = attrs.evolve(row, outcome="completed", status=200, error_code=None, cost_nanos=10**9)
        row = attrs.evolve(row, settled_ms=int(NOW_S * 1000) - HOUR_MS)
        await LedgerRepository(ada.gateway.app[SERVICES].storage.database).post([row])
        assert (await ada.call("DELETE", "/accounts/gone"))[0] == 200
        for path in ("?span=24h&group=account", "/models/m?span=24h"):
            _, page = await ada.open(path)
            assert f"{made['id']} (deleted)" in page
            assert not re.search(r'(href|data-open)="[^"]*deleted', page)


async def test_a_page_stays_light(people: dict[str, Person]) -> None:
    for path in ("?span=90d", "?span=1h", "?since=2026-11-27T12:00:00Z&until=2026-11-30T12:00:00Z"):
        _, page = await people["ada"].open(path)
        assert len(page.encode()) < 80_000


PERIODS = {
    "since=2026-11-30&until=2026-11-29": 400,
    "step=week": 400,
    "group=user": 400,
    "step=hour&since=2026-01-01": 400,
    "since=1980-01-01": 400,
    "since=yesterday": 400,
    "account=nobody": 404,
    "step=hour&since=2026-11-30T01:30:00Z&until=2026-11-30T03:00:00Z": 200,
    "step=minute&since=2026-11-29": 400,
    "end_user=": 400,
    "tag=team": 400,
    "end_user=u1&group=model": 400,
    "end_user=u1&group=key&model=m": 400,
    "tag=team%3Dc&step=hour&group=model&since=2026-11-30": 200,
}


async def test_a_period_that_cannot_be_shown_is_refused(people: dict[str, Person], subtests: pytest.Subtests) -> None:
    for query, status in PERIODS.items():
        with subtests.test(query):
            answered, answer = await people["ada"].call("GET", f"/usage/charts?{query}")
            assert answered == status
            if status == 200 and query.startswith("step=hour"):
                assert (answer["since"], answer["until"]) == ("2026-11-30T01:00:00Z", "2026-11-30T03:00:00Z")
                assert [bucket["start"][11:13] for bucket in answer["buckets"]] == ["01", "02"]


async def test_an_address_that_names_no_period_shows_the_last_seven_days(people: dict[str, Person]) -> None:
    for path in ("?since=yesterday&until=x", "?span=1000y", "?since=2026-11-30&until=2026-11-01", "?group=zebra"):
        _, page = await people["ada"].open(path)
        assert '<option value="7d" selected>' in page


async def test_failures_of_one_cause_are_found_by_its_exact_code(people: dict[str, Person]) -> None:
    rows = [row for row in make_rows() if has_failed(row)]
    for code in ("upstream_error", "upstream", "-"):
        _, answer = await people["ada"].call("GET", f"/requests?limit=1000&status=error&error_code={quote(code)}")
        assert len(answer["data"]) == sum((row.error_code or "-") == code for row in rows)
