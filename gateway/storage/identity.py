"""Binds a database to its data folder by fingerprints of every secret that its rows depend on.

The start detects a secret file that is missing, changed or from another folder. A missing secret is created if the
database has no fingerprint of it, and no rows that depend on it, or if the operator renews it.
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

import structlog
from sqlalchemy import Executable, delete, insert, select, union_all

from gateway.storage.async_engine import AsyncConnection
from gateway.storage.data_folder import DATABASE, JOURNAL, SECRETS, DataFolder, DataFolderDamaged, list_parts
from gateway.storage.database import Database
from gateway.storage.schema import channels, fingerprints, keys, members

MASTER_KEY_NAME = "master.key"
_DEPENDENT_QUERIES: dict[str, Executable] = {
    "pepper": select(keys.c.id),
    MASTER_KEY_NAME: union_all(select(channels.c.id), select(members.c.id).where(members.c.totp.is_not(None))),
}
"""Queries for rows that depend on a secret, for databases without fingerprints (version 0.7.0)."""

StoreRows = Callable[[AsyncConnection], Awaitable[None]]

log = structlog.stdlib.get_logger(__name__)


async def check_secrets(
    folder: DataFolder,
    database: Database,
    *,
    master_key: bytes = b"",
    renew: Collection[str] = (),
    store_rows: StoreRows | None = None,
) -> None:
    """Check every secret file of ``folder`` against ``database``; create missing files that no row depends on.

    New fingerprints are stored. ``master_key`` replaces the file of that name. ``renew`` names secrets that may differ
    from the stored fingerprints; missing or unusable files of these are created anew. ``store_rows`` stores more rows
    in the commit of the fingerprints. Raises ``DataFolderDamaged``, which says what to restore.
    """
    stored_prints: dict[str, str] = {row.name: row.fingerprint for row in await database.read(select(fingerprints))}
    if not stored_prints and database.kind == "postgresql":
        _check_first_use(folder, database)
    given_secrets = {MASTER_KEY_NAME: master_key} if master_key else {}
    needed_names = (
        stored_prints.keys()
        if stored_prints
        else {name for name, rows in _DEPENDENT_QUERIES.items() if await database.read(rows)}
    )
    for name in SECRETS.keys() - given_secrets.keys():
        if not (folder.path / name).exists() and (name not in needed_names or name in renew):
            folder.make_secret(name)
    file_prints = _find_fingerprints(folder, given_secrets, {name for name in renew if name not in given_secrets})
    foreign_names = [
        name
        for name in SECRETS
        if name not in renew and stored_prints.get(name, file_prints[name]) != file_prints[name]
    ]
    if foreign_names:
        raise DataFolderDamaged(_describe_foreign(folder, database.name, foreign_names, given_secrets))
    new_prints = file_prints if file_prints != stored_prints else {}
    if new_prints or store_rows is not None:
        await database.write(partial(_record, fingerprints_found=new_prints, store_rows=store_rows))
    if new_prints:
        log.info("store_identified", path=str(folder.path))


def check_known(
    folder: DataFolder, database_name: str, known_fingerprints: Mapping[str, str], master_key: bytes
) -> None:
    """Raise ``DataFolderDamaged`` if a secret is not the one that the database ``database_name`` was used with.

    ``known_fingerprints`` are the fingerprints in the database, by the secret's name.
    """
    given_secrets = {MASTER_KEY_NAME: master_key}
    foreign_names = [
        name
        for name in SECRETS
        if name in known_fingerprints
        and fingerprint(name, given_secrets.get(name) or folder.secret(name)) != known_fingerprints[name]
    ]
    if foreign_names:
        raise DataFolderDamaged(_describe_foreign(folder, database_name, foreign_names, given_secrets))


def _check_first_use(folder: DataFolder, database: Database) -> None:
    """Raise ``DataFolderDamaged`` if a new database on a server replaces one that the folder belongs to."""
    file_names = list_parts(folder.path)
    # The journal is created after the fingerprints. With a SQLite file the operator moves from that file to a server.
    if JOURNAL in file_names and not (folder.path / DATABASE).exists():
        raise DataFolderDamaged(
            f"The database {database.name} is empty, but the data folder {folder.path} was in use: it has "
            f"{', '.join(file_names)}. Accounts, keys, channels and every charge are in the database. Restore it "
            "(pg_restore --clean --if-exists), or name the former one (store.url). To begin with nothing, name another "
            "data folder (--data)"
        )


def _find_fingerprints(
    folder: DataFolder, given_secrets: Mapping[str, bytes], renew: Collection[str]
) -> dict[str, str]:
    """Return the fingerprint of every secret; recreate unusable files of ``renew``. Raises ``DataFolderDamaged``."""
    for name in renew:
        try:
            folder.secret(name)
        except DataFolderDamaged:
            folder.make_secret(name)
    return {name: fingerprint(name, given_secrets.get(name) or folder.secret(name)) for name in SECRETS}


def fingerprint(name: str, secret: bytes) -> str:
    """Compute the fingerprint of the secret ``name``, as the database stores it."""
    # 128 bits of a keyed hash of 256 random bits distinguish secrets without revealing them.
    return hmac.digest(secret, f"model gateway, fingerprint of {name}".encode(), hashlib.sha256)[:16].hex()


async def _record(
    connection: AsyncConnection, fingerprints_found: Mapping[str, str], store_rows: StoreRows | None
) -> None:
    if fingerprints_found:
        await connection.execute(delete(fingerprints))
        rows = [{"name": name, "fingerprint": fingerprint} for name, fingerprint in fingerprints_found.items()]
        await connection.execute(insert(fingerprints), rows)
    if store_rows is not None:
        await store_rows(connection)


def _describe_foreign(
    folder: DataFolder, database_name: str, names: list[str], given_secrets: Mapping[str, bytes]
) -> str:
    changed_secrets = ", ".join(
        "the setting store.master_key" if name in given_secrets else str(folder.path / name) for name in names
    )
    consequences = "; ".join(SECRETS[name] for name in names)
    return (
        f"The database {database_name} was made with other secrets: {changed_secrets} "
        f"{'is' if len(names) == 1 else 'are'} not what it knows. Either belongs to another data folder, or was "
        f"changed. With these, {consequences}. Restore the database and the files beside it from one backup. If "
        "there is "
        f"none, 'gateway serve{''.join(f' --renew-secret {name}' for name in names)}' goes on with what is there"
    )
