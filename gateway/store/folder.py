"""The data folder: one process at a time, and the secrets that live beside the database (mode 0600)."""

import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import Any

import orjson

PEPPER_BYTES = 32
LOCK_TRIES = 5
LOCK_PAUSE_S = 0.04
_OWNER_ONLY = 0o600


class FolderBusy(Exception):  # noqa: N818 - says what is
    """Another process has the data folder; ``holder`` is what it wrote about itself (``pid``, ``url``)."""

    def __init__(self, path: Path, holder: dict[str, Any]) -> None:
        pid, url = holder.get("pid", "unknown"), holder.get("url")
        where = f" and answers at {url}" if url else ""
        super().__init__(f"A gateway is running already with the data folder {path} (process {pid}){where}")
        self.holder = holder


class FolderDamaged(Exception):  # noqa: N818 - says what is
    """A secret file of the data folder is not what it was; the message is for the operator."""


class DataFolder:
    """An open, locked data folder; made if it is not there. Close it to let the next process in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(path / "gateway.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        if not _lock(self._lock):
            os.close(self._lock)
            raise FolderBusy(path, find_holder(path) or {})
        self._write_holder({"pid": os.getpid()})

    def announce(self, url: str) -> None:
        """Say in the lock file where this process answers, for the command line to find."""
        self._write_holder({"pid": os.getpid(), "url": url})

    def close(self) -> None:
        """Let go of the folder."""
        os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def private_file(self, name: str) -> Path:
        """The path of a file in the folder that only its owner reads; made empty if it is not there."""
        path = self.path / name
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY))
        return path

    def secret(self, name: str) -> bytes:
        """The 32 random bytes kept in the file ``name``, made on first use."""
        path = self.path / name
        if not path.exists():
            _write_private(path, secrets.token_bytes(PEPPER_BYTES))
        content = path.read_bytes()
        if len(content) != PEPPER_BYTES:
            raise FolderDamaged(f"{path} must hold {PEPPER_BYTES} bytes; restore it from a backup")
        return content

    def admin_token(self) -> str:
        """The token with which the command line talks to the admin API, kept in ``admin.token``."""
        path = self.path / "admin.token"
        token = path.read_text().strip() if path.exists() else ""
        if not token:  # nor must an empty file let in whoever sends nothing
            token = secrets.token_urlsafe(32)
            _write_private(path, token.encode())
        return token

    def _write_holder(self, holder: dict[str, Any]) -> None:
        content = orjson.dumps(holder)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, content, 0)


def find_holder(path: Path) -> dict[str, Any] | None:
    """What the process that has the folder says of itself; None where none does."""
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


def _lock(descriptor: int) -> bool:
    # Whoever asks who has the folder holds a shared lock for an instant: only a lock that stays is a gateway's.
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def _write_private(path: Path, content: bytes) -> None:
    """A new file that only its owner reads, whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _OWNER_ONLY)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
    # What is sealed under a key must not outlast the key's name in its folder, should the power go.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
