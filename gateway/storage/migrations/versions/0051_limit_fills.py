"""Adds from when on limits count, how far earlier requests are counted, and charges for dead nodes under limits."""

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
    # Limits of the first start after the upgrade are no new ones: nothing earlier is counted for them. A new database
    # has no requests, and stays empty: a backup is restored into an empty one only.
    if op.get_bind().execute(sa.text("SELECT 1 FROM requests LIMIT 1")).first() is not None:
        values = {"keys": "[]", "created_s": 0, "since_s": 0, "counted_until": 0, "state": "done"}
        op.bulk_insert(fills, [{"counter": "", **values}])
    op.create_table(
        "orphan_charges",
        sa.Column("node", sa.String(64), primary_key=True),
        sa.Column("counter", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("start_s", sa.BigInteger, primary_key=True),
        sa.Column("spent_nanos", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("orphan_charges")
    op.drop_table("limit_fills")
