"""Adds the index of requests by session and account: accounts may use the same names of sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None

_INDEX = "requests_by_account_session"


def upgrade() -> None:
    is_named, columns = sa.text("session != ''"), ["session", "account_id", "sequence"]
    op.create_index(_INDEX, "requests", columns, sqlite_where=is_named, postgresql_where=is_named)


def downgrade() -> None:
    op.drop_index(_INDEX, "requests")
