"""Deletions of all bodies of an account: those that run in this process, and those that were cut off."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.storage.bodies.index import BodyIndex


class AccountDeletions:
    """Tells running deletions from those that were cut off and that a sweep must complete.

    If the data keys of an account were destroyed again after its deletion had ended, bodies kept since would be lost.
    A deletion that another process may have begun counts as cut off only if the previous sweep has found it, too.
    """

    def __init__(self, index: BodyIndex, *, shares_keys: bool) -> None:
        self._index = index
        self._shares_keys = shares_keys
        self._running: list[int] = []
        self._found_accounts: set[int] = set()

    @contextmanager
    def run(self, account_id: int) -> Iterator[None]:
        """Note during the block that a deletion runs here; if the block fails, note that the deletion was cut off."""
        self._running.append(account_id)
        try:
            yield
        except BaseException:
            self._found_accounts.add(account_id)
            raise
        finally:
            self._running.remove(account_id)

    async def list_cut_off(self) -> set[int]:
        """Return the accounts whose data keys a sweep must destroy."""
        pending = await self._index.list_pending_keys()
        cut_off = pending & self._found_accounts if self._shares_keys else pending
        self._found_accounts = pending
        return cut_off.difference(self._running)
