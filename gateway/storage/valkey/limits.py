"""Rate limits decided by Valkey or Redis."""

import hashlib
from contextlib import suppress
from typing import Any

import orjson
from valkey.asyncio import Valkey
from valkey.asyncio.retry import Retry
from valkey.backoff import NoBackoff
from valkey.exceptions import NoScriptError, ValkeyError

from gateway.errors import StoreUnavailable
from gateway.storage.valkey.address import ValkeyAddress
from gateway.storage.valkey.limit_script import SCRIPT

CONNECT_TIMEOUT_S = 3.0


class ValkeyLimitServer:
    """A ``LimitServer`` in Valkey 7.2, Redis 7 or newer. A restart may lose its state."""

    def __init__(self, url: str, script: str = SCRIPT) -> None:
        self._address = ValkeyAddress(url)
        self.name = self._address.name
        self._script = script
        self._sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        self._client: Any = None

    async def connect(self) -> None:
        await self.close()
        try:
            self._client = Valkey.from_url(
                await self._address.find_url(),
                single_connection_client=True,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),  # a command sent twice would count twice
            )
            await self._client.script_load(self._script)
        except (OSError, ValueError, ValkeyError) as error:
            await self.close()
            raise StoreUnavailable(f"{self.name} cannot be used: {error}") from error

    async def run(self, command: bytes) -> bytes:
        body = orjson.loads(command)
        prefix = body["prefix"]
        keys = [f"{prefix}:state", f"{prefix}:nodes"]
        for name, _ in body["names"]:
            keys += (f"{prefix}:{name}", f"{prefix}:{name}:running")
        try:
            try:
                answer = await self._client.evalsha(self._sha, len(keys), *keys, command)
            except NoScriptError:  # the server's scripts were flushed by hand; nothing was run
                answer = await self._client.eval(self._script, len(keys), *keys, command)
        except (OSError, ValkeyError) as error:
            raise StoreUnavailable(f"{self.name} cannot be used: {error}") from error
        return bytes(answer)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError, ValkeyError):  # a connection that breaks meanwhile is closed as well
                await client.aclose()
