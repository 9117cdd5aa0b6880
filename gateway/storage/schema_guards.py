"""Tables for the fingerprints of secret files, the owners of responses, kept responses, sent alerts, and sinks."""

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, LargeBinary, String, Table, Text, text

from gateway.storage.schema_base import BIG_INTEGER, metadata

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
)
"""Fingerprints of the secret files that belong to this database; see ``identity.py``."""

response_owners = Table(
    "response_owners",
    metadata,
    Column("id", String(256), primary_key=True),
    Column("account_id", BigInteger, nullable=False),
    Column("channel", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),
    Index("response_owners_by_age", "created_ms"),
)

kept_responses = Table(
    "kept_responses",
    metadata,
    Column("id", String(256), primary_key=True),
    Column("account_id", BIG_INTEGER, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("before_id", String(256)),
    Column("inputs", LargeBinary),
    Column("body_memory", BigInteger),
    Column("inputs_memory", BigInteger),
    Column("stored_bytes", BigInteger, nullable=False, server_default=text("0")),
    Index("kept_responses_by_account", "account_id", "stored_bytes"),
    Index("kept_responses_by_expiry", "expires_ms"),
    Index("kept_responses_by_before", "before_id"),
)
"""Responses that their providers do not keep.

``sealed`` has the response, ``inputs`` its input since the response ``before_id``. ``body_memory`` and
``inputs_memory`` are the bytes of memory for the parsed JSON. Rows of an earlier version have no ``inputs``: ``sealed``
has all input of their conversation.
"""

alerts = Table(
    "alerts",
    metadata,
    Column("kind", String(32), primary_key=True),
    Column("subject", String(512), primary_key=True),
    Column("since_s", BigInteger, nullable=False),
    Column("open", Boolean, nullable=False),
)
"""Alerts that were sent, and those that ended within the last hour."""

sinks = Table(
    "sinks",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("cursor", Text, nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("lost", BigInteger, nullable=False),
    Column("lost_ms", BigInteger),
    Column("waiting_ms", BigInteger),
    Column("delivered_ms", BigInteger),
    Column("error", Text, nullable=False),
)
"""How far each sink has delivered the rows of requests (``domain/sink.py``)."""
