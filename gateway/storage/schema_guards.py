"""Tables that guard: a database's secret files, the owners of responses, and the alerts that were sent."""

from sqlalchemy import BigInteger, Boolean, Column, Index, String, Table

from gateway.storage.schema_base import metadata

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

alerts = Table(
    "alerts",
    metadata,
    Column("kind", String(32), primary_key=True),
    Column("subject", String(512), primary_key=True),
    Column("since_s", BigInteger, nullable=False),
    Column("open", Boolean, nullable=False),
)
"""Alerts that were sent, and those that ended within the last hour."""
