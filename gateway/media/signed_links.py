"""Stores media, builds signed links to them, and checks the links that clients use."""

import math
from collections.abc import Callable

from gateway.domain.media import AnyMedia, build_link, check_link
from gateway.errors import NotFound
from gateway.storage.media_store import MediaStore


class SignedLinks:
    """Stores media and signs links to them, which are valid for ``ttl_s`` seconds."""

    def __init__(
        self, store: MediaStore, key: bytes, *, ttl_s: Callable[[], float] | float, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._key = key
        self._ttl_s = ttl_s
        self._clock = clock

    async def create_link(self, data: bytes) -> str:
        """Store ``data``; return path and query of a link to it.

        Raises ``UnknownMedia`` for a type that the gateway does not keep, ``StoreUnavailable`` if it cannot be stored.
        """
        media = await self._store.put(data)
        return self.build_link(media.id)

    def build_link(self, media_id: str) -> str:
        ttl_s = self._ttl_s() if callable(self._ttl_s) else self._ttl_s
        return build_link(self._key, media_id, math.ceil(self._clock() + ttl_s))

    def check_room(self) -> None:
        self._store.check_room()

    async def find(self, media_id: str, expires: str, signature: str) -> AnyMedia:
        """Return the file of a link. Raises ``NotFound``, which does not say what is wrong with the link."""
        now_s = self._clock()
        if check_link(self._key, media_id, expires=expires, signature=signature, now_s=now_s):
            media = await self._store.find(media_id)
            if media is not None:
                return media
        raise make_not_found()

    def count_seconds_left(self, expires: str) -> int:
        """Return the remaining lifetime of a valid link, in seconds."""
        return max(0, int(int(expires) - self._clock()))


def make_not_found() -> NotFound:
    """Return the error for every kind of invalid link."""
    return NotFound("There is no such file, or its link has expired", should_retry=False)
