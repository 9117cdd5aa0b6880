"""Adds the index of kept bodies, and which bodies of a key's requests are kept."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bodies",
        sa.Column("request_id", sa.String(64), primary_key=True),
        sa.Column("account_id", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("end_user", sa.Text, nullable=False),
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("segment", sa.BigInteger),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("loss", sa.String(16), nullable=False),
    )
    op.create_index("bodies_by_account", "bodies", ["account_id", "started_ms"])
    op.create_index("bodies_by_expiry", "bodies", ["node", "expires_ms"])
    op.create_index("bodies_by_segment", "bodies", ["node", "segment"])
    op.add_column("keys", sa.Column("keep_bodies", sa.String(32)))


def downgrade() -> None:
    op.drop_column("keys", "keep_bodies")
    op.drop_table("bodies")
