"""The data folder: locked by one process at a time, with the secret files next to the database (mode 0600).

A secret is created together with the database whose rows depend on it (``storage/identity.py``). A lost one is replaced
only if the operator says so (``--renew-secret``): a new secret makes every key or every encrypted value useless.
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

PEPPER_BYTES = 32
DATABASE = "gateway.db"
JOURNAL = "requests.journal"
TIMELINE = "store.timeline"
"""The newest timeline of the PostgreSQL server, see ``storage.postgres.timeline``."""
JOBS = "jobs.journal"
"""The last changes of a node, see ``cluster.kept``."""
UNSTORABLE = "requests.unstorable"
NODE_ID = "node.id"
ADMIN_TOKEN = "admin.token"  # noqa: S105 - its file
SECRETS: Mapping[str, str] = {
    "pepper": "no API key is recognized: each has to be rotated",
    "master.key": "provider keys and second factors in the database cannot be decrypted",
    "media.key": "links to stored images that were given out no longer open",
    "webhook.key": "every webhook secret is another, so that receivers refuse what they are sent",
}
"""The secret files of a data folder, and the loss without each."""
LOCK_TRIES = 5
LOCK_PAUSE_S = 0.04
_OWNER_ONLY_MODE = 0o600
_NODE_ID = re.compile("[0-9a-f]{16}")


class DataFolderLocked(Exception):
    """Another process has locked the data folder; ``holder`` is its own description of itself (``pid``, ``url``)."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        pid, url = holder.get("pid", "unknown"), holder.get("url")
        address = f" and answers at {url}" if url else ""
        super().__init__(f"A gateway is running already with the data folder {path} (process {pid}){address}")
        self.holder = holder


class DataFolderDamaged(Exception):
    """The data folder lacks a file, or does not belong to its database; the message is for the operator."""


class DataFolder:
    """An open, locked data folder. Raises ``DataFolderLocked`` if another process has locked it.

    ``was_killed``: whether the last process that served from it did not close it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(path / "gateway.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY_MODE)
        if not _lock(self._lock):
            os.close(self._lock)
            raise DataFolderLocked(path, find_holder(path) or {})
        self.was_killed = b'"url"' in os.pread(self._lock, 4096, 0)
        self._write_holder({"pid": os.getpid()})

    def announce(self, url: str, fingerprint: str = "") -> None:
        """Write this process's address into the lock file for the command line.

        ``fingerprint`` is the SHA-256 of the TLS certificate; empty without TLS.
        """
        extra_fields = {"certificate": fingerprint} if fingerprint else {}
        self._write_holder({"pid": os.getpid(), "url": url, **extra_fields})

    def close(self) -> None:
        os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def private_file(self, name: str) -> Path:
        """Return the path of a file that only its owner can read; create an empty file if it does not exist."""
        path = self.path / name
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY_MODE))
        return path

    def secret(self, name: str) -> bytes:
        """Return the 32 random bytes in the file ``name``. Raises ``DataFolderDamaged`` if it lacks them."""
        path = self.path / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise DataFolderDamaged(f"{path} is missing. {describe_remedy(name)}") from None
        if len(content) != PEPPER_BYTES or not any(content):
            raise DataFolderDamaged(
                f"{path} must hold {PEPPER_BYTES} random bytes, and does not. {describe_remedy(name)}"
            )
        return content

    def make_secret(self, name: str) -> None:
        write_private(self.path / name, secrets.token_bytes(PEPPER_BYTES))

    def put_secret(self, name: str, secret: bytes) -> None:
        write_private(self.path / name, secret)

    def admin_token(self) -> str:
        path = self.path / ADMIN_TOKEN
        token = path.read_text().strip() if path.exists() else ""
        if not token:  # an empty file must not admit a request without a token
            token = secrets.token_urlsafe(32)
            write_private(path, token.encode())
        return token

    def node_id(self) -> str:
        node_id = self.find_node_id()
        if node_id is None:
            node_id = secrets.token_hex(8)
            write_private(self.path / NODE_ID, node_id.encode())
        return node_id

    def find_node_id(self) -> str | None:
        path = self.path / NODE_ID
        node_id = path.read_text().strip() if path.exists() else ""
        if node_id and _NODE_ID.fullmatch(node_id) is None:
            raise DataFolderDamaged(f"{path} must hold 16 hexadecimal digits, and does not. Delete it for a new node")
        return node_id or None

    def _write_holder(self, holder: dict[str, Any]) -> None:
        content = orjson.dumps(holder)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, content, 0)


def find_holder(path: Path) -> dict[str, Any] | None:
    """Return the self-description of the process that holds the lock; None if no process holds it.

    Empty if the process has not written a description yet.
    """
    try:
        lock = os.open(path / "gateway.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        content = os.pread(lock, 4096, 0)
        try:
            holder = orjson.loads(content)
        except orjson.JSONDecodeError:
            return {}
        return holder if isinstance(holder, dict) else {}
    else:
        return None
    finally:
        os.close(lock)


def list_parts(path: Path) -> list[str]:
    """Return the secret files and the journal that exist in ``path``: evidence that a gateway has used the folder."""
    return [name for name in (*SECRETS, JOURNAL) if (path / name).exists()]


def is_used(path: Path) -> bool:
    """Return whether the data folder ``path`` has a database, a secret file or a journal of a gateway."""
    return (path / DATABASE).exists() or bool(list_parts(path))


def find_database(path: Path, url: str) -> Path:
    """Return the path of the database: from ``store.url``, or if that is empty, in the data folder ``path``."""
    return Path(url.removeprefix("sqlite:///")) if url else path / DATABASE


def check_database_present(path: Path, database: Path) -> None:
    """Raise ``DataFolderDamaged`` if the data folder ``path`` was in use, but its ``database`` is missing or empty."""
    is_missing = not database.exists()
    file_names = list_parts(path)
    if is_missing and (wal := database.with_name(f"{database.name}-wal")).exists():
        file_names.append(wal.name)
    if not file_names or (not is_missing and database.stat().st_size):
        return
    raise DataFolderDamaged(
        f"The database {database} {'is missing' if is_missing else 'is empty'}, but the data folder {path} was in use: "
        f"it has {', '.join(file_names)}. Accounts, keys, channels and every charge are in the database. Restore "
        f"{database.name} from a backup (gateway restore), and {database.name}-wal with it if there is one. To begin "
        "with nothing, name another data folder (--data)"
    )


def describe_remedy(name: str) -> str:
    """Return advice for an operator on a lost secret file."""
    return (
        f"Without it {SECRETS.get(name, 'the gateway cannot start')}. Restore it from the backup of this folder "
        f"(gateway restore). If there is none, 'gateway serve --renew-secret {name}' makes a new one, and that is "
        "lost for good"
    )


def _lock(descriptor: int) -> bool:
    # A process that reads the holder takes a shared lock for an instant; only a lock that persists belongs to a
    # gateway.
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, durably, whole or not at all. Raises ``OSError``."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY_MODE)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
    sync_folder(path.parent)  # a power failure must not lose the key's file name but keep values encrypted with the key


def sync_folder(path: Path) -> None:
    """Flush the names of a folder's files to the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
