"""Adds to keys the rule that detects a repeating client, and the highest budget of a session."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("keys", sa.Column("loops", sa.JSON))
    op.add_column("keys", sa.Column("max_session_nanos", sa.BigInteger))


def downgrade() -> None:
    op.drop_column("keys", "max_session_nanos")
    op.drop_column("keys", "loops")
