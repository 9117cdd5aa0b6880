"""The tables. Every change here needs a migration in ``migrations/versions`` and a new ``REVISION``.

Times are Unix milliseconds (``_ms``) or seconds (``_s``); amounts are nano-USD (``_nanos``).
"""

from collections.abc import Mapping

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
    TextClause,
    UniqueConstraint,
    false,
    text,
)

from gateway.storage.schema_base import BIG_INTEGER as _BIG
from gateway.storage.schema_base import INT, metadata
from gateway.storage.schema_bodies import bodies
from gateway.storage.schema_files import batches, files, upload_parts, uploads
from gateway.storage.schema_guards import alerts, fingerprints, kept_responses, response_owners, sinks
from gateway.storage.schema_members import identities, links, members, passkeys, provider_sessions, sessions
from gateway.storage.schema_rollups import failure_hours, rollups, speed_hours, split_days, usage_splits

__all__ = (
    "OLDEST", "REVISION", "accounts", "alerts", "audit", "batches", "bodies", "channels", "deliveries", "entries",
    "failure_hours", "files", "fingerprints", "identities", "kept_responses", "keys", "limit_counters", "limit_fills",
    "links", "members", "metadata", "orphan_charges", "passkeys", "provider_sessions", "replays", "requests",
    "response_owners", "retired", "rollups", "session_states", "sessions", "settings", "sinks", "speed_hours",
    "split_days", "subject_counts", "subject_usage", "upload_parts", "uploads", "usage_days", "usage_hours",
    "usage_splits", "video_prompts", "videos",
)  # fmt: skip

REVISION = "0058"
"""The newest migration; a database at this revision needs no migration, and Alembic is not imported."""
OLDEST = "0022"
"""The oldest schema whose nodes can run next to this one until they are replaced. Older nodes accept no requests."""

accounts = Table(
    "accounts",
    metadata,
    Column("id", _BIG, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("status", String(16), nullable=False),
    Column("quota_nanos", BigInteger),
    Column("quota_period", String(16), nullable=False),
    Column("quota_status", INT),
    Column("rpm", INT),
    Column("tpm", INT),
    Column("max_concurrency", INT),
    Column("burst", INT),
    Column("groups", JSON, nullable=False),
    Column("declared", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("zones", Text),
    sqlite_autoincrement=True,
)

keys = Table(
    "keys",
    metadata,
    Column("id", _BIG, primary_key=True, autoincrement=True),
    Column("account_id", _BIG, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("name", String(64), nullable=False),
    Column("digest", LargeBinary(32), nullable=False, unique=True),
    Column("last4", String(4), nullable=False),
    Column("status", String(16), nullable=False),
    Column("expires_s", BigInteger),
    Column("quota_nanos", BigInteger),
    Column("quota_period", String(16), nullable=False),
    Column("quota_status", INT),
    Column("rpm", INT),
    Column("tpm", INT),
    Column("max_concurrency", INT),
    Column("burst", INT),
    Column("models", JSON, nullable=False),
    Column("group", String(64)),
    Column("allow_ips", JSON, nullable=False),
    Column("declared", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("webhook_url", Text),
    Column("former_digest", LargeBinary(32)),
    Column("former_until_s", BigInteger),
    Column("locked", JSON, nullable=False, server_default=text("'[]'")),
    Column("end_user", Text, nullable=False, server_default=text("''")),
    Column("tags", Text, nullable=False, server_default=text("''")),
    Column("loops", JSON(none_as_null=True)),
    Column("max_session_nanos", BigInteger),
    Column("keep_bodies", String(32)),
    Column("cache_ttl_s", INT),
    Column("shows_account", Boolean, nullable=False, server_default=false()),
    Column("resumable", Boolean, nullable=False, server_default=false()),
    UniqueConstraint("account_id", "name"),
    sqlite_autoincrement=True,
)

channels = Table(
    "channels",
    metadata,
    Column("id", _BIG, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("status", String(16), nullable=False),
    Column("provider", String(64), nullable=False),
    Column("base_url", Text, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
"""``settings`` has the fields without a column of their own; ``sealed`` has the encrypted keys, headers and proxy."""

requests = Table(
    "requests",
    metadata,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("started_ms", BigInteger, nullable=False),
    Column("settled_ms", BigInteger, nullable=False, server_default="0"),
    Column("operation", String(32), nullable=False),
    Column("account_id", BigInteger, nullable=False, server_default="0"),
    Column("account", String(64), nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("key_name", String(64), nullable=False),
    Column("model", String(256), nullable=False),
    Column("channel", String(64)),
    Column("status", INT, nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("error_code", String(128)),
    Column("stream", Boolean, nullable=False),
    Column("attempts", INT, nullable=False),
    Column("prompt_tokens", INT, nullable=False),
    Column("completion_tokens", INT, nullable=False),
    Column("cached_tokens", INT, nullable=False),
    Column("usage_source", String(16), nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    Column("reserved_nanos", BigInteger, nullable=False, server_default="0"),
    Column("overrun_nanos", BigInteger, nullable=False, server_default="0"),
    Column("first_byte_ms", INT),
    Column("total_ms", INT, nullable=False),
    Column("client_request_id", String(64)),
    Column("tried", Text, nullable=False, server_default=text("''")),
    Column("images", INT, nullable=False, server_default="0"),
    Column("duration_ms", INT, nullable=False, server_default="0"),
    Column("characters", INT, nullable=False, server_default="0"),
    Column("error", Text, nullable=False, server_default=text("''")),
    Column("unpriced", Boolean, nullable=False, server_default=false()),
    Column("batch_id", String(64)),
    Column("batch_multiplier_ppm", INT, nullable=False, server_default=text("1000000")),
    Column("adapted", Text, nullable=False, server_default=text("''")),
    Column("served_model", Text, nullable=False, server_default=text("''")),
    Column("units", Text, nullable=False, server_default=text("''")),
    Column("route", Text, nullable=False, server_default=text("''")),
    Column("saved_nanos", BigInteger, nullable=False, server_default="0"),
    Column("shadow", Boolean, nullable=False, server_default=false()),
    Column("end_user", Text, nullable=False, server_default=text("''")),
    Column("session", Text, nullable=False, server_default=text("''")),
    Column("tags", Text, nullable=False, server_default=text("''")),
    Column("queued_ms", INT, nullable=False, server_default=text("0")),
    Column("limit_charges", Text, nullable=False, server_default=text("''")),
    Column("replay_of", String(64), nullable=False, server_default=text("''")),
    Column("cache", String(8), nullable=False, server_default=text("''")),
    Column("agreement_ppm", INT),
    Column("agreed_on", String(32), nullable=False, server_default=text("''")),
    Index("requests_by_key", "key_id", "sequence"),
    Index("requests_by_model", "model", "sequence"),
    Index("requests_by_account", "account_id", "sequence"),
    sqlite_autoincrement=True,
)
# The condition of a partial index only helps queries that repeat it literally, without parameters. `postgresql_where`
# would import the PostgreSQL dialect and its drivers at every start.
NOT_SUCCESSFUL = text("outcome NOT IN ('completed', 'client_closed', 'cancelled')")
Index("requests_wrong", requests.c.sequence, sqlite_where=NOT_SUCCESSFUL)
Index("requests_by_batch", requests.c.batch_id, sqlite_where=text("batch_id IS NOT NULL"))
IS_NAMED: Mapping[str, TextClause] = {name: text(f"{name} != ''") for name in ("end_user", "session")}
"""The conditions of the indexes of requests by end user and by session."""
for _name, _is_named in IS_NAMED.items():
    Index(f"requests_by_{_name}", requests.c[_name], requests.c.sequence, sqlite_where=_is_named)
_OF_SESSION = requests.c.session, requests.c.account_id, requests.c.sequence
Index("requests_by_account_session", *_OF_SESSION, sqlite_where=IS_NAMED["session"])

entries = Table(
    "entries",
    metadata,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("account_id", BigInteger, nullable=False),
    Column("key_id", BigInteger),
    Column("amount_nanos", BigInteger, nullable=False),
    Column("request_id", String(64)),
    Column("reference", String(64)),
    Column("note", String(256)),
    sqlite_autoincrement=True,
)
"""Charges and credits; rows are only added. Charges have a ``request_id``; credits may have a reference and a note."""

_CREDITS = entries.c.kind != "charge"
Index("entries_of_credit", entries.c.account_id, entries.c.key_id, entries.c.sequence, sqlite_where=_CREDITS)
Index("entries_by_account", entries.c.account_id, entries.c.at_ms)

usage_days = Table(
    "usage_days",
    metadata,
    Column("day", INT, primary_key=True),
    Column("account_id", BigInteger, primary_key=True),
    Column("key_id", BigInteger, primary_key=True),
    Column("model", String(256), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The sums of each day (UTC, days since 1970), written with the summed rows; startup reads balances from them."""

usage_hours = Table(
    "usage_hours",
    metadata,
    Column("span", INT, primary_key=True),
    Column("hour", INT, primary_key=True),
    Column("account_id", BigInteger, primary_key=True),
    Column("key_id", BigInteger, primary_key=True),
    Column("model", String(256), primary_key=True),
    Column("channel", String(64), primary_key=True),
    Column("status", INT, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    Column("total_ms", BigInteger, nullable=False),
    Column("saved_nanos", BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)
"""The sums of each hour (``span`` 1; UTC, hours since 1970) and each day (24; its first hour), refused requests too."""

subject_usage = Table(
    "subject_usage",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("day", INT, primary_key=True),
    Column("value", Text, primary_key=True),
    Column("account_id", BigInteger, primary_key=True),
    Column("key_id", BigInteger, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    Column("total_ms", BigInteger, nullable=False),
    Column("saved_nanos", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The sums of each day by user, session and tag (``name``). The empty value sums those beyond a day's bound."""

subject_counts = Table(
    "subject_counts",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("day", INT, primary_key=True),
    Column("distinct_values", INT, nullable=False),
    Column("max_values", INT, nullable=False),
    sqlite_with_rowid=False,
)
"""How many values have sums of their own, and how many may. The tag without a name counts the names of tags."""

retired = Table(
    "retired",
    metadata,
    Column("account_id", BigInteger, primary_key=True),
    Column("key_id", BigInteger, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""The costs of each key's deleted old rows, and when the last was settled: none of them is charged again."""

limit_counters = Table(
    "limit_counters",
    metadata,
    Column("counter", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("start_s", BigInteger, primary_key=True),
    Column("spent_nanos", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""What the subjects of limits have spent, by the starts of windows or slices; written with the summed rows."""

limit_fills = Table(
    "limit_fills",
    metadata,
    Column("counter", Text, primary_key=True),
    Column("keys", Text, nullable=False),
    Column("until_s", BigInteger),
    *(Column(name, BigInteger, nullable=False) for name in ("created_s", "since_s", "counted_until")),
    Column("state", String(16), nullable=False),
    sqlite_with_rowid=False,
)
"""How far the requests before a limit are counted for it (``limit_fills.py``): up to the sequence ``counted_until``."""

orphan_charges = Table(
    "orphan_charges",
    metadata,
    Column("node", String(64), primary_key=True),
    *(Column(name, Text, primary_key=True) for name in ("counter", "subject")),
    *(Column(name, BigInteger, primary_key=name == "start_s", nullable=False) for name in ("start_s", "spent_nanos")),
    sqlite_with_rowid=False,
)
"""What was set aside for dead nodes. Until its node comes back, it counts under limits as if it were spent."""

session_states = Table(
    "session_states",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("account_id", BigInteger, nullable=False),
    Column("limit_nanos", BigInteger),
    Column("status", INT),
    Column("changed_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Index("session_states_by_change", "changed_ms"),
    sqlite_with_rowid=False,
)
"""The sessions with a budget (``limit_nanos``), and those that were ended. ``subject`` is that of ``limit_counters``.

``status`` is the HTTP status of a refusal; NULL: the default.
"""

audit = Table(
    "audit",
    metadata,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor_kind", String(16), nullable=False),
    Column("actor", String(64), nullable=False),
    Column("member_id", BigInteger),
    Column("address", String(64), nullable=False),
    Column("action", String(64), nullable=False),
    Column("account_id", BigInteger),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Index("audit_by_account", "account_id", "sequence"),
    sqlite_autoincrement=True,
)

settings = Table(
    "settings",
    metadata,
    Column("path", String(128), primary_key=True),
    Column("value", JSON, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
)
"""Settings that were changed at run time; the file and the environment take precedence."""

# Literal conditions for partial indexes, as above.
HAS_DUE_TIME = text("due_ms IS NOT NULL")
HAS_OWNER = text("owner != ''")
IS_LIVE = text("state NOT IN ('completed', 'failed')")
HAS_FAILED = text("state = 'failed'")
HAS_OVERRUN = text("over_ms IS NOT NULL")
RUNNING = text("state = 'running'")

videos = Table(
    "videos",
    metadata,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("account_id", BigInteger, nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("request_id", String(64), nullable=False, unique=True),
    Column("model", String(256), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("due_ms", BigInteger),
    Column("channel", String(64), nullable=False),
    Column("progress", INT, nullable=False),
    Column("polls", INT, nullable=False),
    Column("failures", INT, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger, nullable=False),
    Column("completed_ms", BigInteger),
    Column("expires_ms", BigInteger),
    Column("over_ms", BigInteger),
    Column("held_nanos", BigInteger, nullable=False),
    Column("cost_nanos", BigInteger, nullable=False),
    Column("provider", String(64), nullable=False),
    Column("wire", String(64), nullable=False),
    Column("upstream_model", Text, nullable=False),
    Column("upstream_id", Text),
    Column("key_print", String(64), nullable=False),
    Column("media_id", String(64)),
    Column("media_bytes", BigInteger, nullable=False),
    Column("media_type", String(64), nullable=False),
    Column("remixed_from", String(64)),
    Column("size", Text, nullable=False),
    Column("seconds", Text, nullable=False),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("webhook_url", Text),
    Column("receipt", Text, nullable=False),
    Column("clue", Text),
    Column("status_words", String(16), nullable=False, server_default="spec"),
    Index("videos_by_account", "account_id", "sequence"),
    Index("videos_due", "due_ms", sqlite_where=HAS_DUE_TIME),
    Index("videos_owned", "owner", sqlite_where=HAS_OWNER),
    Index("videos_live", "sequence", sqlite_where=IS_LIVE),
    Index("videos_failed", "sequence", sqlite_where=HAS_FAILED),
    Index("videos_over", "over_ms", sqlite_where=HAS_OVERRUN),
    sqlite_autoincrement=True,
)
"""Jobs. ``receipt`` is the row of the request that created the job, as JSON; queries use the separate columns.

Long columns come last, so that a search does not read them. Deleting a key or an account deletes no job.
"""

video_prompts = Table(
    "video_prompts",
    metadata,
    Column("video_id", String(64), ForeignKey("videos.id", ondelete="CASCADE"), primary_key=True),
    Column("prompt", Text, nullable=False),
)
"""The prompts of jobs, written once. The job's row is rewritten completely at every answer of its provider."""

deliveries = Table(
    "deliveries",
    metadata,
    Column("sequence", _BIG, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("video_id", String(64), nullable=False),
    Column("account_id", BigInteger, nullable=False),
    Column("key_id", BigInteger, nullable=False),
    Column("event", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempts", INT, nullable=False),
    Column("answer", INT),
    Column("ended_ms", BigInteger),
    Column("due_ms", BigInteger),
    Column("owner", String(64), nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("error", Text),
    Column("url", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("deliveries_by_video", "video_id", "sequence"),
    Index("deliveries_by_account", "account_id", "sequence"),
    Index("deliveries_due", "due_ms", sqlite_where=HAS_DUE_TIME),
    Index("deliveries_by_end", "ended_ms"),
    sqlite_autoincrement=True,
)

replays = Table(
    "replays",
    metadata,
    Column("key_id", BigInteger, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("digest", String(128), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("owner", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("status", INT, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("replays_by_age", "created_ms"),
    Index("replays_running", "owner", sqlite_where=RUNNING),
)
