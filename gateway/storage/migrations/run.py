"""Runs migrations over a connection that is already in a transaction: all that are wanted, or none."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest revision."""
    command.upgrade(_configure(connection), "head")


def downgrade(connection: Connection, revision: str) -> None:
    """Take the schema back to an older ``revision``; what that has no place for is deleted."""
    command.downgrade(_configure(connection), revision)


def _configure(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
