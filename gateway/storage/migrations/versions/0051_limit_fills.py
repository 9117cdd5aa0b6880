"""Since when limits count, and how far the requests before that are counted."""

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None


def upgrade() -> None:
    fills = op.create_table(
        "limit_fills",
        sa.Column("counter", sa.Text, primary_key=True),
        sa.Column("keys", sa.Text, nullable=False),
        sa.Column("until_s", sa.BigInteger),
        sa.Column("created_s", sa.BigInteger, nullable=False),
        sa.Column("since_s", sa.BigInteger, nullable=False),
        sa.Column("counted_until", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sqlite_with_rowid=False,
    )
    # Limits of the first start after the upgrade are no new ones: nothing earlier is counted for them.
    values = {"keys": "[]", "created_s": 0, "since_s": 0, "counted_until": 0, "state": "done"}
    op.bulk_insert(fills, [{"counter": "", **values}])


def downgrade() -> None:
    op.drop_table("limit_fills")
