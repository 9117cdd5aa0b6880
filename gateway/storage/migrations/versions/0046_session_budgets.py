"""Notifies nodes of budgets of sessions, and adds the subjects of limits for which credit is set aside."""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_DROP_TRIGGER = "DROP TRIGGER session_states_changed ON session_states"
_TRIGGER = """
CREATE CONSTRAINT TRIGGER session_states_changed AFTER INSERT OR UPDATE ON session_states
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW{} EXECUTE FUNCTION log_change('session', 'subject')
"""
_FORMER_CONDITION = " WHEN (NEW.ended_ms IS NOT NULL)"


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    op.execute(_DROP_TRIGGER)
    op.execute(_TRIGGER.format(""))
    for column in ("counter", "subject"):
        op.add_column("credit_balances", sa.Column(column, sa.Text))


def downgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for column in ("subject", "counter"):
        op.drop_column("credit_balances", column)
    op.execute(_DROP_TRIGGER)
    op.execute(_TRIGGER.format(_FORMER_CONDITION))
