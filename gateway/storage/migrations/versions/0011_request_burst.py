"""Adds how many requests of a minute may start at once, per account and per key."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("accounts", "keys"):
        op.add_column(table, sa.Column("burst", sa.Integer))


def downgrade() -> None:
    for table in ("accounts", "keys"):
        op.drop_column(table, "burst")
