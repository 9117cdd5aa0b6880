"""Room 1: a header becomes a Caller. Keys and accounts are held in memory; the store is read when they change."""

from collections.abc import Callable

from gateway.domain.caller import Account, AccountStore, ApiKey, Caller, KeyStore, is_key_shape, key_digest
from gateway.domain.fault import InvalidApiKey
from gateway.domain.network import read_networks

_SCHEME = "bearer"


class Directory:
    """Every key and account, by the digest of the key's secret.

    Args:
        accounts: where accounts live.
        keys: where keys live.
        pepper: the secret under which digests are made, 32 bytes.
        clock: Unix seconds.
    """

    def __init__(self, accounts: AccountStore, keys: KeyStore, *, pepper: bytes, clock: Callable[[], float]) -> None:
        self._accounts = accounts
        self._keys = keys
        self._pepper = pepper
        self._clock = clock
        self._callers: dict[bytes, Caller] = {}

    async def reload(self) -> None:
        """Read every account and key anew. Requests under way keep the caller they came with."""
        by_id = {account.id: account for account in await self._accounts.list_accounts()}
        self._callers = {key.digest: _caller(by_id, key) for key in await self._keys.list_keys()}

    def digest(self, secret: str) -> bytes:
        """The digest under which ``secret`` is stored."""
        return key_digest(self._pepper, secret)

    def authenticate(self, authorization: str | None) -> Caller:
        """The caller of an ``Authorization`` header.

        Raises ``InvalidApiKey``, ``KeyDisabled`` or ``KeyExpired``.
        """
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
        caller.check_usable(self._clock())
        return caller

    def find_caller(self, key_id: int) -> Caller | None:
        """The caller that shows the key of that id."""
        return next((caller for caller in self._callers.values() if caller.key.id == key_id), None)

    def refresh(self, caller: Caller) -> Caller:
        """The same key as it is now: a caller may take its time over a body, and the key be changed meanwhile.

        Raises as ``authenticate`` does.
        """
        now = self._callers.get(caller.key.digest)
        if now is None:
            raise InvalidApiKey("Unknown API key", should_retry=False)
        now.check_usable(self._clock())
        return now


def _caller(accounts: dict[int, Account], key: ApiKey) -> Caller:
    return Caller(accounts[key.account_id], key, read_networks(key.allow_ips))
