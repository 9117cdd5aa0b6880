"""Adds the table of alerts that were sent."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alerts",
        sa.Column("kind", sa.String(32), primary_key=True),
        sa.Column("subject", sa.String(512), primary_key=True),
        sa.Column("since_s", sa.BigInteger, nullable=False),
        sa.Column("open", sa.Boolean, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("alerts")
