"""Tables of kept bodies: their index, the shared store of their segments, and the versions of data keys."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text

from gateway.storage.schema_base import metadata

bodies = Table(
    "bodies",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("account_id", BigInteger, nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("end_user", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("node", String(64), nullable=False),
    Column("segment", BigInteger),
    Column("position", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("loss", String(16), nullable=False),
    Index("bodies_by_account", "account_id", "started_ms"),
    Index("bodies_by_expiry", "node", "expires_ms"),
    Index("bodies_by_segment", "node", "segment"),
)
"""A row for each request whose bodies are kept, or could not be.

``expires_ms`` is 0 once the bodies are deleted and their bytes must be erased. ``segment`` is null if nothing could be
kept; ``loss`` says why, or is ``held`` as long as bodies in a segment are shown only if their request fails.
"""

body_segments = Table(
    "body_segments",
    metadata,
    Column("node", String(64), primary_key=True),
    Column("segment", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(64), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("moved_ms", BigInteger, nullable=False),
)
"""A row for each segment that was moved to a shared folder or a bucket. ``name`` is that of its file or object."""

body_leftovers = Table("body_leftovers", metadata, Column("name", String(64), primary_key=True))
"""The names of objects that are no segments any more, and must be removed before a deletion is complete."""

body_drafts = Table(
    "body_drafts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("node", String(64), nullable=False),
    Column("segment", BigInteger, nullable=False),
    Column("process", String(32), nullable=False),
    Column("noted_ms", BigInteger, nullable=False),
)
"""The objects that are being stored, each a copy of a segment of ``node`` that ``process`` makes.

The transaction that adds the object to ``body_segments`` removes its row. Another process that gives the object up
empties ``process``. An object without a row, or with an empty ``process``, can no longer be added. Until its row is an
hour old, an object that was given up is a leftover: the process that made the row may still store the object.
"""

body_key_versions = Table(
    "body_key_versions",
    metadata,
    Column("account_id", BigInteger, primary_key=True, autoincrement=False),
    Column("node", String(64), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("is_pending", Boolean, nullable=False),
)
"""How often the data keys of an account were destroyed: those of a node, or with ``*`` those in the shared store.

``is_pending``: a destruction was recorded and is not known to be complete.
"""

body_store_marks = Table(
    "body_store_marks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("mark", String(32), nullable=False),
)
"""One row, with the mark of this database in its shared store of bodies. A restored database has none."""
