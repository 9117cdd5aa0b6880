"""Authentication by API key. Keys and accounts are held in memory and reloaded when they change."""

import asyncio
from collections.abc import Callable, Collection, Mapping

import attrs

from gateway.domain.account import Account, ApiKey, Caller, is_key_shape, key_digest
from gateway.domain.balance import Owner
from gateway.domain.ip_address import parse_networks
from gateway.errors import InvalidApiKey
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository

_SCHEME = "bearer"
_MAX_CACHED_HEADERS = 10_000
_MAX_IDS = 500
"""Maximum number of ids that are read by id; for more, reading all keys is as cheap."""
NoteGone = Callable[[Mapping[Owner, Collection[int]], Mapping[Owner, Collection[int]]], None]
"""Called with the ids of the keys and accounts that exist, and of those that have just been deleted."""
NoteAccounts = Callable[[Collection[Account], Collection[Caller]], None]
"""Called with the accounts that were read, and the callers of all keys."""


class ApiKeyAuthenticator:
    """Finds the caller of a request by the digest of a key's current secret, or of the secret before a rotation.

    ``pepper`` is the secret key of the digests, 32 bytes. ``note_gone`` and ``note_accounts`` are called after a
    reload.
    """

    def __init__(
        self,
        accounts: AccountRepository,
        keys: ApiKeyRepository,
        *,
        pepper: bytes,
        clock: Callable[[], float],
        note_gone: NoteGone = lambda _existing, _gone_keys: None,
        note_accounts: NoteAccounts = lambda _accounts, _callers: None,
    ) -> None:
        self._accounts = accounts
        self._keys = keys
        self._pepper = pepper
        self._clock = clock
        self._callers: dict[bytes, Caller] = {}
        self._by_account: dict[int, Account] = {}
        self._by_key: dict[int, Caller] = {}
        self._last_used_s: dict[int, float] = {}
        self._callers_by_header: dict[str, Caller] = {}
        """Callers by header since the last reload: computing a digest costs many times as much as a lookup."""
        self._reload_lock = asyncio.Lock()
        self._note_gone = note_gone
        self._note_accounts = note_accounts

    async def reload(self) -> None:
        """Read every account and key again. Requests in progress keep their caller."""
        async with self._reload_lock:  # reloads run in order, so the newest state is kept last
            keys = await self._keys.list_keys()  # before the accounts, so that each key's account is read, too
            accounts = {account.id: account for account in await self._accounts.list_accounts()}
        by_key = {
            key.id: self._make_caller(accounts[key.account_id], key, self._by_key.get(key.id))
            for key in keys
            if key.account_id in accounts
        }
        former_callers = (_find_former(caller) for caller in by_key.values())
        callers = {caller.key.digest: caller for caller in former_callers if caller is not None}
        callers.update((caller.key.digest, caller) for caller in by_key.values())
        deleted_keys, deleted_accounts = self._by_key.keys() - by_key.keys(), self._by_account.keys() - accounts.keys()
        self._callers, self._by_account, self._by_key = callers, accounts, by_key
        self._drop_deleted(deleted_keys, deleted_accounts)
        self._note_accounts(accounts.values(), by_key.values())

    async def reload_owners(self, key_ids: Collection[int], account_ids: Collection[int]) -> None:
        """Read the keys ``key_ids`` again, and the accounts ``account_ids`` with their keys."""
        if len(key_ids) + len(account_ids) > _MAX_IDS:
            await self.reload()
            return
        async with self._reload_lock:
            keys = await self._keys.find_keys(key_ids, account_ids)  # before the accounts, as in ``reload``
            owners = {*account_ids, *(key.account_id for key in keys)}
            accounts = {account.id: account for account in await self._accounts.find_accounts(owners)}
        removed_accounts = owners & self._by_account.keys() - accounts.keys()
        for account_id in removed_accounts:
            del self._by_account[account_id]
        self._by_account.update(accounts)
        changed_ids = {*key_ids, *(key.id for key in keys)}
        changed_ids.update(caller.key.id for caller in self._by_key.values() if caller.account.id in account_ids)
        earlier_callers = {key_id: self._remove_caller(key_id) for key_id in changed_ids}
        for key in keys:
            if key.account_id in accounts:
                self._add_caller(self._make_caller(accounts[key.account_id], key, earlier_callers.get(key.id)))
        self._drop_deleted(earlier_callers.keys() - self._by_key.keys(), removed_accounts)
        self._note_accounts(accounts.values(), self._by_key.values())

    def _drop_deleted(self, keys: Collection[int], accounts: Collection[int]) -> None:
        self._callers_by_header.clear()
        for key_id in keys:
            self._last_used_s.pop(key_id, None)
        self._note_gone({"key": self._by_key, "account": self._by_account}, {"key": keys, "account": accounts})

    def _remove_caller(self, key_id: int) -> Caller | None:
        caller = self._by_key.pop(key_id, None)
        if caller is not None:
            self._callers.pop(caller.key.digest, None)
            if caller.key.former_digest is not None:
                self._callers.pop(caller.key.former_digest, None)
        return caller

    def _add_caller(self, caller: Caller) -> None:
        former_caller = _find_former(caller)
        if former_caller is not None:
            self._callers[former_caller.key.digest] = former_caller
        self._callers[caller.key.digest] = caller
        self._by_key[caller.key.id] = caller

    @staticmethod
    def _make_caller(account: Account, key: ApiKey, earlier_caller: Caller | None) -> Caller:
        """Return a caller: a key with its account. Parsed networks of ``earlier_caller`` are reused if unchanged."""
        has_same_networks = earlier_caller is not None and earlier_caller.key.allow_ips == key.allow_ips
        return Caller(
            account,
            key,
            earlier_caller.networks
            if earlier_caller is not None and has_same_networks
            else parse_networks(key.allow_ips),
        )

    def digest(self, secret: str) -> bytes:
        return key_digest(self._pepper, secret)

    def authenticate(self, authorization: str | None) -> Caller:
        """Return the caller of an ``Authorization`` header, and record the use of the key.

        Raises ``InvalidApiKey``, ``KeyDisabled`` or ``KeyExpired``.
        """
        caller = self._callers_by_header.get(authorization) if authorization else None
        if caller is None:
            caller = self._find_by_header(authorization)
        now_s = self._clock()
        caller.check_usable(now_s)
        self._last_used_s[caller.key.id] = now_s
        return caller

    def _find_by_header(self, authorization: str | None) -> Caller:
        if not authorization:
            raise InvalidApiKey("No API key: send 'Authorization: Bearer sk-…'", should_retry=False)
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if scheme.lower() != _SCHEME or not is_key_shape(secret):
            raise InvalidApiKey("Malformed API key: 'Authorization: Bearer sk-…' is expected", should_retry=False)
        caller = self._callers.get(self.digest(secret))
        if caller is None:
            raise InvalidApiKey("Unknown API key", should_retry=False)
        if authorization == f"Bearer {secret}":  # only the usual spelling is worth the memory
            if len(self._callers_by_header) >= _MAX_CACHED_HEADERS:
                self._callers_by_header.clear()
            self._callers_by_header[authorization] = caller
        return caller

    def find_caller(self, key_id: int) -> Caller | None:
        return self._by_key.get(key_id)

    def list_callers(self) -> list[Caller]:
        """Return the callers of all keys, in the order of the keys' ids."""
        return sorted(self._by_key.values(), key=lambda caller: caller.key.id)

    def has_account(self, account_id: int) -> bool:
        return account_id in self._by_account

    def find_callers(self, account: str) -> list[Caller]:
        """Return the callers of an account, by its name, in the order of the keys' ids."""
        callers = (caller for caller in self._by_key.values() if caller.account.name == account)
        return sorted(callers, key=lambda caller: caller.key.id)

    def find_last_use(self, key_id: int) -> float | None:
        """Return the last use of a key at this process, in Unix seconds; None if not used since the process started."""
        return self._last_used_s.get(key_id)

    def refresh(self, caller: Caller) -> Caller:
        """Return the caller with the current state of the key, and record its use.

        For a caller without a stored key (id 0), the state is that of the account. Raises ``InvalidApiKey`` if the key,
        its secret or the account is gone, ``KeyDisabled`` or ``KeyExpired``.
        """
        if caller.key.id:
            current_caller = self._callers.get(caller.key.digest)
        else:
            account = self._by_account.get(caller.account.id)
            current_caller = None if account is None else attrs.evolve(caller, account=account)
        if current_caller is None:
            raise InvalidApiKey("Unknown API key", should_retry=False)
        now_s = self._clock()
        current_caller.check_usable(now_s)
        if caller.key.id:
            self._last_used_s[caller.key.id] = now_s
        return current_caller


def _find_former(caller: Caller) -> Caller | None:
    """Return the caller for the secret before the rotation.

    The key of that caller expires with the overlap. Return None if there is no former secret.
    """
    key = caller.key
    if key.former_digest is None or key.former_until_s is None:
        return None
    until_s = key.former_until_s if key.expires_s is None else min(key.expires_s, key.former_until_s)
    return attrs.evolve(caller, key=attrs.evolve(key, digest=key.former_digest, expires_s=until_s))
