"""Adds in which words the status of a video job is reported."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("videos", sa.Column("status_words", sa.String(16), nullable=False, server_default="spec"))


def downgrade() -> None:
    op.drop_column("videos", "status_words")
