"""Databases as every released schema left them: ``tests/storage/fixtures/NNNN.sql``."""

import hashlib
import os
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import gateway.storage.migrations
from gateway.storage.data_folder import SECRETS
from gateway.storage.schema_version import RELEASES

FIXTURES = Path(__file__).parents[1] / "storage" / "fixtures"
REVISIONS = tuple(sorted(path.stem for path in FIXTURES.glob("*.sql")))
RELEASED = (*sorted({*RELEASES.values()}), REVISIONS[-1])
"""The schemas that operators have: those of releases, oldest first, and the newest one."""


def find_secret(name: str) -> bytes:
    """The secret file that belongs to every fixture."""
    return hashlib.sha256(f"the {name} of the fixtures".encode()).digest()


def load_fixture(revision: str, path: Path) -> Path:
    """Make the database of a fixture at ``path``."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript((FIXTURES / f"{revision}.sql").read_text())
    return path


def make_folder(revision: str, path: Path) -> Path:
    """A data folder with the database of a fixture and the secrets that it was made with."""
    path.mkdir(mode=0o700)
    for name in SECRETS:
        (path / name).write_bytes(find_secret(name))
        (path / name).chmod(0o600)
    os.close(os.open(path / "gateway.db", os.O_WRONLY | os.O_CREAT, 0o600))
    load_fixture(revision, path / "gateway.db")
    return path


def read_rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, as SQLite stores it."""
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: [dict(row) for row in database.execute(f'SELECT * FROM "{name}"')]  # noqa: S608
            for name in names
            if name not in {"alembic_version", "sqlite_sequence"}
        }


def read_shape(path: Path) -> dict[str, Any]:
    """The columns, keys and indexes of every table, in no order: a column that comes back comes last."""
    with closing(sqlite3.connect(path)) as database:
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        shape: dict[str, Any] = {}
        for name in names:
            columns = {row[1:] for row in database.execute(f'PRAGMA table_info("{name}")')}
            keys = {row[2:] for row in database.execute(f'PRAGMA foreign_key_list("{name}")')}
            shape[name] = columns, keys
        indexes = database.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index'")
        return {**shape, "indexes": {(one, table, " ".join((sql or "").split())) for one, table, sql in indexes}}


def migrate(connection: Connection, revision: str) -> None:
    """Run the migrations that lead up to ``revision``, or back to it; the migrations themselves are loaded once."""
    scripts, config = open_scripts(), Config()
    config.attributes["connection"] = connection

    def list_steps(heads: Any, _context: object) -> Any:
        is_older = not heads or heads[0] < revision
        return (scripts._upgrade_revs if is_older else scripts._downgrade_revs)(revision, heads)

    with EnvironmentContext(config, scripts, fn=list_steps):
        scripts.run_env()


@cache
def open_scripts() -> ScriptDirectory:
    """The migrations, as Alembic sees them."""
    config = Config()
    (folder,) = gateway.storage.migrations.__path__
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)
