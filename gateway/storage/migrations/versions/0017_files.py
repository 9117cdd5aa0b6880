"""Adds the files of clients, and uploads with their parts."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("account_id", _BIG, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("files_by_account", "files", ["account_id", "sequence"])
    expires = sa.text("expires_ms IS NOT NULL")
    op.create_index("files_by_expiry", "files", ["expires_ms"], sqlite_where=expires, postgresql_where=expires)
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("account_id", _BIG, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("mime_type", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("kept_s", sa.Integer),
        sa.Column("file_id", sa.String(64)),
    )
    op.create_index("uploads_by_account", "uploads", ["account_id"])
    op.create_index("uploads_by_expiry", "uploads", ["expires_ms"])
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("upload_id", sa.String(64), sa.ForeignKey("uploads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("upload_parts_by_upload", "upload_parts", ["upload_id"])


def downgrade() -> None:
    op.drop_table("upload_parts")
    op.drop_table("uploads")
    op.drop_table("files")
