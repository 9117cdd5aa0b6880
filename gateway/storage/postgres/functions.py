"""The functions in a PostgreSQL database, created anew after the migrations.

A changed function comes into a database only with a migration, which may be empty.
"""

from collections.abc import Iterator

from gateway.storage.async_engine import AsyncConnection
from gateway.storage.postgres.credit_sql import FUNCTIONS
from gateway.storage.postgres.lock_numbers import CHANGES_LOCK

CHANGES = "gateway_changes"
"""The channel on which a commit announces that it has logged changes."""
RINGS = "gateway_rings"
"""The channel on which nodes wake each other."""
CHANGES_KEPT_MS = 86_400_000
"""How long the log keeps a change, in milliseconds: a node that was away for longer reads everything again."""

# The lock makes changes visible in the order of their numbers, so a node that has read one has read all before it. The
# arguments are the kind of the changed row and the column that identifies it. Every 256th change removes old ones.
_LOG_CHANGE = (
    """
CREATE OR REPLACE FUNCTION log_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  now_ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
  changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
  number bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(LOCK);
  INSERT INTO changes (kind, id, at_ms) VALUES (TG_ARGV[0], changed ->> TG_ARGV[1], now_ms)
    RETURNING sequence INTO number;
  IF number % 256 = 0 THEN
    DELETE FROM changes WHERE at_ms < now_ms - KEPT_MS;
  END IF;
  PERFORM pg_notify('CHANNEL', '');
  RETURN NULL;
END $$
""".replace("KEPT_MS", str(CHANGES_KEPT_MS))
    .replace("CHANNEL", CHANGES)
    .replace("LOCK", str(CHANGES_LOCK))
)
# A plan made while the tables were empty would use sequential scans forever.
_USE_INDEXES = "ALTER FUNCTION {} SET enable_seqscan = off"
_INDEXED_FUNCTIONS = (
    "turn_balance", "open_balance", "take_credit", "take_limit_credit", "give_credit", "post_spending",
    "fold_other_leases", "fold_leases", "reserve_job", "finish_job", "add_credit",
)  # fmt: skip


async def create_functions(connection: AsyncConnection) -> None:
    """Create or replace every function, as part of the current transaction and in one message to the server."""
    driver = (await connection.get_raw_connection()).driver_connection
    if driver is None or not driver.is_in_transaction():
        raise RuntimeError("functions outside of a transaction would be committed one by one")
    await driver.execute(";\n".join(_list_statements()))


def _list_statements() -> Iterator[str]:
    yield _LOG_CHANGE
    for name in ("take_credit", "take_limit_credit"):  # their result types differ from those of earlier versions
        yield f"DROP FUNCTION IF EXISTS {name}"
    yield from FUNCTIONS.values()
    yield from map(_USE_INDEXES.format, _INDEXED_FUNCTIONS)
