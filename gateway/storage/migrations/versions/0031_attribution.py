"""Adds the end user, the session and the tags of a request."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_NAMES = ("end_user", "session")


def upgrade() -> None:
    for name in (*_NAMES, "tags"):
        op.add_column("requests", sa.Column(name, sa.Text, nullable=False, server_default=sa.text("''")))
    for name in _NAMES:
        is_named = sa.text(f"{name} != ''")
        index = f"requests_by_{name}"
        op.create_index(index, "requests", [name, "sequence"], sqlite_where=is_named, postgresql_where=is_named)


def downgrade() -> None:
    for name in _NAMES:
        op.drop_index(f"requests_by_{name}", "requests")
    for name in ("tags", *_NAMES):
        op.drop_column("requests", name)
