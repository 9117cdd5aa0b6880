"""On each request how many pictures were made, how long sound was, and how much was spoken."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("images", "duration_ms", "characters"):
        op.add_column("requests", sa.Column(name, sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    for name in ("images", "duration_ms", "characters"):
        op.drop_column("requests", name)
