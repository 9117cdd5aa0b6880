"""Adds the time zones of accounts, and an index of ledger entries to sum up days of these zones."""

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("accounts", sa.Column("zones", sa.Text))
    op.create_index("entries_by_account", "entries", ["account_id", "at_ms"])


def downgrade() -> None:
    op.drop_index("entries_by_account", "entries")
    op.drop_column("accounts", "zones")
