"""The functions of credit leases are made anew after this migration; it changes no table."""

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: see ``storage/postgres/functions.py``."""


def downgrade() -> None:
    """Do nothing: an earlier version makes its own functions with its next migration."""
