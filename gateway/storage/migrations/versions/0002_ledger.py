"""The ledger: entries, the sums of each day, and on each request whose account it was and what was held for it.

What earlier requests cost becomes charges, so that no cap begins at nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    for name in ("settled_ms", "account_id", "reserved_nanos", "overrun_nanos"):
        op.add_column("requests", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.execute(
        "UPDATE requests SET settled_ms = started_ms + total_ms, account_id = COALESCE("
        "(SELECT account_id FROM keys WHERE keys.id = requests.key_id), "
        "(SELECT id FROM accounts WHERE accounts.name = requests.account), 0)",
    )
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
    of_credit = sa.text("kind != 'charge'")
    op.create_index(
        "entries_of_credit",
        "entries",
        ["account_id", "key_id", "sequence"],
        sqlite_where=of_credit,
        postgresql_where=of_credit,
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
    op.execute(
        "INSERT INTO entries (at_ms, kind, account_id, key_id, amount_nanos, request_id) "
        "SELECT settled_ms, 'charge', account_id, key_id, cost_nanos, id FROM requests WHERE cost_nanos > 0 "
        "ORDER BY sequence",
    )
    op.execute(
        "INSERT INTO usage_days (day, account_id, key_id, model, requests, prompt_tokens, completion_tokens, "
        "cached_tokens, cost_nanos) "
        "SELECT settled_ms / 86400000, account_id, key_id, model, COUNT(*), SUM(prompt_tokens), "
        "SUM(completion_tokens), SUM(cached_tokens), SUM(cost_nanos) FROM requests WHERE attempts > 0 "
        "GROUP BY settled_ms / 86400000, account_id, key_id, model",
    )


def downgrade() -> None:
    op.drop_table("usage_days")
    op.drop_table("entries")
    for name in ("settled_ms", "account_id", "reserved_nanos", "overrun_nanos"):
        op.drop_column("requests", name)
