"""Tables that bind records: a database to its secret files, a response to its account."""

from sqlalchemy import BigInteger, Column, Index, String, Table

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
