"""Tables of sums that charts are drawn from: failures by cause, histograms of durations, and splits of past days."""

from sqlalchemy import BigInteger, Column, String, Table, Text

from gateway.domain.traffic import SUMMED_FIELDS
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
"""The progress of jobs that sum rows: from ``first_cursor`` up to ``cursor``, and back to the sequence ``before``.

``since_ms`` is when the oldest summed row was settled. ``usage_splits.py`` uses ``before`` to count reversals.
"""

_SPLIT_LABELS = {"filter_by": 16, "value": 256, "split_by": 16, "label": 256}
usage_splits = Table(
    "usage_splits",
    metadata,
    Column("day", INT, primary_key=True),
    *(Column(name, String(size), primary_key=True) for name, size in _SPLIT_LABELS.items()),
    *(Column(name, BigInteger, nullable=False) for name in SUMMED_FIELDS),
    sqlite_with_rowid=False,
)
"""The sums of past days for charts (``usage_splits.py``): of the requests that ``value`` selects, by each ``label``."""
split_days = Table("split_days", metadata, Column("day", INT, primary_key=True), sqlite_with_rowid=False)
"""The days (UTC, days since 1970) whose ``usage_splits`` are the sums of all stored requests."""
