"""Adds the budgets of sessions, and which sessions were ended."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

# Other nodes need to know of ended sessions only: budgets are opened too often to wake them each time.
_TRIGGER = """
CREATE CONSTRAINT TRIGGER session_states_changed AFTER INSERT OR UPDATE ON session_states
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.ended_ms IS NOT NULL)
EXECUTE FUNCTION log_change('session', 'subject')
"""


def upgrade() -> None:
    op.create_table(
        "session_states",
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("account_id", sa.BigInteger, nullable=False),
        sa.Column("limit_nanos", sa.BigInteger),
        sa.Column("status", sa.Integer),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sqlite_with_rowid=False,
    )
    op.create_index("session_states_by_change", "session_states", ["changed_ms"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_TRIGGER)


def downgrade() -> None:
    op.drop_table("session_states")
