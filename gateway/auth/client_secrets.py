"""Client secrets: short-lived keys with which a browser opens realtime sessions on behalf of an API key.

They are stored as digests: in memory, where a restart of the gateway ends them, or for all nodes of a cluster.
"""

import secrets
from collections.abc import Callable
from typing import Any

import attrs
import orjson

from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.auth.short_lived import ShortLived
from gateway.domain.account import Caller
from gateway.errors import InvalidApiKey, RateLimited
from gateway.frozen import frozen

PREFIX = "ek_"
MAX_SECRETS = 2_000
MAX_PER_KEY = 200
"""Maximum of valid client secrets per API key."""
_BYTES = 24
_KIND = "client_secret"


@frozen
class ClientSecret:
    """What is stored of a client secret: its API key, and the model and settings of the sessions that it opens.

    Attributes:
        model: the only model of its sessions; None if they may use any model that the API key may use.
        session: the initial settings of its sessions; empty for the provider's defaults.
        expires_s: expiry in Unix seconds.
    """

    key_id: int
    model: str | None
    session: dict[str, Any] = attrs.field(repr=False)
    expires_s: int


class ClientSecrets:
    """Creates and finds client secrets."""

    def __init__(self, api_keys: ApiKeyAuthenticator, values: ShortLived, clock: Callable[[], float]) -> None:
        self._api_keys = api_keys
        self._values = values
        self._clock = clock

    async def create(self, caller: Caller, model: str | None, session: dict[str, Any], ttl_s: int) -> tuple[str, int]:
        """Return a new client secret of the caller's key, and its expiry in Unix seconds.

        Raises ``RateLimited`` if there are too many.
        """
        now_s, key_id = self._clock(), caller.key.id
        own_count, total, first_ms = await self._values.count_values(_KIND, key_id)
        if own_count >= MAX_PER_KEY or total >= MAX_SECRETS:
            wait_s = max(1, int(first_ms / 1000 - now_s))
            raise RateLimited("There are too many valid client secrets", retry_after_s=wait_s)
        secret = f"{PREFIX}{secrets.token_hex(_BYTES)}"
        client_secret = ClientSecret(key_id, model, session, int(now_s) + ttl_s)
        await self._values.put(
            _KIND,
            self._api_keys.digest(secret),
            orjson.dumps(attrs.asdict(client_secret)),
            client_secret.expires_s * 1000,
            key_id,
        )
        return secret, client_secret.expires_s

    async def find(self, secret: str) -> tuple[Caller, ClientSecret]:
        stored_value = await self._values.find(_KIND, self._api_keys.digest(secret))
        client_secret = None if stored_value is None else ClientSecret(**orjson.loads(stored_value))
        caller = self._api_keys.find_caller(client_secret.key_id) if client_secret is not None else None
        if client_secret is None or caller is None:
            raise InvalidApiKey("The client secret is unknown or has expired", should_retry=False)
        caller.check_usable(self._clock())
        return caller, client_secret
