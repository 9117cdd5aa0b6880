"""No function of credit leases reads a whole table, whatever was in it when its plan was made."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from gateway.storage.open import open_database
from tests.support.credit_store import CreditStore, open_credit_store
from tests.support.postgres import SharedPostgres

ACCOUNTS, KEYS = 50, 500
_FILL = f"""
INSERT INTO accounts (id, name, status, groups, declared, quota_nanos, quota_period, created_ms)
  SELECT n, 'a' || n, 'active', '[]', false, 1000000, 'daily', 0 FROM generate_series(1, {ACCOUNTS}) n;
INSERT INTO keys (id, account_id, name, digest, last4, status, models, allow_ips, declared, quota_nanos, quota_period,
  created_ms)
  SELECT n, 1 + n % {ACCOUNTS}, 'k' || n, int8send(n), 'last', 'active', '[]', '[]', false, 1000000, 'lifetime', 0
  FROM generate_series(1, {KEYS}) n;
INSERT INTO usage_days (day, account_id, key_id, model, requests, prompt_tokens, completion_tokens, cached_tokens,
  cost_nanos) SELECT 20000 - n / 4000, 1 + n % {ACCOUNTS}, 1 + n % {KEYS}, 'm' || n, 1, 0, 0, 0, 5
  FROM generate_series(1, 8000) n;
INSERT INTO entries (at_ms, kind, account_id, key_id, amount_nanos)
  SELECT 20000::bigint * 86400000, CASE WHEN n % 10 = 0 THEN 'top_up' ELSE 'charge' END, 1 + n % {ACCOUNTS},
    CASE WHEN n % 20 = 0 THEN NULL ELSE 1 + n % {KEYS} END, 5 FROM generate_series(1, 8000) n;
"""  # noqa: S608 - our own numbers
_OPEN = f"""
SELECT open_balance(0::smallint, n, 1::smallint, 20000, 19997) FROM generate_series(1, {ACCOUNTS}) n;
SELECT open_balance(1::smallint, n, 0::smallint, 20000, 19997) FROM generate_series(1, {KEYS}) n;
"""  # noqa: S608 - our own numbers
_LEASES = """
INSERT INTO credit_leases (owner, owner_id, node, start, granted)
  SELECT owner, owner_id, 'n' || node, start, 0 FROM credit_balances, generate_series(1, 4) node
  ON CONFLICT DO NOTHING;
"""
_PASSED_OVER = re.compile(r"Rows Removed by Filter: (\d+)")
_PLACES = "ARRAY[0, 1]::smallint[], ARRAY[{0}, {0}]::bigint[]"
CALLS = (
    "SELECT * FROM take_credit('n1', 4, {1}, 19997, {0}, '{{5, 5}}', '{{5, 5}}', '{{9, 9}}')",
    "SELECT give_credit('n1', {0}, ARRAY[1, 1]::bigint[])",
    "SELECT post_spending('n1', {1}, 19997, {0}, ARRAY[2, 2]::bigint[])",
    "SELECT reserve_job('n1', {0}, 1)",
    "SELECT finish_job({1}, 19997, {0}, 1, 1)",
    "SELECT add_credit(1::smallint, 7, {1}, 19997, 5)",
    "SELECT open_balance(1::smallint, 7, 0::smallint, {1}, 19997)",
)


@pytest.fixture
async def store(shared_postgres: SharedPostgres) -> AsyncIterator[CreditStore]:
    async with open_credit_store(shared_postgres) as opened:
        await (await open_database(opened.url)).close()
        yield opened


async def call_all(store: CreditStore, key: int, day: int) -> None:
    for statement in CALLS:
        await store.connection.execute(statement.format(_PLACES.format(key), day))
    await store.connection.execute(f"SELECT fold_leases('n{2 + key % 3}')")


@pytest.mark.parametrize("empty", [True, False])
async def test_no_function_reads_a_whole_table(store: CreditStore, *, empty: bool) -> None:
    plans: list[str] = []
    if empty:  # plans that are kept are made now
        for key in range(1, 8):
            await call_all(store, key, 20_000)
    await store.connection.execute(_FILL)
    await store.connection.execute(_OPEN + _LEASES)
    await store.connection.execute("ANALYZE")
    await store.connection.execute("LOAD 'auto_explain'")
    store.connection.add_log_listener(lambda _, message: plans.append(f"{message.message}"))
    for setting in ("log_min_duration = 0", "log_nested_statements = on", "log_analyze = on"):
        await store.connection.execute(f"SET auto_explain.{setting}")
    await store.connection.execute("SET client_min_messages = log")
    for key in (11, 12, 13):
        await call_all(store, key, 20_000 + key % 2)  # one of them turns the window
    await store.connection.execute("SET client_min_messages = warning")
    await asyncio.sleep(0)
    assert len(plans) > 50
    assert [
        plan for plan in plans if "Seq Scan" in plan or max(map(int, _PASSED_OVER.findall(plan)), default=0) > 500
    ] == []
