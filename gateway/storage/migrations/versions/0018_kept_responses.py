"""Adds the responses of the Responses API that the gateway keeps for clients."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "kept_responses",
        sa.Column("id", sa.String(256), primary_key=True),
        sa.Column("account_id", _ID, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )
    op.create_index("kept_responses_by_account", "kept_responses", ["account_id"])
    op.create_index("kept_responses_by_expiry", "kept_responses", ["expires_ms"])


def downgrade() -> None:
    op.drop_table("kept_responses")
