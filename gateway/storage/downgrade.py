"""Downgrades the database to the schema of an older version, which can then open it with today's rows.

Tables and columns that the older schema lacks are deleted, and newer words are replaced by their former ones. A copy of
the database is kept beside it. The journal, which has the fields of this version, must be empty and is removed.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Connection, create_engine

from gateway import __version__
from gateway.frozen import frozen
from gateway.storage.data_folder import JOURNAL, DataFolder, sync_folder
from gateway.storage.journal import parse_journal
from gateway.storage.migrations.run import downgrade
from gateway.storage.schema import REVISION
from gateway.storage.schema_version import RELEASES, write_user_version
from gateway.storage.sqlite_database import is_damage

_SETTLE_HINT = f"Start version {__version__} with 'gateway serve', and stop it with Ctrl-C; then downgrade"
_OWNER_ONLY_MODE = 0o600


class DowngradeRefused(Exception):
    """The database is unchanged; the message is for the operator."""


@frozen
class Downgrade:
    """A completed downgrade: the schema before and after, and the ``copy`` of the former database."""

    before: str
    after: str
    copy: Path


def downgrade_database(folder: DataFolder, database: Path, version: str) -> Downgrade:
    """Downgrade ``database`` to the schema of ``version``, such as ``0.7.0``, or not at all.

    Raises ``DowngradeRefused``.
    """
    release = RELEASES.get(".".join(version.split(".")[:2]))
    if release is None:
        raise DowngradeRefused(f"No version {version!r} is known; known: {', '.join(RELEASES)}")
    journal = folder.path / JOURNAL
    if folder.was_killed or (journal.exists() and any(parse_journal(journal.read_bytes()))):
        raise DowngradeRefused(f"The gateway did not stop in order, so requests wait to be settled. {_SETTLE_HINT}")
    try:
        old_schema = _read_schema(database)
    except sqlite3.Error as error:
        raise DowngradeRefused(f"The database {database} cannot be read: {error}. Run 'gateway doctor'") from None
    if old_schema != REVISION:
        raise DowngradeRefused(
            f"The database has schema {old_schema}, and this version knows {REVISION}. {_SETTLE_HINT}"
        )
    if release == old_schema:
        raise DowngradeRefused(f"Version {version} opens this database as it is (schema {old_schema})")
    copy = database.with_name(f"{database.name}.schema-{old_schema}")
    _copy(database, copy)
    try:
        with open_transaction(database) as connection:
            downgrade(connection, release)
            connection.exec_driver_sql(write_user_version(version))
            journal.unlink(missing_ok=True)
            sync_folder(folder.path)
    except BaseException:
        # Ctrl-C may come after the commit: then the copy is all that is left of the former database.
        with suppress(sqlite3.Error):
            if _read_schema(database) == old_schema:
                copy.unlink()  # it would make the next attempt fail
        raise
    return Downgrade(old_schema, release, copy)


def _read_schema(database: Path) -> str:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else ""


def _copy(database: Path, copy: Path) -> None:
    if copy.exists():
        raise DowngradeRefused(f"{copy} exists already; it is not replaced. Move it away first")
    draft = copy.with_name(f".{copy.name}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _OWNER_ONLY_MODE))
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(draft)) as target:
            source.backup(target)
        draft.rename(copy)
        sync_folder(copy.parent)
    except sqlite3.Error as error:
        problem = "is damaged; run 'gateway doctor'" if is_damage(error) else f"cannot be copied: {error}"
        raise DowngradeRefused(f"The database {database} {problem}") from None
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def open_transaction(database: Path) -> Iterator[Connection]:
    """Yield a connection in one write transaction, committed at the end. Foreign keys are not enforced in it."""
    engine = create_engine(f"sqlite:///{database}", connect_args={"isolation_level": None})
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()
    finally:
        engine.dispose()
