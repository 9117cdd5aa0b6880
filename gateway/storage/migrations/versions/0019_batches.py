"""Adds the table of batches."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("account_id", _BIG, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("claimed", sa.Integer, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("batches_by_account", "batches", ["account_id", "sequence"])
    op.create_index("batches_by_status", "batches", ["status"])


def downgrade() -> None:
    op.drop_table("batches")
