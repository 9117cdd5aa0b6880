"""Adds the model that answered a request, and charged units that have no column of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
NAMES = ("served_model", "units")


def upgrade() -> None:
    for name in NAMES:
        op.add_column("requests", sa.Column(name, sa.Text, nullable=False, server_default=sa.text("''")))


def downgrade() -> None:
    for name in NAMES:
        op.drop_column("requests", name)
