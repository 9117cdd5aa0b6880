"""Adds to kept responses their own input, a pointer to the response before them, and their sizes."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("kept_responses", sa.Column("before_id", sa.String(256)))
    op.add_column("kept_responses", sa.Column("inputs", sa.LargeBinary))
    op.add_column("kept_responses", sa.Column("body_memory", sa.BigInteger))
    op.add_column("kept_responses", sa.Column("inputs_memory", sa.BigInteger))
    op.add_column(
        "kept_responses", sa.Column("stored_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0"))
    )
    op.execute("UPDATE kept_responses SET stored_bytes = length(sealed)")
    op.drop_index("kept_responses_by_account", "kept_responses")
    op.create_index("kept_responses_by_account", "kept_responses", ["account_id", "stored_bytes"])
    op.create_index("kept_responses_by_before", "kept_responses", ["before_id"])


def downgrade() -> None:
    # No release has the schema before this one: what only this layout can read is deleted, as the table is one step on.
    op.execute("DELETE FROM kept_responses WHERE inputs IS NOT NULL OR before_id IS NOT NULL")
    op.drop_index("kept_responses_by_before", "kept_responses")
    op.drop_index("kept_responses_by_account", "kept_responses")
    op.create_index("kept_responses_by_account", "kept_responses", ["account_id"])
    for name in ("stored_bytes", "inputs_memory", "body_memory", "inputs", "before_id"):
        op.drop_column("kept_responses", name)
