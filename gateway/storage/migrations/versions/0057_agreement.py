"""Adds how far the answers of shadow models agree with those that callers got."""

import sqlalchemy as sa
from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("requests", sa.Column("agreement_ppm", sa.Integer))
    op.add_column("requests", sa.Column("agreed_on", sa.String(32), nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    op.drop_column("requests", "agreed_on")
    op.drop_column("requests", "agreement_ppm")
