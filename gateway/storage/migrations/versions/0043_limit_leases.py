"""The functions of credit leases are made anew, for subjects of limits; no table changes."""

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: see ``storage/postgres/functions.py``."""


def downgrade() -> None:
    """Do nothing: an earlier version makes its own functions with its next migration."""
