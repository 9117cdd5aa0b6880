"""Millions of request rows in SQLite: what do lists, facets, charts, exports and retirement cost?

    python scripts/rows_load.py [--rows 5000000] [--keep FILE]

Makes a store of that many rows over 180 days: 40 accounts, 400 keys, 60 models, 12 channels, some asked for far more
often than others, 2 % of failures, a route, users, sessions and tags. Then asks for what the console asks for, and for
what is hardest to find. Printed: CPU milliseconds of the process, the database's thread included, the best of three.
Exit code 1 where a list or a facet took more than 100.
"""

import argparse
import asyncio
import random
import sqlite3
import sys
import tempfile
import time
from bisect import bisect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.billing.retention_worker import MAX_ROWS
from gateway.domain.audit_log import OPERATOR
from gateway.domain.request_log import RequestFilter, RequestRecord, build_error
from gateway.domain.traffic import HOUR_MS, SUMMED_FIELDS, TrafficAxis, TrafficFilter, sum_rows
from gateway.server.admin.export import FORMATS
from gateway.server.admin.request_history import list_pages
from gateway.server.admin.requests import RequestView, build_row
from gateway.storage.bulk import BulkAddition, BulkInsert
from gateway.storage.database import Database
from gateway.storage.open import open_database
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.retention import RetentionRepository
from gateway.storage.row_mapping import REQUEST_COLUMNS, request_values
from gateway.storage.schema import requests, usage_hours
from gateway.storage.traffic import TrafficRepository

LIMIT_MS = 100.0
DAY_MS = 86_400_000
DAYS = 180
START_MS = 1_767_225_600_000
"""The first of January 2026."""
ACCOUNTS, KEYS, CHANNELS = 40, 400, 12
FAMILIES = ("large", "small", "mini", "flash", "pro", "coder", "vision", "embed", "image", "video")
MODELS = [
    f"{vendor}/{name}" for vendor in ("openai", "anthropic", "google", "mistral", "qwen", "meta") for name in FAMILIES
]
FAILING = 0.02
LEFT = 0.01
ROUTE, ROUTED_MODELS = "fast", 3
USERS, TEAMS, SESSION_ROWS = 30_000, 40, 12
CHUNK = 50_000
EXPORTED = 20_000
FAULTS: list[tuple[int, str, str | None, str, bool]] = [
    (429, "refused", "rate_limit_exceeded", "The key may make {} requests a minute", False),
    (429, "refused", "insufficient_quota", "The quota of ${} a day is used up", False),
    (404, "refused", "model_not_found", "No channel serves the model 'gpt-{}'; see GET /v1/models", False),
    (400, "refused", "invalid_request", "'messages[{}].content' must be a text or a list of parts", False),
    (503, "refused", "no_available_channel", "Every channel that serves the model cools down; wait {} s", False),
    (502, "failed", "upstream_error", "The provider broke off its answer after {} events", True),
    (504, "failed", "upstream_timeout", "The provider has not answered within {} s", True),
    (200, "failed", "upstream_error", "The provider broke off its answer after {} events", True),
    (400, "refused", None, "This model's maximum context length is {}000 tokens", True),
]
"""Status, outcome, code, message, and whether a provider was asked."""


def weigh(count: int) -> list[float]:
    """Where each of ``count`` things ends in a line of length one, the first the longest (Zipf)."""
    ends = list(accumulate(1 / (place + 1) for place in range(count)))
    return [end / ends[-1] for end in ends]


@attrs.frozen
class Key:
    """Who asks, and for which models: the first of them most often."""

    id: int
    account: int
    models: tuple[int, ...]


class World:
    """Makes rows, the same ones each time."""

    def __init__(self, seed: int = 1) -> None:
        self._dice = rng = random.Random(seed)
        self._key_ends, model_ends = weigh(KEYS), weigh(len(MODELS))
        self._channels = [[rng.randrange(CHANNELS) for _ in range(rng.choice((1, 1, 2)))] for _ in MODELS]
        self._keys = []
        for number in range(1, KEYS + 1):
            models = {bisect(model_ends, rng.random()) for _ in range(rng.choice((1, 2, 3, 4)))}
            self._keys.append(Key(number, int(ACCOUNTS * rng.random() ** 2) + 1, tuple(models)))

    def make(self, count: int) -> Iterator[RequestRecord]:
        """So many rows in the order in which they were settled."""
        at_ms, step_ms = float(START_MS), DAYS * DAY_MS / count
        for number in range(count):
            at_ms += 2 * step_ms * self._dice.random()
            yield self._make_one(number, int(at_ms))

    def _make_one(self, number: int, settled_ms: int) -> RequestRecord:
        throw = self._dice.random
        key = self._keys[bisect(self._key_ends, throw())]
        model = key.models[min(int(throw() ** 3 * len(key.models)), len(key.models) - 1)]
        channels, luck, total_ms = self._channels[model], throw(), int(300 + throw() * 4_000)
        prompt, completion = int(50 + throw() * throw() * 8_000), int(throw() * 900)
        status, outcome, code, message, asked = (
            200,
            "client_closed" if luck < FAILING + LEFT else "completed",
            None,
            "",
            True,
        )
        if luck < FAILING:
            status, outcome, code, message, asked = FAULTS[int(luck / FAILING * len(FAULTS))]
            message = build_error(message.format(int(throw() * 1_000)))
            completion = 0
        return RequestRecord(
            id=f"req_{number:08x}{self._dice.getrandbits(64):016x}",
            started_ms=settled_ms - total_ms,
            settled_ms=settled_ms,
            operation="chat",
            account_id=key.account,
            account=f"account-{key.account:02}",
            key_id=key.id,
            key_name=f"key-{key.id:03}",
            model=f"gpt-{int(throw() * 1_000)}" if status == 404 else MODELS[model],
            channel=f"channel-{channels[int(throw() * len(channels))]:02}" if asked else None,
            status=status,
            outcome=outcome,  # type: ignore[arg-type]
            error_code=code,
            stream=luck > 0.4,
            attempts=int(asked),
            prompt_tokens=prompt if asked else 0,
            completion_tokens=completion,
            cached_tokens=prompt // 3 if asked else 0,
            usage_source="upstream" if asked else "none",
            cost_nanos=prompt * 250 + completion * 1_000 if status == 200 else 0,
            reserved_nanos=9_000_000,
            overrun_nanos=0,
            first_byte_ms=total_ms // 3 if asked else None,
            total_ms=total_ms,
            error=message,
            route=ROUTE if asked and model < ROUTED_MODELS else "",
            served_model=f"{MODELS[model]}-2026" if asked and model < ROUTED_MODELS else "",
            end_user=f"user-{int(USERS * throw() ** 2)}" if key.id % 2 else "",
            session=f"run-{number // SESSION_ROWS}",
            tags=f"feature=f{number % 7},team=t{number % TEAMS}",
        )


def fill(path: Path, count: int) -> None:
    """Put so many rows, and the sums of them, into the database at ``path``, which has none."""
    began = time.monotonic()
    add_rows, add_sums = BulkInsert(requests, REQUEST_COLUMNS).sqlite, BulkAddition(usage_hours, SUMMED_FIELDS).sqlite
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -500000")
        indexes = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'requests' AND sql IS NOT NULL"
        ).fetchall()
        for name, _ in indexes:  # made again of all rows at once, in a tenth of the time
            connection.execute(f"DROP INDEX {name}")
        rows = World().make(count)
        while some := [row for row, _ in zip(rows, range(CHUNK), strict=False)]:
            connection.executemany(add_rows, map(request_values, some))
            connection.executemany(add_sums, [(*place, *sums) for place, sums in sum_rows(some).items()])
        for _, sql in indexes:
            connection.execute(sql)
        connection.commit()
    print(f"{count:,} rows, {path.stat().st_size / 2**20:,.0f} MB, in {time.monotonic() - began:.0f} s")


def list_questions(newest: str | int) -> dict[str, RequestFilter]:
    """What the list is asked for: each filter, what is rare, what is not there, and all of it together."""
    since, until = START_MS + 100 * DAY_MS, START_MS + 101 * DAY_MS
    nothing, no_text = {"channel": "nobody"}, {"text": "zebra"}
    asked: dict[str, dict[str, Any]] = {
        "everything": {},
        "a busy key": {"key_id": 1},
        "a quiet key": {"key_id": KEYS},
        "no such key": {"key_id": 10**6},
        "a busy account": {"account_id": 1},
        "a quiet account": {"account_id": ACCOUNTS},
        "a model": {"model": MODELS[0]},
        "no such model": {"model": "zebra"},
        "a channel": {"channel": "channel-03"},
        "no such channel": nothing,
        "status 200": {"status": 200},
        "status 429": {"status": 429},
        "status 418: none": {"status": 418},
        "status 299: none": {"status": 299},
        "failures": {"verdict": "error"},
        "no failures": {"verdict": "ok"},
        "who left": {"outcome": "client_closed"},
        "interrupted: none": {"outcome": "interrupted"},
        "text": {"text": "CONTEXT length is 77"},
        "text that is nowhere": no_text,
        "an id that is nowhere": {"text": f"req_{0:024x}"},
        "a day": {"since_ms": since, "until_ms": until},
        "a day of a quiet key": {"since_ms": since, "until_ms": until, "key_id": KEYS},
        "a day without a channel": {"since_ms": since, "until_ms": until, **nothing},
        "since the first day": {"since_ms": START_MS, **nothing},
        "until the last day": {"until_ms": START_MS + DAYS * DAY_MS, **nothing},
        "before all": {"until_ms": START_MS - DAY_MS},
        "after all": {"since_ms": START_MS + 2 * DAYS * DAY_MS},
        "a route": {"route": ROUTE},
        "no such route": {"route": "zebra"},
        "a tag": {"tag": "team=t7"},
        "no such tag": {"tag": "team=zebra"},
        "a busy user": {"end_user": "user-0"},
        "no such user": {"end_user": "zebra"},
        "a session": {"session": f"run-{int(newest) // SESSION_ROWS // 2}"},
        "a served model": {"served_model": f"{MODELS[0]}-2026"},
        "no such served model": {"served_model": "zebra"},
        "a day of no such tag": {"since_ms": since, "until_ms": until, "tag": "team=zebra"},
        "a busy key, no such tag": {"key_id": 1, "tag": "team=zebra"},
        "a busy key, no channel": {"key_id": 1, **nothing},
        "a busy key, a strange model": {"key_id": 1, "model": MODELS[-1]},
        "a busy key, no text": {"key_id": 1, **no_text},
        "a busy account, status 418": {"account_id": 1, "status": 418},
        "a busy model, no text": {"model": MODELS[0], **no_text},
        "failures over no channel": {"verdict": "error", **nothing},
        "older than the middle, no text": {"before": int(newest) // 2, **no_text},
        "after the first, no channel": {"after": "0", **nothing},
        "after the first, a quiet key": {"after": "0", "key_id": KEYS, "status": 418},
        "after the first, no text": {"after": "0", **no_text},
        "all at once": {
            "key_id": 1, "account_id": 1, "model": MODELS[0], "status": 429, "verdict": "error", "outcome": "refused",
            "since_ms": START_MS, "until_ms": START_MS + DAYS * DAY_MS, **nothing, **no_text,
        },
    }  # fmt: skip
    return {name: RequestFilter(**values) for name, values in asked.items()}


class Clock:
    """Prints what things cost at the best of so many times, and remembers what was too dear."""

    def __init__(self, rounds: int = 3) -> None:
        self.too_dear: list[str] = []
        self._rounds = rounds

    async def time(self, name: str, work: Callable[[], Awaitable[Any]], *, bounded: bool = True) -> Any:
        """CPU of the whole process."""
        best_ms = float("inf")
        done: Any = None
        for _ in range(self._rounds):
            began = time.process_time()
            done = await work()
            best_ms = min(best_ms, (time.process_time() - began) * 1000)
        if bounded and best_ms > LIMIT_MS:
            self.too_dear.append(name)
        note = f"{len(done)} rows{', more' if done.more else ''}" if hasattr(done, "more") else ""
        print(f"  {name:<34}{best_ms:8.1f} ms  {note}")
        return done


async def weigh_lists(database: Database, clock: Clock) -> None:
    """Every question, a page of 50 rows each, and one of 1,000."""
    log = RequestLogRepository(database)
    newest = (await log.list_requests(RequestFilter(), 1)).newest
    print("lists, 50 rows")
    for name, wanted in list_questions(newest).items():
        await clock.time(name, lambda wanted=wanted: log.list_requests(wanted, 50))  # type: ignore[misc]
    await clock.time("everything, 1,000 rows", lambda: log.list_requests(RequestFilter(), 1_000))


async def weigh_sums(database: Database, clock: Clock) -> None:
    """Facets and charts, of all days and of few."""
    traffic, until = TrafficRepository(database), (START_MS + DAYS * DAY_MS) // HOUR_MS
    chosen: dict[str, dict[str, Any]] = {
        "": {}, ", a key": {"key_id": 1}, ", an account": {"account_id": 1}, ", failures": {"verdict": "error"},
    }  # fmt: skip
    print("facets")
    for days in (1, 30, DAYS):
        for name, values in chosen.items():
            wanted = TrafficFilter(until - days * 24, until, **values)
            await clock.time(f"{days} days{name}", lambda wanted=wanted: traffic.list_facets(wanted))  # type: ignore[misc]
    print("charts")
    others: tuple[TrafficAxis, ...] = ("day", "model", "key", "account", "status", "channel")
    axes: dict[TrafficAxis, tuple[int, ...]] = {"hour": (1, 31), **dict.fromkeys(others, (30, 90, DAYS))}
    for axis, spans in axes.items():
        for days in spans:
            wanted = TrafficFilter(until - days * 24, until)
            name = f"by {axis}, {days} days"
            await clock.time(name, lambda axis=axis, w=wanted: traffic.list_traffic(axis, w), bounded=False)  # type: ignore[misc]


async def weigh_export(database: Database) -> None:
    """What a row of an export costs, and the longest that everything else waits for a page."""
    log = RequestLogRepository(database)
    print("exports")
    for name, form in FORMATS.items():
        rows, size, longest = 0, 0, 0.0
        began = time.process_time()
        async for page in list_pages(log, RequestFilter(), EXPORTED):
            before = time.perf_counter()
            size += len(form.write([build_row(stored, OPERATOR, RequestView) for stored in page]))
            longest = max(longest, time.perf_counter() - before)
            rows += len(page)
        spent = time.process_time() - began
        print(f"  {name:<34}{spent / max(rows, 1) * 1e6:8.1f} us a row, {rows / spent:,.0f} rows a second of CPU, "
              f"{size / max(rows, 1):.0f} bytes each; a page is written in {longest * 1000:.1f} ms")  # fmt: skip


async def weigh_retirement(database: Database) -> None:
    """What a commit of the job costs."""
    retirement, after, costs, retired = RetentionRepository(database), 0, [], 0
    for _ in range(20):
        began = time.process_time()
        done = await retirement.retire_requests(START_MS + DAY_MS, after, MAX_ROWS)
        costs.append(time.process_time() - began)
        after, retired = done.last, retired + done.retired
    print(
        f"retirement\n  {MAX_ROWS} rows a commit{'':<18}{sorted(costs)[10] * 1000:8.1f} ms"
        f"  {retired} rows in 20 commits"
    )


async def run(path: Path, count: int) -> int:
    """Make the store where there is none, and ask."""
    url = f"sqlite:///{path}"
    database = await open_database(url)
    if not len(await RequestLogRepository(database).list_requests(RequestFilter(), 1)):
        await database.close()
        fill(path, count)
        database = await open_database(url)
    clock = Clock()
    await weigh_lists(database, clock)
    await weigh_sums(database, clock)
    await weigh_export(database)
    await weigh_retirement(database)
    await database.close()
    if clock.too_dear:
        print(f"more than {LIMIT_MS:g} ms: {', '.join(clock.too_dear)}")
    return 1 if clock.too_dear else 0


def main() -> int:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--keep", type=Path, help="a file to keep the store in, and to find it in the next time")
    wanted = parser.parse_args()
    if wanted.keep:
        return asyncio.run(run(wanted.keep, wanted.rows))
    with tempfile.TemporaryDirectory(prefix="rows-") as folder:
        return asyncio.run(run(Path(folder) / "gateway.db", wanted.rows))


if __name__ == "__main__":
    sys.exit(main())
