"""The schema of version 0.7, which is also that of 0.6: the oldest that this version can upgrade."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_INDEXES = (
    ("requests_by_key", "requests", ["key_id", "sequence"], None),
    ("requests_by_model", "requests", ["model", "sequence"], None),
    ("entries_of_credit", "entries", ["account_id", "key_id", "sequence"], "kind != 'charge'"),
    ("videos_by_account", "videos", ["account_id", "sequence"], None),
    ("videos_due", "videos", ["due_ms"], "due_ms IS NOT NULL"),
    ("videos_owned", "videos", ["owner"], "owner != ''"),
    ("videos_live", "videos", ["sequence"], "state NOT IN ('completed', 'failed')"),
    ("videos_failed", "videos", ["sequence"], "state = 'failed'"),
    ("videos_over", "videos", ["over_ms"], "over_ms IS NOT NULL"),
    ("deliveries_by_video", "deliveries", ["video_id", "sequence"], None),
    ("deliveries_due", "deliveries", ["due_ms"], "due_ms IS NOT NULL"),
    ("deliveries_by_end", "deliveries", ["ended_ms"], None),
    ("replays_by_age", "replays", ["created_ms"], None),
    ("replays_running", "replays", ["owner"], "state = 'running'"),
    ("requests_by_account", "requests", ["account_id", "sequence"], None),
    ("deliveries_by_account", "deliveries", ["account_id", "sequence"], None),
    ("requests_wrong", "requests", ["sequence"], "ending NOT IN ('completed', 'client_closed')"),
    ("sessions_by_member", "sessions", ["member_id"], None),
    ("audit_by_account", "audit", ["account_id", "sequence"], None),
)
"""The name, the table, the columns and the condition of each index."""


def upgrade() -> None:
    for make in (_make_accounts, _make_requests, _make_ledger, _make_videos, _make_members, _make_console):
        make()
    for name, table, columns, condition in _INDEXES:
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _make_accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("quota_nanos", sa.BigInteger),
        sa.Column("quota_period", sa.String(16), nullable=False),
        sa.Column("quota_status", sa.Integer),
        sa.Column("rpm", sa.Integer),
        sa.Column("tpm", sa.Integer),
        sa.Column("max_concurrency", sa.Integer),
        sa.Column("groups", sa.JSON, nullable=False),
        sa.Column("declared", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "keys",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("account_id", _BIG, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False, unique=True),
        sa.Column("last4", sa.String(4), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("expires_s", sa.BigInteger),
        sa.Column("quota_nanos", sa.BigInteger),
        sa.Column("quota_period", sa.String(16), nullable=False),
        sa.Column("quota_status", sa.Integer),
        sa.Column("rpm", sa.Integer),
        sa.Column("tpm", sa.Integer),
        sa.Column("max_concurrency", sa.Integer),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("group", sa.String(64)),
        sa.Column("allow_ips", sa.JSON, nullable=False),
        sa.Column("declared", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("webhook_url", sa.Text),
        sa.Column("former_digest", sa.LargeBinary(32)),
        sa.Column("former_until_s", sa.BigInteger),
        sa.UniqueConstraint("account_id", "name"),
        sqlite_autoincrement=True,
    )


def _make_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("operation", sa.String(32), nullable=False),
        sa.Column("account", sa.String(64), nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("key_name", sa.String(64), nullable=False),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("channel", sa.String(64)),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("ending", sa.String(32), nullable=False),
        sa.Column("error_code", sa.String(128)),
        sa.Column("stream", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("completion_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("usage_source", sa.String(16), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sa.Column("first_byte_ms", sa.Integer),
        sa.Column("total_ms", sa.Integer, nullable=False),
        sa.Column("client_request_id", sa.String(64)),
        sa.Column("settled_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("account_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reserved_nanos", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("overrun_nanos", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("tried", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("images", sa.Integer, nullable=False, server_default="0"),
        sa.Column("duration_ms", sa.Integer, nullable=False, server_default="0"),
        sa.Column("characters", sa.Integer, nullable=False, server_default="0"),
        sa.Column("error", sa.Text, nullable=False, server_default=sa.text("''")),
        sqlite_autoincrement=True,
    )


def _make_ledger() -> None:
    op.create_table(
        "entries",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("account_id", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.BigInteger),
        sa.Column("amount_nanos", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("reference", sa.String(64)),
        sa.Column("note", sa.String(256)),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "usage_days",
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("account_id", sa.BigInteger, primary_key=True),
        sa.Column("key_id", sa.BigInteger, primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage_hours",
        sa.Column("span", sa.Integer, primary_key=True),
        sa.Column("hour", sa.Integer, primary_key=True),
        sa.Column("account_id", sa.BigInteger, primary_key=True),
        sa.Column("key_id", sa.BigInteger, primary_key=True),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("channel", sa.String(64), primary_key=True),
        sa.Column("status", sa.Integer, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("failed", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sa.Column("total_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "retired",
        sa.Column("account_id", sa.BigInteger, primary_key=True),
        sa.Column("key_id", sa.BigInteger, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )


def _make_videos() -> None:
    op.create_table(
        "videos",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("account_id", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False, unique=True),
        sa.Column("model", sa.String(256), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger),
        sa.Column("channel", sa.String(64), nullable=False),
        sa.Column("progress", sa.Integer, nullable=False),
        sa.Column("polls", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
        sa.Column("completed_ms", sa.BigInteger),
        sa.Column("expires_ms", sa.BigInteger),
        sa.Column("over_ms", sa.BigInteger),
        sa.Column("held_nanos", sa.BigInteger, nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("wire", sa.String(64), nullable=False),
        sa.Column("upstream_model", sa.Text, nullable=False),
        sa.Column("upstream_id", sa.Text),
        sa.Column("key_print", sa.String(64), nullable=False),
        sa.Column("media_id", sa.String(64)),
        sa.Column("media_bytes", sa.BigInteger, nullable=False),
        sa.Column("media_type", sa.String(64), nullable=False),
        sa.Column("remixed_from", sa.String(64)),
        sa.Column("size", sa.Text, nullable=False),
        sa.Column("seconds", sa.Text, nullable=False),
        sa.Column("error_code", sa.Text),
        sa.Column("error_message", sa.Text),
        sa.Column("webhook_url", sa.Text),
        sa.Column("receipt", sa.Text, nullable=False),
        sa.Column("clue", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "video_prompts",
        sa.Column("video_id", sa.String(64), sa.ForeignKey("videos.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("prompt", sa.Text, nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String(64), nullable=False, unique=True),
        sa.Column("video_id", sa.String(64), nullable=False),
        sa.Column("account_id", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.BigInteger, nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("answer", sa.Integer),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("due_ms", sa.BigInteger),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "replays",
        sa.Column("key_id", sa.BigInteger, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("digest", sa.String(128), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("media_type", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )


def _make_members() -> None:
    op.create_table(
        "members",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("account_id", _BIG, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("passphrase", sa.Text, nullable=False),
        sa.Column("totp", sa.LargeBinary),
        sa.Column("totp_step", sa.BigInteger, nullable=False),
        sa.Column("recovery", sa.JSON, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("signed_in_ms", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("member_id", _BIG, sa.ForeignKey("members.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("agent", sa.String(256), nullable=False),
    )
    op.create_table(
        "links",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("account_id", _BIG, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("member_id", _BIG, sa.ForeignKey("members.id", ondelete="CASCADE")),
        sa.Column("created_by", sa.String(64), nullable=False),
    )


def _make_console() -> None:
    op.create_table(
        "channels",
        sa.Column("id", _BIG, primary_key=True, autoincrement=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("base_url", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("sequence", _BIG, primary_key=True, autoincrement=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor_kind", sa.String(16), nullable=False),
        sa.Column("actor", sa.String(64), nullable=False),
        sa.Column("member_id", sa.BigInteger),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("account_id", sa.BigInteger),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "settings",
        sa.Column("path", sa.String(128), primary_key=True),
        sa.Column("value", sa.JSON, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
