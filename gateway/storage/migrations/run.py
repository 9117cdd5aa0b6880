"""Runs migrations over a connection that is already in a transaction: all that are wanted, or none."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

_CREATED = re.compile(r'create_table\(\s*"(\w+)"')


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest revision."""
    _run(connection, lambda revision, _: open_scripts()._upgrade_revs("head", revision))  # noqa: SLF001 - see ``_run``


def upgrade_once(connection: Connection) -> None:
    """Run the next migration while other nodes use the database.

    Leave its indexes of tables with rows (``online.py``) and its sums of stored requests (``backfill.py``) for later.
    """
    steps = open_scripts()._upgrade_revs  # noqa: SLF001 - see ``_run``
    _run(connection, lambda revision, _: steps("+1", revision), is_in_use=True)


def downgrade(connection: Connection, revision: str) -> None:
    """Take the schema back to an older ``revision``, and delete data without a place in it."""
    steps = open_scripts()._downgrade_revs  # noqa: SLF001 - see ``_run``
    _run(connection, lambda current, _: steps(revision, current))


def list_created_tables(revision: str | None) -> Sequence[str]:
    """Return the tables that the migrations after ``revision`` create; for None, those that all migrations create."""
    scripts = open_scripts().iterate_revisions("head", revision or "base")
    return [name for script in scripts for name in _CREATED.findall(Path(script.path).read_text("utf-8"))]


@cache
def open_scripts() -> ScriptDirectory:
    """Return the migrations, which are loaded once per process."""
    config = _configure()
    return ScriptDirectory.from_config(config)


def _configure() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


def _run(connection: Connection, list_steps: Any, *, is_in_use: bool = False) -> None:
    """Run migrations like the functions of ``alembic.command``, but without loading all of them anew each time."""
    config = _configure()
    config.attributes["connection"] = connection
    config.attributes["is_in_use"] = is_in_use
    scripts = open_scripts()
    with EnvironmentContext(config, scripts, fn=list_steps):
        scripts.run_env()
