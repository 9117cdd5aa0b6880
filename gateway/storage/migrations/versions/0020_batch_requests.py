"""Adds to requests the batch whose line they are, and the multiplier of their prices."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("batch_id", sa.String(64)))
    op.add_column(
        "requests", sa.Column("batch_multiplier_ppm", sa.Integer, nullable=False, server_default=sa.text("1000000"))
    )
    lines = sa.text("batch_id IS NOT NULL")
    op.create_index("requests_by_batch", "requests", ["batch_id"], sqlite_where=lines, postgresql_where=lines)


def downgrade() -> None:
    op.drop_index("requests_by_batch", "requests")
    op.drop_column("requests", "batch_multiplier_ppm")
    op.drop_column("requests", "batch_id")
