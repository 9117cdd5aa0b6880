"""The data keys of accounts: random keys, each sealed with the master key in a file of its own.

They are files, not rows: a deleted row would stay in free pages and in the log of a database, and in each of its
backups. Without its data key nothing that was sealed with it can be read, whatever copies of the segments there are.
"""

import os
import secrets
from pathlib import Path

from gateway.storage.data_folder import sync_folder, write_private
from gateway.storage.encryption import ROOT_BYTES, SecretBox

_PURPOSE = "bodies"
_DEAD_SUFFIX = ".dead"


class DataKeys:
    """The data keys in ``folder``. ``secret_box`` has the master key."""

    def __init__(self, folder: Path, secret_box: SecretBox) -> None:
        self._folder = folder
        self._secret_box = secret_box.derive(_PURPOSE)
        self._boxes: dict[int, SecretBox] = {}

    def open_box(self, account_id: int) -> SecretBox:
        """Return what seals bodies of the account; make its data key if there is none.

        Raises ``OSError``; ``DecryptionFailed`` if the master key is another.
        """
        box = self._boxes.get(account_id) or self.find_box(account_id)
        if box is None:
            data_key = secrets.token_bytes(ROOT_BYTES)
            sealed = self._secret_box.seal(data_key, context=_name_context(account_id))
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._find_path(account_id), sealed)
            box = SecretBox(data_key, _PURPOSE)
        self._boxes[account_id] = box
        return box

    def find_box(self, account_id: int) -> SecretBox | None:
        """Return what unseals bodies of the account; None if its data key was destroyed."""
        try:
            sealed = self._find_path(account_id).read_bytes()
        except FileNotFoundError:
            return None
        return SecretBox(self._secret_box.open(sealed, context=_name_context(account_id)), _PURPOSE)

    def destroy(self, account_id: int) -> bool:
        """Destroy the data key of an account, durably; return whether there was one. Raises ``OSError``."""
        self._boxes.pop(account_id, None)
        path = self._find_path(account_id)
        try:  # renamed first: a key overwritten in part would be taken for one of another master key
            path.rename(path.with_suffix(_DEAD_SUFFIX))
        except FileNotFoundError:
            return False
        self.remove_dead()
        return True

    def remove_dead(self) -> None:
        """Overwrite and remove the keys whose destruction has begun, durably. Raises ``OSError``."""
        for path in self._folder.glob(f"*{_DEAD_SUFFIX}"):
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, secrets.token_bytes(path.stat().st_size), 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            path.unlink()
            sync_folder(self._folder)

    def list_accounts(self) -> list[int]:
        """Return the ids of the accounts that have a data key."""
        return [int(path.stem) for path in self._folder.glob("*.key") if path.stem.isdigit()]

    def _find_path(self, account_id: int) -> Path:
        return self._folder / f"{account_id}.key"


def _name_context(account_id: int) -> str:
    return f"account:{account_id}"
