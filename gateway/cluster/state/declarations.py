"""The configuration files that have declared accounts and keys in the PostgreSQL database of a cluster.

A node that restarts with an old file must not undo the declarations of a newer one.
"""

from collections.abc import Sequence

import orjson
from sqlalchemy import text

from gateway.storage.database import Database

_NAME = "declared"
_MAX_DIGESTS = 100
_READ_DIGESTS = text("SELECT value FROM cluster WHERE name = :name").bindparams(name=_NAME)
_PUT_DIGESTS = text("""
INSERT INTO cluster (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value
""").bindparams(name=_NAME)


class Declarations:
    """The digests of the files' newest declarations, oldest first. While ``add`` runs, no other node may declare."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_digests(self) -> Sequence[str]:
        for row in await self._database.read(_READ_DIGESTS):
            return list(orjson.loads(bytes(row.value)))
        return []

    async def add(self, digest: str) -> None:
        other_digests = [stored_digest for stored_digest in await self.list_digests() if stored_digest != digest]
        await self._database.change(
            _PUT_DIGESTS.bindparams(value=orjson.dumps([*other_digests, digest][-_MAX_DIGESTS:]))
        )
