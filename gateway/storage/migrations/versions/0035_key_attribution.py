"""Adds the end user and the tags that all requests of a key get."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_NAMES = ("end_user", "tags")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("keys", sa.Column(name, sa.Text, nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    for name in _NAMES:
        op.drop_column("keys", name)
