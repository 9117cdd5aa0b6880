"""Client secrets: short-lived keys with which a browser opens realtime sessions in the name of an API key.

They are kept in memory only, and as digests: a restart of the gateway ends them.
"""

import secrets
from collections.abc import Callable
from typing import Any

import attrs

from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.domain.account import Caller
from gateway.errors import InvalidApiKey, RateLimited

PREFIX = "ek_"
MAX_SECRETS = 2_000
MAX_PER_KEY = 200
"""Valid client secrets of one API key."""
_BYTES = 24


@attrs.frozen
class ClientSecret:
    """One client secret.

    Attributes:
        key_id: of the API key that pays.
        model: the only model that it opens sessions with; None: any that the API key may use.
        session: the settings with which its sessions begin; empty: the provider's.
        expires_s: Unix seconds.
    """

    key_id: int
    model: str | None
    session: dict[str, Any] = attrs.field(repr=False)
    expires_s: int


class ClientSecrets:
    """Makes and finds client secrets.

    Args:
        api_keys: the API keys, whose digest is used.
        clock: Unix seconds.
    """

    def __init__(self, api_keys: ApiKeyAuthenticator, clock: Callable[[], float]) -> None:
        self._api_keys = api_keys
        self._clock = clock
        self._secrets: dict[bytes, ClientSecret] = {}

    def create(self, caller: Caller, model: str | None, session: dict[str, Any], ttl_s: int) -> tuple[str, int]:
        """Return a new client secret of the caller's API key, and when it expires (Unix s). Raises ``RateLimited``."""
        now_s = self._clock()
        valid = {digest: kept for digest, kept in self._secrets.items() if kept.expires_s > now_s}
        own = [kept.expires_s for kept in valid.values() if kept.key_id == caller.key.id]
        if len(own) >= MAX_PER_KEY or len(valid) >= MAX_SECRETS:
            wait_s = min(own or [kept.expires_s for kept in valid.values()]) - now_s
            raise RateLimited("There are too many valid client secrets", retry_after_s=max(1, int(wait_s)))
        secret = f"{PREFIX}{secrets.token_hex(_BYTES)}"
        made = ClientSecret(caller.key.id, model, session, int(now_s) + ttl_s)
        self._secrets = {**valid, self._api_keys.digest(secret): made}
        return secret, made.expires_s

    def find(self, secret: str) -> tuple[Caller, ClientSecret]:
        """Return the caller with the API key of a client secret. Raises the error of a key that cannot be used."""
        found = self._secrets.get(self._api_keys.digest(secret))
        caller = self._api_keys.find_caller(found.key_id) if found is not None else None
        now_s = self._clock()
        if found is None or caller is None or found.expires_s <= now_s:
            raise InvalidApiKey("The client secret is unknown or has expired", should_retry=False)
        caller.check_usable(now_s)
        return caller, found
