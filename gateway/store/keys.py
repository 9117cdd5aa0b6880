"""API keys in the database: their digests, never their secrets."""

from collections.abc import Sequence

import attrs
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.caller import ApiKey
from gateway.domain.fault import Conflict, Fault, NotFound
from gateway.store.engine import Database
from gateway.store.rows import read_key, write_key
from gateway.store.schema import keys


class SqlKeyStore:
    """``domain.caller.KeyStore`` over the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_keys(self) -> Sequence[ApiKey]:
        """Every key, by id."""
        return [read_key(row) for row in await self._database.read(select(keys).order_by(keys.c.id))]

    async def add_key(self, key: ApiKey) -> ApiKey:
        """Store a new key and return it with its id."""
        statement = insert(keys).values(write_key(key)).returning(keys.c.id)
        try:
            key_id = await self._database.write(lambda connection: connection.scalar(statement))
        except IntegrityError as error:
            raise _read_broken(error, key) from None
        return attrs.evolve(key, id=key_id)

    async def put_key(self, key: ApiKey) -> None:
        """Replace the key of the same id."""
        statement = update(keys).where(keys.c.id == key.id).values(write_key(key))
        try:
            found = await self._database.change(statement)
        except IntegrityError as error:
            raise _read_broken(error, key) from None
        if not found:
            raise NotFound(f"No key has the id {key.id}")

    async def delete_key(self, key_id: int) -> None:
        """Remove the key."""
        if not await self._database.change(delete(keys).where(keys.c.id == key_id)):
            raise NotFound(f"No key has the id {key_id}")


def _read_broken(error: IntegrityError, key: ApiKey) -> Fault:
    """Which rule a key broke."""
    reason = str(error.orig).lower()
    if "foreign key" in reason:
        return NotFound(f"No account has the id {key.account_id}")
    if "digest" in reason:
        return Conflict("This key's secret is in use already", param="secret")
    return Conflict(f"The account has a key called {key.name!r} already", param="name")
