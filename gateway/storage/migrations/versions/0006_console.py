"""The console: members, sessions, links, the audit trail, settings; hours of usage, and what makes long lists quick."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_WRONG = sa.text("ending NOT IN ('completed', 'client_closed')")
_SUM_UP_HOURS = """
INSERT INTO usage_hours
SELECT 1, settled_ms / 3600000, account_id, key_id,
       CASE WHEN attempts = 0 AND error_code IN ('model_not_found', 'model_not_allowed') THEN '' ELSE model END,
       COALESCE(channel, ''), status,
       COUNT(*), SUM(CASE WHEN ending NOT IN ('completed', 'client_closed') THEN 1 ELSE 0 END),
       SUM(prompt_tokens), SUM(completion_tokens), SUM(cached_tokens), SUM(cost_nanos), SUM(total_ms)
FROM requests GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
_SUM_UP_DAYS = """
INSERT INTO usage_hours
SELECT 24, hour / 24 * 24, account_id, key_id, model, channel, status, SUM(requests), SUM(failed),
       SUM(prompt_tokens), SUM(completion_tokens), SUM(cached_tokens), SUM(cost_nanos), SUM(total_ms)
FROM usage_hours WHERE span = 1 GROUP BY 1, 2, 3, 4, 5, 6, 7
"""


def upgrade() -> None:
    op.add_column("keys", sa.Column("former_digest", sa.LargeBinary(32)))
    op.add_column("keys", sa.Column("former_until_s", sa.BigInteger))
    op.add_column("requests", sa.Column("error", sa.Text, nullable=False, server_default=sa.text("''")))
    op.create_index("requests_by_account", "requests", ["account_id", "sequence"])
    op.create_index("deliveries_by_account", "deliveries", ["account_id", "sequence"])
    op.create_index("requests_wrong", "requests", ["sequence"], sqlite_where=_WRONG, postgresql_where=_WRONG)
    for make in (_make_sums, _make_members, _make_sessions, _make_links, _make_audit, _make_settings):
        make()


def downgrade() -> None:
    for table in ("settings", "audit", "links", "sessions", "members", "retired", "usage_hours"):
        op.drop_table(table)
    op.drop_index("requests_wrong", "requests")
    op.drop_index("deliveries_by_account", "deliveries")
    op.drop_index("requests_by_account", "requests")
    op.drop_column("requests", "error")
    op.drop_column("keys", "former_until_s")
    op.drop_column("keys", "former_digest")


def _make_sums() -> None:
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
    op.execute(_SUM_UP_HOURS)
    op.execute(_SUM_UP_DAYS)
    op.create_table(
        "retired",
        sa.Column("account_id", sa.BigInteger, primary_key=True),
        sa.Column("key_id", sa.BigInteger, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("cost_nanos", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
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


def _make_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary(32), primary_key=True),
        sa.Column("member_id", _BIG, sa.ForeignKey("members.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("agent", sa.String(256), nullable=False),
    )
    op.create_index("sessions_by_member", "sessions", ["member_id"])


def _make_links() -> None:
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


def _make_audit() -> None:
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
    op.create_index("audit_by_account", "audit", ["account_id", "sequence"])


def _make_settings() -> None:
    op.create_table(
        "settings",
        sa.Column("path", sa.String(128), primary_key=True),
        sa.Column("value", sa.JSON, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
    )
