"""Renames ``ending`` to ``outcome``, and gives blocked and cancelled requests outcomes of their own.

``upstream_failed`` becomes ``failed``.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_WRONG = sa.text("outcome NOT IN ('completed', 'client_closed', 'cancelled')")
_WORDS = """
UPDATE requests SET outcome = CASE
    WHEN error_code IN ('content_policy_violation', 'sensitive_words_detected', 'content_filter', 'moderation_blocked')
        THEN 'blocked'
    WHEN error_code IN ('request_cancelled', 'cancelled') THEN 'cancelled'
    WHEN outcome = 'upstream_failed' THEN 'failed'
    ELSE outcome END
WHERE outcome NOT IN ('completed', 'client_closed')
"""
_FORMER = sa.text("ending NOT IN ('completed', 'client_closed')")
_FORMER_WORDS = """
UPDATE requests SET outcome = CASE WHEN attempts > 0 AND outcome != 'cancelled' THEN 'upstream_failed' ELSE 'failed' END
WHERE outcome IN ('failed', 'blocked', 'cancelled')
"""


def upgrade() -> None:
    op.drop_index("requests_wrong", "requests")
    op.execute("ALTER TABLE requests RENAME COLUMN ending TO outcome")
    op.execute(_WORDS)
    op.create_index("requests_wrong", "requests", ["sequence"], sqlite_where=_WRONG, postgresql_where=_WRONG)


def downgrade() -> None:
    op.drop_index("requests_wrong", "requests")
    op.execute(_FORMER_WORDS)
    op.execute("ALTER TABLE requests RENAME COLUMN outcome TO ending")
    op.create_index("requests_wrong", "requests", ["sequence"], sqlite_where=_FORMER, postgresql_where=_FORMER)
