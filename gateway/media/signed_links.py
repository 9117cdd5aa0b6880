"""Keeping media for callers: a file in, a link out; and whether a link that comes back is good."""

import math
from collections.abc import Callable

from gateway.domain.media import Media, build_link, check_link
from gateway.errors import NotFound
from gateway.storage.media_files import MediaFiles


class SignedLinks:
    """Gives out links to what it keeps.

    Args:
        store: where media live.
        key: what links are signed with; whoever has it can make links to whatever id they know.
        ttl_s: how long a link works; asked anew for each, where it may be changed while the gateway runs.
        clock: Unix seconds.
    """

    def __init__(
        self,
        store: MediaFiles,
        key: bytes,
        *,
        ttl_s: Callable[[], float] | float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._key = key
        self._ttl_s = ttl_s
        self._clock = clock

    async def keep(self, data: bytes) -> str:
        """Store ``data``; returns path and query of a link to it. Raises ``UnknownMedia``, ``StoreUnavailable``."""
        media = await self._store.put(data)
        return self.build_link(media.id)

    def build_link(self, media_id: str) -> str:
        """Path and query of a fresh link to what is stored."""
        ttl_s = self._ttl_s() if callable(self._ttl_s) else self._ttl_s
        return build_link(self._key, media_id, math.ceil(self._clock() + ttl_s))

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` where there is too little room for another file."""
        self._store.check_room()

    async def find(self, media_id: str, expires: str, signature: str) -> Media:
        """What a link leads to. Raises ``NotFound``, which does not say what is wrong; ``StoreUnavailable``."""
        now_s = self._clock()
        if check_link(self._key, media_id, expires=expires, signature=signature, now_s=now_s):
            media = await self._store.find(media_id)
            if media is not None:
                return media
        raise make_not_found()

    def count_seconds_left(self, expires: str) -> int:
        """For how long a link works that ``find`` took."""
        return max(0, int(int(expires) - self._clock()))


def make_not_found() -> NotFound:
    """The one answer to whatever is wrong with a link."""
    return NotFound("There is no such file, or its link has expired", should_retry=False)
