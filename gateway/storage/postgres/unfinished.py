"""Rows of the table ``cluster`` that tell what an upgrade of the schema has yet to do."""

from sqlalchemy import text

UNFINISHED = "unfinished "
"""The names of the rows begin with this word."""
UNFINISHED_BACKFILL = f"{UNFINISHED}backfill "
"""The names of the rows of backfills. The revision follows; the value is the last sequence that was added.

One other row stands for the functions, all the rest for indexes.
"""
LIST_UNFINISHED = text(
    "SELECT name, convert_from(value, 'UTF8') AS statement FROM cluster WHERE starts_with(name, :prefix) ORDER BY name"
).bindparams(prefix=UNFINISHED)
PUT_ROW = text("""
INSERT INTO cluster (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value
""")
READ_ROW = text("SELECT convert_from(value, 'UTF8') FROM cluster WHERE name = :name")
DELETE_ROW = text("DELETE FROM cluster WHERE name = :name")
