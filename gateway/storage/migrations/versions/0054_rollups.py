"""Adds failures by cause, summed from the stored rows, and histograms of durations, which a job sums later."""

import sqlalchemy as sa
from alembic import op

from gateway.storage.migrations.backfill import backfill

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

_HOUR_MS = 3_600_000
# One statement for both spans, because nodes store failures meanwhile: those would count in one of the two only.
_ADD_ROWS = sa.text(f"""
INSERT INTO failure_hours (span, hour, account_id, key_id, model, channel, outcome, code, requests)
SELECT span, settled_ms / ({_HOUR_MS} * span) * span, account_id, key_id,
    CASE WHEN attempts = 0 AND error_code IN ('model_not_found', 'model_not_allowed', 'model_not_priced')
        THEN '' ELSE model END,
    coalesce(channel, ''), outcome, coalesce(error_code, ''), count(*)
FROM requests CROSS JOIN (SELECT 1 AS span UNION ALL SELECT 24) spans
WHERE sequence > :after AND sequence <= :last AND outcome NOT IN ('completed', 'client_closed', 'cancelled')
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
ON CONFLICT (span, hour, account_id, key_id, model, channel, outcome, code)
    DO UPDATE SET requests = failure_hours.requests + excluded.requests
""")  # noqa: S608 - our own number


def upgrade() -> None:
    op.create_table(
        "failure_hours",
        sa.Column("span", sa.Integer, primary_key=True),
        sa.Column("hour", sa.Integer, primary_key=True),
        sa.Column("account_id", sa.BigInteger, primary_key=True),
        sa.Column("key_id", sa.BigInteger, primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("channel", sa.String(256), primary_key=True),
        sa.Column("outcome", sa.String(256), primary_key=True),
        sa.Column("code", sa.String(256), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "speed_hours",
        sa.Column("span", sa.Integer, primary_key=True),
        sa.Column("hour", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(256), primary_key=True),
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("account_id", sa.BigInteger, primary_key=True),
        sa.Column("latency", sa.Text, nullable=False),
        sa.Column("first_byte", sa.Text, nullable=False),
        sa.Column("output_rate", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollups",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("cursor", sa.Text, nullable=False),
        sa.Column("first_cursor", sa.Text, nullable=False),
        sa.Column("before", sa.BigInteger, nullable=False),
        sa.Column("since_ms", sa.BigInteger),
    )
    backfill(revision, add_part)


def downgrade() -> None:
    op.drop_table("rollups")
    op.drop_table("speed_hours")
    op.drop_table("failure_hours")


def add_part(connection: sa.Connection, after: int, last: int) -> None:
    """Add the failures among the rows of these sequences to the sums."""
    connection.execute(_ADD_ROWS, {"after": after, "last": last})
