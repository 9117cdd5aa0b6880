"""Room 1: a header becomes a Caller. Keys and accounts are held in memory; the store is read when they change."""

import asyncio
from collections.abc import Callable

import attrs

from gateway.domain.account import Account, ApiKey, Caller, is_key_shape, key_digest
from gateway.domain.ip_address import parse_networks
from gateway.errors import InvalidApiKey
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository

_SCHEME = "bearer"
_MOST_SHOWN = 10_000


class ApiKeyAuthenticator:
    """Every key and account, by the digest of the key's secret; and by that of the one before, while it is good.

    Args:
        accounts: where accounts live.
        keys: where keys live.
        pepper: the secret under which digests are made, 32 bytes.
        clock: Unix seconds.
    """

    def __init__(
        self, accounts: AccountRepository, keys: ApiKeyRepository, *, pepper: bytes, clock: Callable[[], float]
    ) -> None:
        self._accounts = accounts
        self._keys = keys
        self._pepper = pepper
        self._clock = clock
        self._callers: dict[bytes, Caller] = {}
        self._by_account: dict[int, Account] = {}
        self._by_key: dict[int, Caller] = {}
        self._used_s: dict[int, float] = {}
        self._shown: dict[str, Caller] = {}
        """What was shown and found good since the last reload: a digest costs many times a look here."""
        self._reloading = asyncio.Lock()

    async def reload(self) -> None:
        """Read every account and key anew. Requests under way keep the caller they came with."""
        async with self._reloading:  # of two, the one that began later ends later: it knows more
            keys = await self._keys.list_keys()  # before the accounts: those that come meanwhile have none of these
            accounts = {account.id: account for account in await self._accounts.list_accounts()}
        by_key = {key.id: self._join(accounts[key.account_id], key) for key in keys if key.account_id in accounts}
        former = (_find_former(caller) for caller in by_key.values())
        callers = {caller.key.digest: caller for caller in former if caller is not None}
        callers.update((caller.key.digest, caller) for caller in by_key.values())
        self._callers, self._by_account, self._by_key = callers, accounts, by_key
        self._shown.clear()
        self._used_s = {key_id: used_s for key_id, used_s in self._used_s.items() if key_id in by_key}

    def _join(self, account: Account, key: ApiKey) -> Caller:
        """A key with its account; networks that it had before are not read again."""
        known = self._by_key.get(key.id)
        same = known is not None and known.key.allow_ips == key.allow_ips
        return Caller(account, key, known.networks if known is not None and same else parse_networks(key.allow_ips))

    def digest(self, secret: str) -> bytes:
        """The digest under which ``secret`` is stored."""
        return key_digest(self._pepper, secret)

    def authenticate(self, authorization: str | None) -> Caller:
        """The caller of an ``Authorization`` header.

        Raises ``InvalidApiKey``, ``KeyDisabled`` or ``KeyExpired``.
        """
        caller = self._shown.get(authorization) if authorization else None
        if caller is None:
            caller = self._find_shown(authorization)
        now_s = self._clock()
        caller.check_usable(now_s)
        self._used_s[caller.key.id] = now_s
        return caller

    def _find_shown(self, authorization: str | None) -> Caller:
        if not authorization:
            raise InvalidApiKey(
                "No API key: send 'Authorization: Bearer sk-…'",
                should_retry=False,
            )
        scheme, _, secret = authorization.partition(" ")
        secret = secret.strip()
        if scheme.lower() != _SCHEME or not is_key_shape(secret):
            raise InvalidApiKey("Malformed API key: 'Authorization: Bearer sk-…' is expected", should_retry=False)
        caller = self._callers.get(self.digest(secret))
        if caller is None:
            raise InvalidApiKey("Unknown API key", should_retry=False)
        if authorization == f"Bearer {secret}":  # written as everybody does: any other way is not worth its memory
            if len(self._shown) >= _MOST_SHOWN:
                self._shown.clear()
            self._shown[authorization] = caller
        return caller

    def find_caller(self, key_id: int) -> Caller | None:
        """The caller that shows the key of that id, with the secret that it has now."""
        return self._by_key.get(key_id)

    def find_last_use(self, key_id: int) -> float | None:
        """When a key was last shown, and good (Unix seconds); None where it was not since the gateway started."""
        return self._used_s.get(key_id)

    def refresh(self, caller: Caller) -> Caller:
        """The same key as it is now: a caller may take its time over a body, and the key be changed meanwhile.

        A page of the console may look at its account's things with no key at all: there it is the account.
        Raises as ``authenticate`` does.
        """
        if caller.key.id:
            now = self._callers.get(caller.key.digest)
        else:
            account = self._by_account.get(caller.account.id)
            now = None if account is None else attrs.evolve(caller, account=account)
        if now is None:
            raise InvalidApiKey("Unknown API key", should_retry=False)
        now_s = self._clock()
        now.check_usable(now_s)
        if caller.key.id:
            self._used_s[caller.key.id] = now_s
        return now


def _find_former(caller: Caller) -> Caller | None:
    """Who shows the secret that the key had before: the same key, which ends with the time of grace."""
    key = caller.key
    if key.former_digest is None or key.former_until_s is None:
        return None
    until_s = key.former_until_s if key.expires_s is None else min(key.expires_s, key.former_until_s)
    return attrs.evolve(caller, key=attrs.evolve(key, digest=key.former_digest, expires_s=until_s))
