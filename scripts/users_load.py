"""Millions of requests of many users in SQLite: what does usage by user cost?

    python scripts/users_load.py [--rows 5000000] [--users 3000] [--days 30] [--keep FILE]

Makes a store of that many rows over so many days, by so many users behind 20 keys, with their sums. Then asks for the
usage by user, by session and by tag, and verifies the sums. Printed: CPU milliseconds of the process, the database's
thread included, the best of three. Exit code 1 if usage by user took more than 150.
"""

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.domain.attribution import MAX_VALUES
from gateway.domain.subject_usage import SubjectFilter, SubjectKind
from gateway.domain.traffic import SUMMED_FIELDS, TrafficFilter
from gateway.storage.database import Database
from gateway.storage.ledger import LedgerRepository
from gateway.storage.open import open_database
from gateway.storage.subject_usage import SubjectUsageRepository
from gateway.storage.traffic import TrafficRepository

LIMIT_MS = 150.0
FIRST_DAY = 20_454
"""The first of January 2026."""
DAY_MS = 86_400_000
LINES = 1_000
_ADD_ROWS = """
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows)
INSERT INTO requests (id, started_ms, settled_ms, operation, account_id, account, key_id, key_name, model, channel,
    status, outcome, stream, attempts, prompt_tokens, completion_tokens, cached_tokens, usage_source, cost_nanos,
    total_ms, end_user, session, tags)
SELECT printf('req_%024x', i), at - 900, at, 'chat', 1 + user % 20 / 5, 'acme', 1 + user % 20, 'app', 'm',
    'up', 200, 'completed', 1, 1, 800, 90, 200, 'upstream', 1000 + i % 977, 900,
    iif(i % 10 = 0, '', 'user-' || user), 'run-' || (i / 12),
    'team=t' || (i % 15)
FROM (SELECT i, :first * 86400000 + i * (:days * 86400000 / :rows) AS at,
    i * 7919 % :users AS user FROM n)
"""
_GROUPS = f"""
settled_ms / {DAY_MS} AS day, account_id, key_id, count(*) AS requests, 0 AS failed,
sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens, sum(cached_tokens) AS cached_tokens,
sum(cost_nanos) AS cost_nanos, sum(total_ms) AS total_ms, sum(saved_nanos) AS saved_nanos
"""
_SUM_SUBJECTS = """
INSERT INTO subject_usage (kind, name, value, day, account_id, key_id, {sums})
SELECT {kind}, {groups} FROM requests WHERE {condition} GROUP BY day, account_id, key_id, 3
"""


def fill(path: Path, rows: int, users: int, days: int) -> None:
    """Add the rows and their sums."""
    sums = ", ".join(SUMMED_FIELDS)
    with closing(sqlite3.connect(path)) as database:
        database.execute(_ADD_ROWS, {"rows": rows, "users": users, "days": days, "first": FIRST_DAY})
        for kind, condition in (
            ("'user', '', end_user", "end_user != ''"),
            (f"'session', '', iif(sequence % 166666 < {12 * MAX_VALUES}, session, '')", "session != ''"),
            ("'tag', 'team', substr(tags, 6)", "tags != ''"),
        ):
            database.execute(_SUM_SUBJECTS.format(kind=kind, groups=_GROUPS, condition=condition, sums=sums))
        database.execute(
            f"INSERT INTO usage_hours (span, model, channel, status, hour, account_id, key_id, {sums}) "  # noqa: S608
            f"SELECT 24, 'm', 'up', 200, day * 24, account_id, key_id, {sums} "
            f"FROM (SELECT {_GROUPS} FROM requests GROUP BY day, account_id, key_id)"
        )
        database.commit()


async def measure(name: str, ask: Callable[[], Awaitable[object]]) -> float:
    """Print and return the best CPU time of three, in milliseconds."""
    times = []
    for _ in range(3):
        started_s = time.process_time()
        await ask()
        times.append((time.process_time() - started_s) * 1000)
    print(f"{name:<40}{min(times):>10.1f} ms")
    return min(times)


async def run(database: Database, days: int) -> bool:
    """Ask for what a report needs; return whether usage by user is fast enough."""
    subjects, last = SubjectUsageRepository(database), FIRST_DAY + days - 1
    traffic = TrafficRepository(database)
    hours = TrafficFilter(FIRST_DAY * 24, (last + 1) * 24)

    async def report(kind: SubjectKind, name: str = "", key_id: int | None = None) -> None:
        await subjects.find_usage(SubjectFilter(kind, name, FIRST_DAY, last, key_id=key_id), LINES)
        await traffic.list_traffic("account", hours)

    by_user_ms = await measure("usage by user", lambda: report("user"))
    await measure("usage by user of a key", lambda: report("user", key_id=3))
    await measure("usage by session", lambda: report("session"))
    await measure("usage by tag", lambda: report("tag", "team"))
    await measure("verification of users", LedgerRepository(database).list_subject_totals)
    return by_user_ms <= LIMIT_MS


async def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--users", type=int, default=3_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--keep", type=Path, help="the database, made if missing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "gateway.db"
        is_new = not path.exists()
        database = await open_database(f"sqlite:///{path}")
        if is_new:
            await database.close()
            fill(path, options.rows, options.users, options.days)
            database = await open_database(f"sqlite:///{path}")
        try:
            return 0 if await run(database, options.days) else 1
        finally:
            await database.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
