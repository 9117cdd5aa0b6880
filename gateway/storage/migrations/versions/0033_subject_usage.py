"""Adds the sums of each day by end user, session and tag, and computes those of the stored rows."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

from gateway.storage.migrations.backfill import backfill

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_DAY_MS = 86_400_000
_MAX_VALUES, _MAX_TAG_NAMES = 10_000, 100
_KEY = ("kind", "name", "day", "value", "account_id", "key_id")
_SUMS = (
    "requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos", "total_ms",
    "saved_nanos",
)  # fmt: skip
_LIST_ROWS = sa.text(f"""
SELECT sequence, settled_ms / {_DAY_MS} AS day, account_id, key_id, end_user, session, tags, 1 AS requests,
    CASE WHEN outcome IN ('completed', 'client_closed', 'cancelled') THEN 0 ELSE 1 END AS failed,
    prompt_tokens, completion_tokens, cached_tokens, cost_nanos, total_ms, saved_nanos
FROM requests WHERE sequence > :after AND sequence <= :last AND (end_user != '' OR session != '' OR tags != '')
""")  # noqa: S608 - our own words
_ADD_SUMS = sa.text(
    f"INSERT INTO subject_usage ({', '.join((*_KEY, *_SUMS))}) "  # noqa: S608 - our own words
    f"VALUES ({', '.join(f':{name}' for name in (*_KEY, *_SUMS))}) "
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = subject_usage.{name} + excluded.{name}" for name in _SUMS)
)
_COUNT_VALUES = sa.text(f"""
INSERT INTO subject_counts (kind, name, day, distinct_values, max_values)
SELECT kind, name, day, count(DISTINCT value), {_MAX_VALUES} FROM subject_usage GROUP BY kind, name, day
""")  # noqa: S608 - our own words
_COUNT_NAMES = sa.text(f"""
INSERT INTO subject_counts (kind, name, day, distinct_values, max_values)
SELECT 'tag', '', day, count(*), {_MAX_TAG_NAMES} FROM subject_counts WHERE kind = 'tag' GROUP BY day
""")  # noqa: S608 - our own words


def upgrade() -> None:
    op.create_table(
        "subject_usage",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("account_id", sa.BigInteger, primary_key=True),
        sa.Column("key_id", sa.BigInteger, primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _SUMS),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "subject_counts",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("distinct_values", sa.Integer, nullable=False),
        sa.Column("max_values", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )
    backfill(revision, add_part, end)


def downgrade() -> None:
    op.drop_table("subject_counts")
    op.drop_table("subject_usage")


def add_part(connection: sa.Connection, after: int, last: int) -> None:
    """Add the rows of these sequences to the sums."""
    rows = connection.execute(_LIST_ROWS, {"after": after, "last": last}).mappings().all()
    additions = [
        {**{name: row[name] for name in (*_KEY[4:], *_SUMS, "day")}, "kind": kind, "name": name, "value": value}
        for row in rows
        for kind, name, value in _list_subjects(row)
    ]
    if additions:
        connection.execute(_ADD_SUMS, additions)


def end(connection: sa.Connection) -> None:
    """Count the values that have sums."""
    connection.execute(_COUNT_VALUES)
    connection.execute(_COUNT_NAMES)


def _list_subjects(row: sa.RowMapping) -> Iterator[tuple[str, str, str]]:
    if row["end_user"]:
        yield "user", "", row["end_user"]
    if row["session"]:
        yield "session", "", row["session"]
    for tag in filter(None, row["tags"].split(",")):
        name, _, value = tag.partition("=")
        yield "tag", name, value
