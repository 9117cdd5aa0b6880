"""Accounts, keys and requests."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("quota_nanos", sa.BigInteger),
        sa.Column("quota_period", sa.String(16), nullable=False),
        sa.Column("quota_status", sa.Integer),
        sa.Column("rpm", sa.Integer),
        sa.Column("tpm", sa.Integer),
        sa.Column("max_concurrency", sa.Integer),
        sa.Column("groups", sa.JSON, nullable=False),
        sa.Column("declared", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "keys",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("account_id", _BIG, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("expires_s", sa.BigInteger),
        sa.Column("quota_nanos", sa.BigInteger),
        sa.Column("quota_period", sa.String(16), nullable=False),
        sa.Column("quota_status", sa.Integer),
        sa.Column("rpm", sa.Integer),
        sa.Column("tpm", sa.Integer),
        sa.Column("max_concurrency", sa.Integer),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("group", sa.String(64)),
        sa.Column("allow_ips", sa.JSON, nullable=False),
        sa.Column("declared", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("account_id", "name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "requests",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("account", sa.String(64), nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("key_name", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("channel", sa.String(64)),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("ending", sa.String(32), nullable=False),
        sa.Column("error_code", sa.String(128)),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("usage_source", sa.String(16), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sa.Column("first_byte_ms", sa.Integer),
        sa.Column("total_ms", sa.Integer, nullable=False),
        sa.Column("client_request_id", sa.String(64)),
        sqlite_autoincrement=True,
    )
    op.create_index("requests_by_key", "requests", ["key_id", "sequence"])
    op.create_index("requests_by_model", "requests", ["model", "sequence"])


def downgrade() -> None:
    for table in ("requests", "keys", "accounts"):
        op.drop_table(table)
