"""Adds the limits for which the cost of a request counts, and what the subjects of limits have spent."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("limit_charges", sa.Text, nullable=False, server_default=sa.text("''")))
    op.create_table(
        "limit_counters",
        sa.Column("counter", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("start_s", sa.BigInteger, primary_key=True),
        sa.Column("spent_nanos", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("limit_counters")
    op.drop_column("requests", "limit_charges")
