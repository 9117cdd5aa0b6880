"""The tables that say what belongs together: a database and its secret files."""

from sqlalchemy import Column, String, Table

from gateway.store.schema_base import metadata

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
)
"""Of the secret files that this database was made with; see ``identity.py``."""
