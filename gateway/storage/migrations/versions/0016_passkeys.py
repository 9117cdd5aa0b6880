"""Adds passkeys: the public keys with which members sign in."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "passkeys",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("member_id", _BIG, sa.ForeignKey("members.id", ondelete="CASCADE"), nullable=False),
        sa.Column("credential_id", sa.LargeBinary(1023), nullable=False, unique=True),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("sign_count", sa.BigInteger, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("transports", sa.JSON, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("used_ms", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("passkeys_by_member", "passkeys", ["member_id"])


def downgrade() -> None:
    op.drop_table("passkeys")
