"""Channels that are added while the gateway runs, and on each request the trail of its attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "channels",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("base_url", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.add_column("requests", sa.Column("tried", sa.Text, nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("requests", "tried")
    op.drop_table("channels")
