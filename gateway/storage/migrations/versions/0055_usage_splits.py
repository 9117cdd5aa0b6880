"""Adds sums of past days for charts, which a job adds up later from the stored sums of days."""

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

_SUMS = (
    "requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos", "total_ms",
    "saved_nanos",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "usage_splits",
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("filter_by", sa.String(16), primary_key=True),
        sa.Column("value", sa.String(256), primary_key=True),
        sa.Column("split_by", sa.String(16), primary_key=True),
        sa.Column("label", sa.String(256), primary_key=True),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _SUMS),
        sqlite_with_rowid=False,
    )
    op.create_table("split_days", sa.Column("day", sa.Integer, primary_key=True), sqlite_with_rowid=False)


def downgrade() -> None:
    op.drop_table("split_days")
    op.drop_table("usage_splits")
