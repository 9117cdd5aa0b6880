"""Tables of clients' files, uploads and batches. The bytes are in a folder or a bucket (``storage/media_store.py``)."""

from sqlalchemy import JSON, BigInteger, Column, ForeignKey, Index, String, Table, Text, text

from gateway.storage.schema_base import BIG_INTEGER, INT, metadata

EXPIRES = text("expires_ms IS NOT NULL")

files = Table(
    "files",
    metadata,
    Column("sequence", BIG_INTEGER, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("account_id", BIG_INTEGER, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),
    Index("files_by_account", "account_id", "sequence"),
    Index("files_by_expiry", "expires_ms", sqlite_where=EXPIRES),
    sqlite_autoincrement=True,
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("account_id", BIG_INTEGER, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("mime_type", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("kept_s", INT),
    Column("file_id", String(64)),
    Index("uploads_by_account", "account_id"),
    Index("uploads_by_expiry", "expires_ms"),
)

upload_parts = Table(
    "upload_parts",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("upload_id", String(64), ForeignKey("uploads.id", ondelete="CASCADE"), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index("upload_parts_by_upload", "upload_id"),
)

batches = Table(
    "batches",
    metadata,
    Column("sequence", BIG_INTEGER, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("account_id", BIG_INTEGER, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("claimed", INT, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("owner", String(64), nullable=False, server_default=text("''")),
    Column("keep_bodies", String(3), nullable=False, server_default=text("''")),
    Index("batches_by_account", "account_id", "sequence"),
    Index("batches_by_status", "status"),
    sqlite_autoincrement=True,
)
"""``claimed``: how many leading lines may have been sent. ``detail``: the other fields of ``Batch``. ``owner``: in a
cluster, the node that runs the batch, or empty."""
