"""Tables that bind records: a database to its secret files, a response to its account, an identity to its member."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Index, LargeBinary, String, Table

from gateway.storage.schema_base import BIG, metadata

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
    Index("response_owners_by_age", "created_ms"),
)

identities = Table(
    "identities",
    metadata,
    Column("issuer", String(512), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("member_id", BIG, ForeignKey("members.id", ondelete="SET NULL")),
    Index("identities_by_member", "member_id"),
)
"""Members as OpenID Connect providers know them. A row without a member is of one that was removed."""

provider_sessions = Table(
    "provider_sessions",
    metadata,
    Column("digest", LargeBinary(32), ForeignKey("sessions.digest", ondelete="CASCADE"), primary_key=True),
    Column("provider", String(32), nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)
"""Sessions that a provider began, with its ID token, encrypted: the provider wants it back at the sign-out."""

alerts = Table(
    "alerts",
    metadata,
    Column("kind", String(32), primary_key=True),
    Column("subject", String(512), primary_key=True),
    Column("since_s", BigInteger, nullable=False),
    Column("open", Boolean, nullable=False),
)
"""Alerts that were sent, and those that ended within the last hour."""

passkeys = Table(
    "passkeys",
    metadata,
    Column("id", BIG, primary_key=True, autoincrement=True),
    Column("member_id", BIG, ForeignKey("members.id", ondelete="CASCADE"), nullable=False),
    Column("credential_id", LargeBinary(1023), nullable=False, unique=True),
    Column("public_key", LargeBinary, nullable=False),
    Column("sign_count", BigInteger, nullable=False),
    Column("name", String(64), nullable=False),
    Column("transports", JSON, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger),
    Index("passkeys_by_member", "member_id"),
    sqlite_autoincrement=True,
)
"""Public keys of members' authenticators (WebAuthn)."""
