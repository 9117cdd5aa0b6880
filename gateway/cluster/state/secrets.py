"""The secrets shared by the nodes of a cluster: in the database, encrypted with the configured master key.

The first node stores the secret files of its data folder. Every other node writes the stored secrets into its own
folder. It is refused if its files differ, since it would recognize no API key, and would sign links and webhooks
differently. An admin token that differs is replaced instead.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, Executable, Row, bindparam, inspect, select, text

from gateway.storage.async_engine import AsyncConnection
from gateway.storage.data_folder import ADMIN_TOKEN, SECRETS, DataFolder, DataFolderDamaged
from gateway.storage.database import Database
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.identity import MASTER_KEY_NAME, check_known, check_secrets
from gateway.storage.schema import fingerprints

SHARED_SECRETS = (*(name for name in SECRETS if name != MASTER_KEY_NAME), ADMIN_TOKEN)
_PROOF_NAME = "proof"
_PURPOSE = "cluster"
_READ_SECRETS = text("SELECT name, value FROM cluster WHERE name IN :names").bindparams(
    bindparam("names", (_PROOF_NAME, *SHARED_SECRETS), expanding=True)
)
_INSERT_SECRETS = text("INSERT INTO cluster (name, value) VALUES (:name, :value)")

log = structlog.stdlib.get_logger(__name__)


async def check_shared_secrets(
    connection: AsyncConnection, folder: DataFolder, database: str, master_key: bytes
) -> None:
    """Raise ``DataFolderDamaged`` if ``folder`` or the master key does not match the database; write nothing.

    Before the first node starts, the database has at most the fingerprints of one gateway. It may have an earlier
    schema.
    """
    # The fingerprints first: another node that starts for the first time may store both in one commit at any moment.
    print_rows = await _read_existing(connection, fingerprints.name, select(fingerprints))
    if secret_rows := await _read_existing(connection, "cluster", _READ_SECRETS):
        _open_shared_secrets({row.name: bytes(row.value) for row in secret_rows}, folder, database, master_key)
    else:
        check_known(folder, database, {row.name: row.fingerprint for row in print_rows}, master_key)


async def _read_existing(connection: AsyncConnection, table: str, statement: Executable) -> Sequence[Row[Any]]:
    """Return the rows of ``statement``; none if the schema has no such table yet."""
    has_table = await connection.run_sync(_has_table, table)
    return (await connection.execute(statement)).all() if has_table else []


def _has_table(connection: Connection, table: str) -> bool:
    """Return whether this gateway's schema has a table. Other schemas in the search path may be another gateway's."""
    return inspect(connection).has_table(table, schema=connection.dialect.default_schema_name)


async def share_secrets(folder: DataFolder, database: Database, master_key: bytes) -> None:
    """Copy the cluster's secrets to ``folder``, or those of ``folder`` to the cluster if it has none.

    No other node may start meanwhile.

    Raises ``DataFolderDamaged`` if the master key or a file of the folder is not the cluster's, or the stored secrets
    cannot be read.
    """
    stored_secrets: dict[str, bytes] = {row.name: bytes(row.value) for row in await database.read(_READ_SECRETS)}
    if not stored_secrets:
        store_rows = partial(_store_secrets, folder=folder, master_key=master_key)
        await check_secrets(folder, database, master_key=master_key, store_rows=store_rows)
        log.info("secrets_shared", path=str(folder.path))
        return
    for name, secret in _open_shared_secrets(stored_secrets, folder, database.name, master_key).items():
        path = folder.path / name
        if not path.exists() or path.read_bytes() != secret:
            folder.put_secret(name, secret)


def _open_shared_secrets(
    stored_secrets: Mapping[str, bytes], folder: DataFolder, database: str, master_key: bytes
) -> Mapping[str, bytes]:
    """Return the cluster's secrets by name.

    Raises ``DataFolderDamaged`` if this node's master key or secrets differ, or the stored ones cannot be read.
    """
    if not hmac.compare_digest(stored_secrets.get(_PROOF_NAME, b""), _fingerprint_key(master_key)):
        raise DataFolderDamaged(
            f"store.master_key is not the one that the other nodes on the database {database} have. Give every "
            "node the same"
        )
    box = SecretBox(master_key).derive(_PURPOSE)
    try:
        shared_secrets = {name: box.open(stored_secrets[name], context=name) for name in SHARED_SECRETS}
    except (DecryptionFailed, KeyError):
        raise DataFolderDamaged(
            f"The secrets that nodes share in the database {database} were changed. Restore it from a backup"
        ) from None
    for name in SHARED_SECRETS:
        path = folder.path / name
        if name != ADMIN_TOKEN and path.exists() and path.read_bytes() != shared_secrets[name]:
            raise DataFolderDamaged(
                f"{path} is not the one that the other nodes on the database {database} have. Start this node "
                "with an empty data folder (--data)"
            )
    return shared_secrets


async def _store_secrets(connection: AsyncConnection, folder: DataFolder, master_key: bytes) -> None:
    box = SecretBox(master_key).derive(_PURPOSE)
    rows = [{"name": _PROOF_NAME, "value": _fingerprint_key(master_key)}]
    for name in SHARED_SECRETS:
        secret = folder.admin_token().encode() if name == ADMIN_TOKEN else folder.secret(name)
        rows.append({"name": name, "value": box.seal(secret, context=name)})
    await connection.execute(_INSERT_SECRETS, rows)


def _fingerprint_key(master_key: bytes) -> bytes:
    """Return a value that distinguishes master keys without revealing them."""
    return hmac.digest(master_key, b"model gateway, cluster", hashlib.sha256)
