"""Tables of members: their sessions, links, passkeys, and identities at sign-in providers."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Index, LargeBinary, String, Table, Text, false

from gateway.storage.schema_base import BIG_INTEGER, metadata

members = Table(
    "members",
    metadata,
    Column("id", BIG_INTEGER, primary_key=True, autoincrement=True),
    Column("account_id", BIG_INTEGER, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(64), nullable=False, unique=True),
    Column("role", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("passphrase", Text, nullable=False),
    Column("totp", LargeBinary),
    Column("totp_step", BigInteger, nullable=False),
    Column("recovery", JSON, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("signed_in_ms", BigInteger),
    Column("may_read_bodies", Boolean, nullable=False, server_default=false()),
    sqlite_autoincrement=True,
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("member_id", BIG_INTEGER, ForeignKey("members.id", ondelete="CASCADE"), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    Column("address", String(64), nullable=False),
    Column("agent", String(256), nullable=False),
    Index("sessions_by_member", "member_id"),
)

links = Table(
    "links",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("account_id", BIG_INTEGER, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("role", String(16), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("member_id", BIG_INTEGER, ForeignKey("members.id", ondelete="CASCADE")),
    Column("created_by", String(64), nullable=False),
)

identities = Table(
    "identities",
    metadata,
    Column("issuer", String(512), primary_key=True),
    Column("subject", String(255), primary_key=True),
    Column("member_id", BIG_INTEGER, ForeignKey("members.id", ondelete="SET NULL")),
    Index("identities_by_member", "member_id"),
)
"""Members as OpenID Connect providers know them. A row without a member belongs to a removed member."""

provider_sessions = Table(
    "provider_sessions",
    metadata,
    Column("digest", LargeBinary(32), ForeignKey("sessions.digest", ondelete="CASCADE"), primary_key=True),
    Column("provider", String(32), nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)
"""Sessions begun by a provider, with its encrypted ID token, which the provider expects back at sign-out."""

passkeys = Table(
    "passkeys",
    metadata,
    Column("id", BIG_INTEGER, primary_key=True, autoincrement=True),
    Column("member_id", BIG_INTEGER, ForeignKey("members.id", ondelete="CASCADE"), nullable=False),
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
