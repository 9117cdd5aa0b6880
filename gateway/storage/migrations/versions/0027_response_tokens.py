"""Adds the tokens of responses that providers store: they count in the prompt of the next request."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("response_owners", sa.Column("tokens", sa.BigInteger, nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    op.drop_column("response_owners", "tokens")
