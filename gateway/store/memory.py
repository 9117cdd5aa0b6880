"""Every port in memory: a store that leaves nothing behind. It ships, and keeps the same contract as the database."""

from collections.abc import Sequence

import attrs

from gateway.domain.caller import Account, ApiKey
from gateway.domain.fault import Conflict, NotFound
from gateway.domain.request import RequestFilter, RequestRow, StoredRequest


class MemoryStore:
    """``AccountStore``, ``KeyStore`` and ``RequestLog`` in dictionaries."""

    def __init__(self) -> None:
        self._accounts: dict[int, Account] = {}
        self._keys: dict[int, ApiKey] = {}
        self._requests: dict[str, StoredRequest] = {}
        self._last_id = 0

    async def list_accounts(self) -> Sequence[Account]:
        """Every account, by id."""
        return list(self._accounts.values())

    async def add_account(self, account: Account) -> Account:
        """Store a new account and return it with its id."""
        account = attrs.evolve(account, id=self._next_id())
        self._check_account(account)
        self._accounts[account.id] = account
        return account

    async def put_account(self, account: Account) -> None:
        """Replace the account of the same id."""
        if account.id not in self._accounts:
            raise NotFound(f"No account has the id {account.id}")
        self._check_account(account)
        self._accounts[account.id] = account

    async def delete_account(self, account_id: int) -> None:
        """Remove the account and its keys."""
        if self._accounts.pop(account_id, None) is None:
            raise NotFound(f"No account has the id {account_id}")
        self._keys = {key.id: key for key in self._keys.values() if key.account_id != account_id}

    async def list_keys(self) -> Sequence[ApiKey]:
        """Every key, by id."""
        return list(self._keys.values())

    async def add_key(self, key: ApiKey) -> ApiKey:
        """Store a new key and return it with its id."""
        key = attrs.evolve(key, id=self._next_id())
        self._check_key(key)
        self._keys[key.id] = key
        return key

    async def put_key(self, key: ApiKey) -> None:
        """Replace the key of the same id."""
        if key.id not in self._keys:
            raise NotFound(f"No key has the id {key.id}")
        self._check_key(key)
        self._keys[key.id] = key

    async def delete_key(self, key_id: int) -> None:
        """Remove the key."""
        if self._keys.pop(key_id, None) is None:
            raise NotFound(f"No key has the id {key_id}")

    async def add_requests(self, rows: Sequence[RequestRow]) -> None:
        """Store rows; a row that is there already stays as it is."""
        for row in rows:
            if row.id not in self._requests:
                self._requests[row.id] = StoredRequest(self._next_id(), row)

    async def list_requests(self, wanted: RequestFilter, limit: int) -> Sequence[StoredRequest]:
        """The newest that match, oldest of them first; with ``after``, the oldest after it."""
        found = [stored for stored in self._requests.values() if _matches(stored, wanted)]
        return found[:limit] if wanted.after is not None else found[max(len(found) - limit, 0) :]

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _check_account(self, account: Account) -> None:
        if any(other.name == account.name and other.id != account.id for other in self._accounts.values()):
            raise Conflict(f"An account called {account.name!r} exists already", param="name")

    def _check_key(self, key: ApiKey) -> None:
        if key.account_id not in self._accounts:
            raise NotFound(f"No account has the id {key.account_id}")
        for other in self._keys.values():
            if other.id == key.id:
                continue
            if other.digest == key.digest:
                raise Conflict("This key's secret is in use already", param="secret")
            if (other.account_id, other.name) == (key.account_id, key.name):
                raise Conflict(f"The account has a key called {key.name!r} already", param="name")


def _matches(stored: StoredRequest, wanted: RequestFilter) -> bool:
    row = stored.row
    return (
        (wanted.key_id is None or row.key_id == wanted.key_id)
        and (wanted.model is None or row.model == wanted.model)
        and (wanted.status is None or row.status == wanted.status)
        and (wanted.after is None or stored.sequence > wanted.after)
    )
