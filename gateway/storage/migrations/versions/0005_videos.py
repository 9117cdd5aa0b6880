"""Videos: jobs, webhooks of their ends, and the answers to calls that named themselves; a webhook for each key."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_DUE = sa.text("due_ms IS NOT NULL")
_OWNED = sa.text("owner != ''")
_LIVE = sa.text("state NOT IN ('completed', 'failed')")
_FAILED = sa.text("state = 'failed'")
_OVER = sa.text("over_ms IS NOT NULL")
_RUNNING = sa.text("state = 'running'")


def upgrade() -> None:
    op.add_column("keys", sa.Column("webhook_url", sa.Text))
    for make in (_make_videos, _make_prompts, _make_deliveries, _make_replays):
        make()


def downgrade() -> None:
    for table in ("replays", "deliveries", "video_prompts", "videos"):
        op.drop_table(table)
    op.drop_column("keys", "webhook_url")


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
    op.create_index("videos_by_account", "videos", ["account_id", "sequence"])
    op.create_index("videos_due", "videos", ["due_ms"], sqlite_where=_DUE, postgresql_where=_DUE)
    op.create_index("videos_owned", "videos", ["owner"], sqlite_where=_OWNED, postgresql_where=_OWNED)
    op.create_index("videos_live", "videos", ["sequence"], sqlite_where=_LIVE, postgresql_where=_LIVE)
    op.create_index("videos_failed", "videos", ["sequence"], sqlite_where=_FAILED, postgresql_where=_FAILED)
    op.create_index("videos_over", "videos", ["over_ms"], sqlite_where=_OVER, postgresql_where=_OVER)


def _make_prompts() -> None:
    op.create_table(
        "video_prompts",
        sa.Column("video_id", sa.String(64), sa.ForeignKey("videos.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("prompt", sa.Text, nullable=False),
    )


def _make_deliveries() -> None:
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
    op.create_index("deliveries_by_video", "deliveries", ["video_id", "sequence"])
    op.create_index("deliveries_due", "deliveries", ["due_ms"], sqlite_where=_DUE, postgresql_where=_DUE)
    op.create_index("deliveries_by_end", "deliveries", ["ended_ms"])


def _make_replays() -> None:
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
    op.create_index("replays_by_age", "replays", ["created_ms"])
    op.create_index("replays_running", "replays", ["owner"], sqlite_where=_RUNNING, postgresql_where=_RUNNING)
