"""Adds the segments of kept bodies that were moved to a shared folder or a bucket.

Also adds the objects that must be removed there, and the mark by which the database knows its store.
"""

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "body_segments",
        sa.Column("node", sa.String(64), primary_key=True),
        sa.Column("segment", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("moved_ms", sa.BigInteger, nullable=False),
    )
    op.create_table("body_leftovers", sa.Column("name", sa.String(64), primary_key=True))
    op.create_table(
        "body_store_marks",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("mark", sa.String(32), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("body_store_marks")
    op.drop_table("body_leftovers")
    op.drop_table("body_segments")
