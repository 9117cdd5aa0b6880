"""Adds the account of each response that a provider stores, and the channel that made the response."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "response_owners",
        sa.Column("id", sa.String(256), primary_key=True),
        sa.Column("account_id", sa.BigInteger, nullable=False),
        sa.Column("channel", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("response_owners_by_age", "response_owners", ["created_ms"])


def downgrade() -> None:
    op.drop_table("response_owners")
