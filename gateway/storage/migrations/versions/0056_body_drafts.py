"""Adds the copies of segments of kept bodies that are being made, and how often data keys were destroyed."""

import sqlalchemy as sa
from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "body_drafts",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("segment", sa.BigInteger, nullable=False),
        sa.Column("process", sa.String(32), nullable=False),
        sa.Column("noted_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "body_key_versions",
        sa.Column("account_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("node", sa.String(64), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("is_pending", sa.Boolean, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("body_key_versions")
    op.drop_table("body_drafts")
