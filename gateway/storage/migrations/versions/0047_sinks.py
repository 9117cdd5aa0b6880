"""Adds how far each sink has delivered the rows of requests."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sinks",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("cursor", sa.Text, nullable=False),
        sa.Column("delivered", sa.BigInteger, nullable=False),
        sa.Column("lost", sa.BigInteger, nullable=False),
        sa.Column("lost_ms", sa.BigInteger),
        sa.Column("waiting_ms", sa.BigInteger),
        sa.Column("delivered_ms", sa.BigInteger),
        sa.Column("error", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("sinks")
