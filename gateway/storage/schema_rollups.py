"""Tables of sums that charts are drawn from: failures by cause, and the histograms of durations."""

from sqlalchemy import BigInteger, Column, String, Table, Text

from gateway.storage.schema_base import INT, metadata

failure_hours = Table(
    "failure_hours",
    metadata,
    *(Column(name, INT, primary_key=True) for name in ("span", "hour")),
    *(Column(name, BigInteger, primary_key=True) for name in ("account_id", "key_id")),
    *(Column(name, String(256), primary_key=True) for name in ("model", "channel", "outcome", "code")),
    Column("requests", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The requests that failed or were refused in each hour and day (``span`` as in ``usage_hours``), by their cause."""

speed_hours = Table(
    "speed_hours",
    metadata,
    *(Column(name, INT, primary_key=True) for name in ("span", "hour")),
    *(Column(name, String(256), primary_key=True) for name in ("kind", "name")),
    Column("account_id", BigInteger, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("latency", "first_byte", "output_rate")),
    sqlite_with_rowid=False,
)
"""Histograms (``domain/speed.py``) of each hour and day for all requests, and each account, key, model and channel."""

rollups = Table(
    "rollups",
    metadata,
    Column("name", String(32), primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("cursor", "first_cursor")),
    *(Column(name, BigInteger, nullable=name == "since_ms") for name in ("before", "since_ms")),
)
"""What a job has summed: rows from ``first_cursor`` to ``cursor``, and earlier ones back to ``before``.

``since_ms``: when the earliest of these rows was settled.
"""
