"""Adds whether a member may read the kept bodies of its account's requests."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("members", sa.Column("may_read_bodies", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("members", "may_read_bodies")
