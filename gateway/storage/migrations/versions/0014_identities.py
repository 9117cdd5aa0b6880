"""Adds the identities of members at OpenID Connect providers, and the sessions that began there."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "identities",
        sa.Column("issuer", sa.String(512), primary_key=True),
        sa.Column("subject", sa.String(255), primary_key=True),
        sa.Column("member_id", _ID, sa.ForeignKey("members.id", ondelete="SET NULL")),
    )
    op.create_index("identities_by_member", "identities", ["member_id"])
    op.create_table(
        "provider_sessions",
        sa.Column("digest", sa.LargeBinary(32), sa.ForeignKey("sessions.digest", ondelete="CASCADE"), primary_key=True),
        sa.Column("provider", sa.String(32), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("provider_sessions")
    op.drop_table("identities")
