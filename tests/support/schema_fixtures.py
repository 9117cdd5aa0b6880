"""Databases as every released schema left them: ``tests/storage/fixtures/NNNN.sql``."""

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

import gateway.storage.migrations
from gateway.storage.data_folder import SECRETS

FIXTURES = Path(__file__).parents[1] / "storage" / "fixtures"
REVISIONS = tuple(sorted(path.stem for path in FIXTURES.glob("*.sql")))


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


def open_scripts() -> ScriptDirectory:
    """The migrations, as Alembic sees them."""
    config = Config()
    (folder,) = gateway.storage.migrations.__path__
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)
