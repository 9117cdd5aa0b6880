"""The data keys of accounts: random keys, each sealed with the master key in a file or an object of its own.

They are files, not rows: a deleted row would stay in free pages and in the log of a database, and in each of its
backups. Without its data key nothing that was sealed with it can be read, whatever copies of the segments there are.
"""

import os
import secrets
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gateway.storage.data_folder import sync_folder, write_private
from gateway.storage.encryption import ROOT_BYTES, SecretBox

_PURPOSE = "bodies"
_SUFFIX = ".key"
_DEAD_SUFFIX = ".dead"
_VERSION_SUFFIX = ".version"
MAX_KEYS_IN_MEMORY = 10_000
"""Far more than one batch has accounts, because what a key has sealed must be stored before it is forgotten."""


class KeyFiles(Protocol):
    """Sealed data keys by account id. Every method blocks, and raises ``OSError`` if their disk or store fails."""

    def read(self, account_id: int) -> bytes | None:
        """Return a sealed data key; None if there is none."""
        ...

    def write(self, account_id: int, sealed: bytes) -> None:
        """Store a sealed data key durably."""
        ...

    def destroy(self, account_id: int) -> bool:
        """Destroy a data key durably; return whether there was one."""
        ...

    def remove_dead(self) -> None:
        """Finish destructions that were interrupted."""
        ...

    def list_accounts(self) -> list[int]: ...


class DataKeys:
    """The data keys in ``files``, or in a folder. ``secret_box`` has the master key."""

    def __init__(self, files: "Path | KeyFiles", secret_box: SecretBox) -> None:
        self.files = FolderKeyFiles(files) if isinstance(files, Path) else files
        self._secret_box = secret_box.derive(_PURPOSE)
        self._boxes: dict[int, SecretBox] = {}

    def open_box(self, account_id: int) -> SecretBox:
        """Return the box that seals bodies of the account; make its data key if there is none.

        Raises ``OSError``; ``DecryptionFailed`` if the master key is another.
        """
        box = self._boxes.pop(account_id, None) or self.find_box(account_id)
        box = box or self._make_box(account_id, self.files.write)
        if len(self._boxes) >= MAX_KEYS_IN_MEMORY:
            del self._boxes[next(iter(self._boxes))]  # the one that was used longest ago
        self._boxes[account_id] = box
        return box

    def _make_box(self, account_id: int, write: Callable[[int, bytes], None]) -> SecretBox:
        data_key = secrets.token_bytes(ROOT_BYTES)
        write(account_id, self._secret_box.seal(data_key, context=_name_context(account_id)))
        return SecretBox(data_key, _PURPOSE)

    def find_box(self, account_id: int) -> SecretBox | None:
        """Return the box that unseals bodies of the account; None without a data key.

        Raises ``OSError``, ``DecryptionFailed``.
        """
        sealed = self.files.read(account_id)
        return None if sealed is None else self.unseal_key(account_id, sealed)

    def unseal_key(self, account_id: int, sealed: bytes) -> SecretBox:
        """Return the box of a sealed data key of the account. Raises ``DecryptionFailed`` for another master key."""
        return SecretBox(self._secret_box.open(sealed, context=_name_context(account_id)), _PURPOSE)

    def unseal(self, account_id: int, sealed: bytes, request_id: str) -> bytes | None:
        """Return the plain bytes of ``sealed``, sealed for a request; None without a data key.

        Raises ``OSError``, ``DecryptionFailed``.
        """
        box = self.find_box(account_id)
        return None if box is None else box.open(sealed, context=request_id)

    def destroy(self, account_id: int) -> bool:
        """Destroy the data key of an account, durably; return whether there was one. Raises ``OSError``."""
        self._boxes.pop(account_id, None)
        return self.files.destroy(account_id)

    def keep_only(self, account_ids: Collection[int]) -> None:
        """Forget the data keys of all other accounts, because they were destroyed."""
        for account_id in self._boxes.keys() - set(account_ids):
            del self._boxes[account_id]

    def remove_dead(self) -> None:
        """Finish destructions that were interrupted. Raises ``OSError``."""
        self.files.remove_dead()

    def list_accounts(self) -> list[int]:
        """Return the ids of the accounts that have a data key. Raises ``OSError``."""
        return self.files.list_accounts()


class FolderKeyFiles:
    """Sealed data keys as files of a folder, which is made with the first of them.

    ``check`` raises ``OSError`` if the folder cannot be trusted now: a key that is missing then may still exist.
    """

    def __init__(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._check = check

    def read(self, account_id: int) -> bytes | None:
        self._check()
        try:
            return self._find_path(account_id).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, account_id: int, sealed: bytes) -> None:
        self._check()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._find_path(account_id), sealed)

    def destroy(self, account_id: int) -> bool:
        self._check()
        path = self._find_path(account_id)
        path.with_suffix(_VERSION_SUFFIX).unlink(missing_ok=True)
        try:  # renamed first: a key overwritten in part would be taken for one of another master key
            path.rename(path.with_suffix(_DEAD_SUFFIX))
        except FileNotFoundError:
            return False
        self.remove_dead()
        return True

    def remove_dead(self) -> None:
        """Overwrite and remove the keys whose destruction has begun, durably."""
        for path in self._folder.glob(f"*{_DEAD_SUFFIX}"):
            with suppress(FileNotFoundError):  # another process, or thread, has just removed it
                _overwrite_key(path)
            path.unlink(missing_ok=True)
            sync_folder(self._folder)

    def list_accounts(self) -> list[int]:
        self._check()
        return [int(path.stem) for path in self._folder.glob(f"*{_SUFFIX}") if path.stem.isdigit()]

    def read_version(self, account_id: int) -> int:
        """Return what ``write_version`` has stored; 0 without a version."""
        try:
            return int(self._find_path(account_id).with_suffix(_VERSION_SUFFIX).read_bytes())
        except (FileNotFoundError, ValueError):
            return 0

    def write_version(self, account_id: int, version: int) -> None:
        """Store durably the version of an account's keys at which the key in this folder is made.

        The version is how often the account's keys had been destroyed by then.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._find_path(account_id).with_suffix(_VERSION_SUFFIX), str(version).encode())

    def _find_path(self, account_id: int) -> Path:
        return self._folder / f"{account_id}{_SUFFIX}"


class MovedKeyFiles:
    """Sealed data keys in a ``store`` that nodes share. Those that an earlier process has left in ``local`` move there.

    The master copy is always the one in ``store``: no node can bring back a key that another one has destroyed.
    A lock lets one thread at a time use the keys: a key that is just moving would be missing in both places.

    A key that is in both places, and not the same, was made while ``store`` did not answer: it stays in ``local`` until
    what it has sealed is sealed anew.

    A key in ``local`` moves only after ``destroy_former`` was called for its account: another node may have destroyed
    the keys of the account since that key was made. Every method raises ``OSError`` if the disk or ``store`` fails.
    """

    def __init__(self, store: KeyFiles, local: FolderKeyFiles) -> None:
        self._store = store
        self._local = local
        self._lock = threading.Lock()
        self._checked_accounts: set[int] = set()
        self._moved: dict[int, bytes] = {}
        self._destroyed: dict[int, bytes] = {}

    def read(self, account_id: int) -> bytes | None:
        with self._lock:
            return self._read(account_id)

    def _read(self, account_id: int) -> bytes | None:
        sealed, local_sealed = self._store.read(account_id), self._local.read(account_id)
        if sealed is not None and sealed == self._destroyed.get(account_id):  # it was just moving at that time
            self._store.destroy(account_id)
            sealed = None
        if sealed is not None and local_sealed == sealed:
            self._local.destroy(account_id)
        return local_sealed if sealed is None else sealed

    def _move_keys(self) -> None:
        for account_id in self._checked_accounts.intersection(self._local.list_accounts()):
            with self._lock:  # for one account at a time: others seal and read in between
                self._move_key(account_id)

    def _move_key(self, account_id: int) -> None:
        sealed = self._read(account_id)
        if sealed is not None and self._store.read(account_id) is None:
            self._moved[account_id] = sealed
            self._store.write(account_id, sealed)
            self._local.destroy(account_id)
            self._checked_accounts.discard(account_id)

    def write(self, account_id: int, sealed: bytes) -> None:
        with self._lock:
            self._store.write(account_id, sealed)

    def destroy(self, account_id: int) -> bool:
        with self._lock:
            self._local.destroy(account_id)
            return self._store.destroy(account_id)

    def remove_dead(self) -> None:
        with self._lock:
            self._local.remove_dead()
            self._store.remove_dead()

    def list_accounts(self) -> list[int]:
        self._move_keys()
        with self._lock:
            return self._store.list_accounts()

    def list_local_accounts(self) -> list[int]:
        """Return the ids of the accounts with a key on this disk. Raises ``OSError``."""
        return self._local.list_accounts()

    def destroy_former(self, account_id: int, version: int) -> bool:
        """Destroy the key on this disk if it was made before ``version``; return whether there was such a key.

        A key that has moved from this disk to the store was made before, too: if it is still there, the next ``read``
        destroys it.
        """
        with self._lock:
            if account_id in self._moved:
                self._destroyed[account_id] = self._moved.pop(account_id)
            if self._local.read(account_id) is None:
                return False
            if self._local.read_version(account_id) != version:
                return self._local.destroy(account_id)
            self._checked_accounts.add(account_id)
            return False

    def list_outage_accounts(self) -> list[int]:
        """Return the accounts with another key on this disk than in the store, made while the store did not answer.

        Keys that can move to the store are moved first.
        """
        self._move_keys()
        with self._lock:
            return list(self._checked_accounts.intersection(self._local.list_accounts()))

    def read_outage_key(self, account_id: int) -> bytes | None:
        """Return an account's sealed data key on this disk; None if there is none. Raises ``OSError``."""
        with self._lock:
            return self._local.read(account_id)

    def write_outage_key(self, account_id: int, sealed: bytes, version: int) -> None:
        """Store a sealed data key, with the version of the account's keys, on this disk until the store answers."""
        with self._lock:
            self._local.write_version(account_id, version)
            self._local.write(account_id, sealed)
            self._checked_accounts.add(account_id)

    def destroy_outage_key(self, account_id: int) -> None:
        """Destroy the data key on this disk."""
        with self._lock:
            self._checked_accounts.discard(account_id)
            self._local.destroy(account_id)


def _overwrite_key(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, secrets.token_bytes(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name_context(account_id: int) -> str:
    return f"account:{account_id}"
