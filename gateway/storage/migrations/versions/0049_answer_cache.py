"""Adds where the answer of a request came from, and for how long the cache serves the answers of a key."""

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("cache", sa.String(8), nullable=False, server_default=sa.text("''")))
    op.add_column("keys", sa.Column("cache_ttl_s", sa.Integer))


def downgrade() -> None:
    op.drop_column("keys", "cache_ttl_s")
    op.drop_column("requests", "cache")
