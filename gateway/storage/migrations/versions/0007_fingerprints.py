"""Adds fingerprints of the secret files that a database belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fingerprints",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("fingerprint", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("fingerprints")
