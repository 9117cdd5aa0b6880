"""The data keys of a node. A shared store has their master copies; it may not answer, and other nodes destroy keys."""

from collections.abc import Collection, Mapping
from contextlib import suppress

from gateway.storage.bodies import data_keys
from gateway.storage.bodies.data_keys import DataKeys, MovedKeyFiles
from gateway.storage.bodies.resealing import KeyChange
from gateway.storage.encryption import DecryptionFailed, SecretBox


class SharedDataKeys(DataKeys):
    """The data keys of this node in ``files``.

    While the store does not answer, an account without a key in memory gets one on this disk. What this key has sealed
    is sealed anew (``resealing.py``) before it is moved: no other node has that key, and none could destroy it.

    A key stays in memory, and on this disk, as long as the version of the account's keys is the one at which the key
    was read or made.
    """

    def __init__(self, files: MovedKeyFiles, secret_box: SecretBox) -> None:
        super().__init__(files, secret_box)
        self._moved_files = files
        self._versions: dict[int, int] = {}

    def open_box(self, account_id: int) -> SecretBox:
        try:
            return super().open_box(account_id)
        except OSError:  # asked again for the next body: the store may answer then
            return self.find_outage_box(account_id) or self._make_box(account_id, self._write_outage_key)

    def _write_outage_key(self, account_id: int, sealed: bytes) -> None:
        self._moved_files.write_outage_key(account_id, sealed, self._versions.get(account_id, 0))

    def unseal(self, account_id: int, sealed: bytes, request_id: str) -> bytes | None:
        """Unseal like the base class; without the store, too, if a key in memory or on this disk is the right one.

        Return None without a data key. The rows of a key in memory that was destroyed in the store are hidden.
        """
        for find in (self._boxes.get, self.find_outage_box):
            if (box := find(account_id)) is not None:
                with suppress(DecryptionFailed):
                    return box.open(sealed, context=request_id)
        return super().unseal(account_id, sealed, request_id)

    def find_outage_box(self, account_id: int) -> SecretBox | None:
        """Return the box of the key on this disk; None without one. Raises ``OSError``, ``DecryptionFailed``."""
        sealed = self._moved_files.read_outage_key(account_id)
        return None if sealed is None else self.unseal_key(account_id, sealed)

    def find_boxes(self, account_id: int) -> list[SecretBox]:
        """Return the boxes of the keys in the store and on this disk. Raises ``OSError``, ``DecryptionFailed``."""
        boxes = self.find_box(account_id), self.find_outage_box(account_id)
        return [box for box in boxes if box is not None]

    def list_outage_keys(self) -> dict[int, KeyChange]:
        """Return the change of keys for each account whose bodies must be sealed anew.

        Accounts without a key in the store are left out. Raises ``OSError`` if the store does not answer, and
        ``DecryptionFailed``.
        """
        changes = {}
        for account_id in self._moved_files.list_outage_accounts():
            new, sealed_key = self.find_box(account_id), self._moved_files.read_outage_key(account_id)
            if new is not None and sealed_key is not None:
                changes[account_id] = KeyChange(self.unseal_key(account_id, sealed_key), new, sealed_key)
        return changes

    def end_outage(self, changes: Mapping[int, KeyChange]) -> None:
        """Destroy the old keys of ``changes`` on this disk: nothing is sealed with them any more. Raises ``OSError``.

        A key that was made since stays.
        """
        for account_id, change in changes.items():
            if self._moved_files.read_outage_key(account_id) == change.sealed_key:
                self._moved_files.destroy_outage_key(account_id)

    def list_accounts_here(self) -> set[int]:
        """Return the accounts whose data key is in memory or on this disk. Raises ``OSError``."""
        return {*self._boxes, *self._moved_files.list_local_accounts()}

    def forget_destroyed(self, account_ids: Collection[int], versions: Mapping[int, int]) -> set[int]:
        """Forget the keys of accounts whose version has changed, also those on this disk; return these accounts.

        The next call does so again, until ``note_versions`` has noted ``versions``. Raises ``OSError``.
        """
        destroyed = set()
        for account_id in account_ids:
            version, noted_version = versions.get(account_id, 0), self._versions.get(account_id)
            if version == noted_version:
                continue
            has_destroyed = self._moved_files.destroy_former(account_id, version)
            if has_destroyed or noted_version is not None:
                self._boxes.pop(account_id, None)
                destroyed.add(account_id)
        return destroyed

    def note_versions(self, account_ids: Collection[int], versions: Mapping[int, int]) -> None:
        """Note the versions of accounts after their bodies of former versions were hidden.

        If many are noted, versions of accounts without a key in memory are forgotten: their next key is read anew.
        """
        if len(self._versions) >= 2 * data_keys.MAX_KEYS_IN_MEMORY:
            self._versions = {account_id: self._versions[account_id] for account_id in self._boxes}
        self._versions.update((account_id, versions.get(account_id, 0)) for account_id in account_ids)
