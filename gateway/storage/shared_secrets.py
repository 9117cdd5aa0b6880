"""The secrets that the nodes of a cluster share: in the database, encrypted with the master key that each is given.

The first node brings in the files of its data folder. Every other one writes what it finds into its own, and is refused
if it has others: with them no API key would be recognised, and links and webhooks would be signed otherwise.
"""

import hashlib
import hmac

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.storage.data_folder import ADMIN_TOKEN, SECRETS, DataFolder, DataFolderDamaged
from gateway.storage.database import Database
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.identity import MASTER, check_secrets

SHARED = (*(name for name in SECRETS if name != MASTER), ADMIN_TOKEN)
_PROOF = "proof"
_PURPOSE = "cluster"
_READ = text("SELECT name, value FROM cluster WHERE name <> 'incarnation'")
_ADD = text("INSERT INTO cluster (name, value) VALUES (:name, :value)")

log = structlog.stdlib.get_logger(__name__)


async def share_secrets(folder: DataFolder, database: Database, master_key: bytes) -> None:
    """Give ``folder`` the secrets of the cluster, or the cluster those of ``folder``. No other node starts meanwhile.

    Raises:
        DataFolderDamaged: the master key or a file of the folder is not the cluster's; nothing was written.
        StoreUnavailable: the database does not answer.
    """
    box, proof = SecretBox(master_key).derive(_PURPOSE), _prove(master_key)
    stored: dict[str, bytes] = {row.name: bytes(row.value) for row in await database.read(_READ)}
    if not stored:
        await check_secrets(folder, database, master_key=master_key)
        await database.write(lambda connection: _bring_in(connection, folder, box, proof))
        log.info("secrets_shared", path=str(folder.path))
        return
    if not hmac.compare_digest(stored.get(_PROOF, b""), proof):
        raise DataFolderDamaged(
            f"store.master_key is not the one that the other nodes on the database {database.name} have. Give every "
            "node the same"
        )
    try:
        shared = {name: box.open(stored[name], about=name) for name in SHARED}
    except (DecryptionFailed, KeyError):
        raise DataFolderDamaged(
            f"The secrets that nodes share in the database {database.name} were changed. Restore it from a backup"
        ) from None
    for name in SHARED:
        path = folder.path / name
        if name != ADMIN_TOKEN and path.exists() and path.read_bytes() != shared[name]:
            raise DataFolderDamaged(
                f"{path} is not the one that the other nodes on the database {database.name} have. Start this node "
                "with an empty data folder (--data)"
            )
    for name, secret in shared.items():
        path = folder.path / name
        if not path.exists() or path.read_bytes() != secret:
            folder.put_secret(name, secret)


async def _bring_in(connection: AsyncConnection, folder: DataFolder, box: SecretBox, proof: bytes) -> None:
    rows = [{"name": _PROOF, "value": proof}]
    for name in SHARED:
        secret = folder.admin_token().encode() if name == ADMIN_TOKEN else folder.secret(name)
        rows.append({"name": name, "value": box.seal(secret, about=name)})
    await connection.execute(_ADD, rows)


def _prove(master_key: bytes) -> bytes:
    """Return what tells one master key from another, and neither."""
    return hmac.digest(master_key, b"model gateway, cluster", hashlib.sha256)
