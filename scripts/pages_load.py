"""First paint of the console's pages over millions of request rows: what does the server need for each page?

    python scripts/pages_load.py [--rows 5000000] [--keep FOLDER] [--only TEXT] [--limit-ms 150]

Makes a data folder with that many rows of 180 days, and the sums of them: rows are made for a part, and copied with
other ids in SQL, because to make each would take ten minutes. A gateway is started on the folder, at the end of its
rows, with 1,000 channels, 40 accounts and 5,000 keys. Printed: CPU milliseconds of the process, the database's thread
included, the best of three, and the bytes of the page. Exit code 1 where a page took more than the limit.
"""

import argparse
import asyncio
import logging
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import structlog
from sqlalchemy import func, insert, select

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.auth.accounts import make_secret
from gateway.domain.attribution import MAX_VALUES
from gateway.domain.traffic import HOUR_MS, SUMMED_FIELDS
from gateway.server.context import SERVICES
from gateway.server.sessions import COOKIE
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.bulk import BulkInsert
from gateway.storage.open import open_database
from gateway.storage.row_mapping import REQUEST_COLUMNS, build_key_row, request_values
from gateway.storage.schema import keys, requests
from gateway.storage.speed import SpeedRepository
from gateway.storage.usage_splits import SplitRepository
from scripts.charts_load import fill_speed, fill_sums, list_cells
from scripts.rows_load import (
    ACCOUNTS,
    CHANNELS,
    DAY_MS,
    DAYS,
    KEYS,
    MODELS,
    ROUTE,
    SESSION_ROWS,
    START_MS,
    USERS,
    World,
)
from tests.support.console import add_member, open_session
from tests.support.gateway import RunningGateway, start_gateway

LIMIT_MS = 150.0
ROUNDS = 3
ALL_CHANNELS, ALL_KEYS = 1_000, 5_000
ACCOUNT_NAMES = ["acme", *(f"account-{number:02}" for number in range(2, ACCOUNTS + 1))]
MADE_ROWS = 250_000
HOUR_DAYS, SUBJECT_DAYS = 40, 92
PAGES = (
    "", "?span=24h", "?span=90d", "/requests", "/requests?last=7d", "/requests?last=90d",
    "/requests?last=90d&status=error", "/requests?last=30d&channel=channel-03", "/requests?last=30d&end_user=user-0",
    "/requests?last=7d&text=zebra", "/sessions", "/sessions?end_user=user-0", "/keys", "/keys?sort=-spent_usd",
    "/keys/1", "/accounts", "/accounts/acme", "/members", "/channels", "/channels?sort=success_ratio",
    "/channels/channel-03", "/channel-weights", "/end-users", "/end-users?span=90d", "/tags",
    "/usage?end_user=user-0&span=30d",
    "/models", f"/models/{quote(MODELS[0], safe='')}", "/routes",
    f"/routes/{ROUTE}?last=7d", "/limits", "/prices", "/audit", "/videos", "/batches", "/files", "/live", "/health",
)  # fmt: skip


def make_config() -> Mapping[str, Any]:
    """Return a configuration whose channels have the names of those in the rows, and many others."""
    channels = [
        {
            "name": f"channel-{number:02}",
            "provider": "custom",
            "base_url": "http://127.0.0.1:9/v1",
            "api_key": f"key-of-channel-{number}",
            "models": MODELS if number < CHANNELS else [f"model-{number}"],
            "priority": number % 10,
        }
        for number in range(ALL_CHANNELS)
    ]
    route = {
        "name": ROUTE,
        "step": [{"models": [{"model": MODELS[0], "weight": 9}, MODELS[1]]}, {"models": [MODELS[2]]}],
    }
    billing = {"unpriced": "free"}
    accounts = [{"name": name} for name in ACCOUNT_NAMES]
    return {
        "account": accounts,
        "channel": channels,
        "route": [route],
        "billing": billing,
        "requests": {"keep_days": 0},
    }


def fill(path: Path, count: int) -> None:
    """Put so many rows, and sums of as many, into the database at ``path``, which has none."""
    began = time.monotonic()
    end_hour = (START_MS + DAYS * DAY_MS) // HOUR_MS - 1
    cells = list_cells(KEYS, count / DAYS / 24)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -500000")
        fill_rows(connection, count)
        fill_sums(connection, cells, end_hour, DAYS, HOUR_DAYS)
        fill_speed(connection, cells, end_hour, DAYS)
        fill_subjects(connection)
        connection.commit()
    print(f"{count:,} rows, {path.stat().st_size / 2**20:,.0f} MB, in {time.monotonic() - began:.0f} s", flush=True)


def fill_rows(connection: sqlite3.Connection, count: int) -> None:
    """Make at most ``MADE_ROWS`` rows, and add each as many times as it takes."""
    indexes = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = 'requests' AND sql IS NOT NULL"
    ).fetchall()
    for name, _ in indexes:  # made again of all rows at once, in a tenth of the time
        connection.execute(f"DROP INDEX {name}")
    connection.execute("CREATE TEMP TABLE made AS SELECT * FROM requests")
    made = min(count, MADE_ROWS)
    add = BulkInsert(requests, REQUEST_COLUMNS).sqlite.replace("INTO requests", "INTO made", 1)
    connection.executemany(add, map(request_values, World().make(made)))
    copies = -(-count // made)
    number = f"((made.rowid - 1) * {copies} + copy.value)"
    changed = {
        "id": f"'req_' || printf('%08x', {number}) || substr(made.id, 13)",
        "end_user": f"iif(end_user = '', '', 'user-' || ((substr(end_user, 6) + copy.value * 7919) % {USERS}))",
        "session": f"'run-' || ({number} / {SESSION_ROWS})",
    }
    columns = ", ".join(REQUEST_COLUMNS)
    values = ", ".join(changed.get(name, f"made.{name}") for name in REQUEST_COLUMNS)
    connection.execute(
        f"WITH RECURSIVE copy (value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM copy "  # noqa: S608 - constants
        f"WHERE value < {copies - 1}) "
        f"INSERT INTO requests ({columns}) SELECT {values} FROM made CROSS JOIN copy ORDER BY made.rowid"
    )
    for _, sql in indexes:
        connection.execute(sql)


def fill_subjects(connection: sqlite3.Connection) -> None:
    """Sum the users and tags of the last ``SUBJECT_DAYS`` days."""
    sums = ", ".join(f"sum({name})" for name in SUMMED_FIELDS if name not in {"requests", "failed"})
    subjects = {
        ("user", ""): "end_user",
        ("tag", "feature"): "substr(tags, 9, instr(tags, ',') - 9)",
        ("tag", "team"): "substr(tags, instr(tags, ',') + 6)",
    }
    first_ms = START_MS + (DAYS - SUBJECT_DAYS) * DAY_MS
    # Half of all rows: by an index they would be read in random order, for an hour at 50,000,000 rows.
    for (kind, name), value in subjects.items():
        connection.execute(
            "INSERT INTO subject_usage (kind, name, day, value, account_id, key_id, "  # noqa: S608 - constants
            f"{', '.join(SUMMED_FIELDS)}) SELECT '{kind}', '{name}', settled_ms / {DAY_MS}, {value}, account_id, "
            f"key_id, count(*), sum(outcome != 'completed'), {sums} FROM requests NOT INDEXED "
            f"WHERE settled_ms >= {first_ms} AND {value} != '' GROUP BY 3, 4, 5, 6"
        )
    connection.execute(
        "INSERT INTO subject_counts (kind, name, day, distinct_values, max_values) "  # noqa: S608 - a constant
        f"SELECT kind, name, day, count(DISTINCT value), {MAX_VALUES} FROM subject_usage GROUP BY 1, 2, 3"
    )


async def prepare(path: Path, count: int) -> None:
    """Make the store, with the sums that a gateway's workers make: otherwise they would run beside the pages."""
    url = f"sqlite:///{path}"
    await (await open_database(url)).close()
    fill(path, count)
    database = await open_database(url)
    await SpeedRepository(database).add_new_rows()
    end_s = (START_MS + DAYS * DAY_MS) / 1000
    splits = SplitRepository(database, 10**9, commit_rows=10**6)
    while await splits.look_at_new_rows():
        pass
    while await splits.add_day(end_s):
        pass
    await database.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE rollups SET before = 0, since_ms = ? WHERE name = 'speed'", (START_MS,))
        connection.commit()


async def add_keys(gateway: RunningGateway) -> None:
    """Add the keys in one statement, those of the rows to their accounts."""
    services = gateway.app[SERVICES]
    accounts, database = services.auth.accounts, services.storage.database
    if (await database.read(select(func.count()).select_from(keys)))[0][0]:
        return
    owners = [await accounts.get_stored_account(name) for name in ACCOUNT_NAMES]
    of_rows = [key.account - 1 for key in World()._keys]  # noqa: SLF001 - the same world
    rows = [
        build_key_row(attrs.evolve(accounts.make_blank_key(owners[place], make_secret()), name=f"key-{number:03}"))
        for number, place in enumerate((of_rows * -(-ALL_KEYS // KEYS))[:ALL_KEYS], 1)
    ]

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(insert(keys), rows)

    await database.write(work)
    await accounts.reload()


async def time_page(gateway: RunningGateway, session: str, path: str) -> tuple[float, int]:
    """Return the milliseconds and the bytes of a page, the client's part included."""
    best_ms, size = float("inf"), 0
    for _ in range(ROUNDS):
        began = time.process_time()
        url, headers = (
            f"{gateway.url}/console{path}",
            {"Cookie": f"{COOKIE}={session}", "Sec-Fetch-Site": "same-origin"},
        )
        async with gateway.client.get(url, headers=headers) as response:
            size = len(await response.read())
            if response.status != 200:
                raise SystemExit(f"{path}: status {response.status}")
        best_ms = min(best_ms, (time.process_time() - began) * 1000)
    return best_ms, size


async def run(root: Path, wanted: argparse.Namespace) -> int:
    """Make the store where there is none, start the gateway, and time the pages."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    ahead_s = (START_MS + DAYS * DAY_MS) / 1000 - time.time()
    folder = root / "data"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "gateway.db").exists():
        await prepare(folder / "gateway.db", wanted.rows)
    gateway = await start_gateway(folder, root / "template.db", make_config(), clock=lambda: time.time() + ahead_s)
    gateway.audited = False
    await add_keys(gateway)
    session = await open_session(gateway, await add_member(gateway, f"ada-{time.time_ns()}", "administrator", "acme"))
    times = {}
    for path in [path for path in PAGES if wanted.only in path]:
        times[path] = await time_page(gateway, session, path)
        print(f"  {path or '/':<44}{times[path][0]:8.1f} ms {times[path][1]:10,} bytes", flush=True)
    await gateway.close()
    slow = [path or "/" for path, (spent_ms, _) in times.items() if spent_ms > wanted.limit_ms]
    if slow:
        print(f"more than {wanted.limit_ms:g} ms: {', '.join(slow)}")
    return 1 if slow else 0


def main() -> int:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--keep", type=Path, help="a folder to keep the store in, and to find it in the next time")
    parser.add_argument("--only", default="", help="only the pages whose path has this text")
    parser.add_argument("--limit-ms", type=float, default=LIMIT_MS)
    wanted = parser.parse_args()
    if wanted.keep:
        return asyncio.run(run(wanted.keep, wanted))
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        return asyncio.run(run(Path(folder), wanted))


if __name__ == "__main__":
    sys.exit(main())
