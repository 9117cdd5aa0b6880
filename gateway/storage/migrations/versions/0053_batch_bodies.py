"""Adds whether the client that created a batch wants the bodies of its requests kept."""

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("keep_bodies", sa.String(3), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("batches", "keep_bodies")
