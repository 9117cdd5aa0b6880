"""Adds the id of the kept request that a request repeats."""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("replay_of", sa.String(64), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("requests", "replay_of")
