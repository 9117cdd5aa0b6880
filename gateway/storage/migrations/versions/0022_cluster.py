"""Adds what nodes of a cluster share besides credit.

These are model lists, short-lived secrets, failed sign-ins, notes of requests, owners of batches, the transactions of
rows, and more columns of nodes and their beats. Only the owner of a batch is on SQLite, too.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

# Rows become visible in the order of their commits, and not in that of `sequence`: followers go by this column.
_TXID = "ALTER TABLE requests ADD COLUMN txid bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint)"
_MODEL_LISTS = """
CREATE TABLE model_lists (
  channel text COLLATE "C" PRIMARY KEY,
  provider text COLLATE "C" NOT NULL,
  base_url text COLLATE "C" NOT NULL,
  models jsonb NOT NULL,
  fetched_ms bigint NOT NULL,
  error text COLLATE "C"
)
"""
_SHARED_VALUES = """
CREATE TABLE shared_values (
  kind text COLLATE "C" NOT NULL,
  name bytea NOT NULL,
  key_id bigint,
  value bytea NOT NULL,
  expires_ms bigint NOT NULL,
  PRIMARY KEY (kind, name)
)
"""
_FAILED_SIGN_INS = """
CREATE TABLE failed_sign_ins (
  name bytea PRIMARY KEY,
  failures bigint NOT NULL,
  at_ms bigint NOT NULL
) WITH (fillfactor = 50)
"""
# What a node without a disk of its own has begun, in place of its journal's entries.
_REQUEST_NOTES = """
CREATE TABLE request_notes (
  request_id text COLLATE "C" PRIMARY KEY,
  node text COLLATE "C" NOT NULL,
  note bytea NOT NULL,
  at_ms bigint NOT NULL
)
"""
_TRIGGER = """
CREATE CONSTRAINT TRIGGER model_lists_changed AFTER INSERT OR UPDATE OR DELETE ON model_lists
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION log_change('model_list', 'channel')
"""
_UPGRADE = (
    _TXID,
    "CREATE INDEX requests_by_txid ON requests USING brin (txid) WITH (pages_per_range = 8, autosummarize = on)",
    "CREATE INDEX usage_days_by_key ON usage_days (key_id, day)",
    "CREATE INDEX usage_days_by_account ON usage_days (account_id, day)",
    "ALTER TABLE nodes ADD COLUMN ended_ms bigint, ADD COLUMN journal text COLLATE \"C\" NOT NULL DEFAULT 'disk'",
    "ALTER TABLE beats ADD COLUMN detail jsonb NOT NULL DEFAULT '{}'",
    _MODEL_LISTS,
    _SHARED_VALUES,
    "CREATE INDEX shared_values_by_age ON shared_values (expires_ms)",
    _FAILED_SIGN_INS,
    _REQUEST_NOTES,
    "CREATE INDEX request_notes_by_node ON request_notes (node)",
    _TRIGGER,
)
_DOWNGRADE = (
    "DROP TABLE model_lists, shared_values, failed_sign_ins, request_notes",
    "ALTER TABLE beats DROP COLUMN detail",
    "ALTER TABLE nodes DROP COLUMN ended_ms, DROP COLUMN journal",
    "DROP INDEX usage_days_by_account",
    "DROP INDEX usage_days_by_key",
    "ALTER TABLE requests DROP COLUMN txid",
)


def upgrade() -> None:
    op.add_column("batches", sa.Column("owner", sa.String(64), nullable=False, server_default=sa.text("''")))
    if op.get_bind().dialect.name == "postgresql":
        for statement in _UPGRADE:
            op.execute(statement)


def downgrade() -> None:
    op.drop_column("batches", "owner")
    if op.get_bind().dialect.name == "postgresql":
        for statement in _DOWNGRADE:
            op.execute(statement)
