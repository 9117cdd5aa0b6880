"""Adds what the prompt caches of providers have saved, in rows and in the sums of hours and days."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
TABLES = ("requests", "usage_hours")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("saved_nanos", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "saved_nanos")
