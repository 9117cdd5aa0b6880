"""API keys in the database: their digests, never their secrets."""

from collections.abc import Sequence

import attrs
from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.domain.account import ApiKey
from gateway.domain.audit_log import AuditRow
from gateway.errors import Conflict, GatewayError, NotFound
from gateway.storage.database import Database
from gateway.storage.row_mapping import build_key, parse_key
from gateway.storage.schema import keys

TAKEN = "This key's secret is in use already"


class ApiKeyRepository:
    """``domain.caller.KeyStore`` over the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_keys(self) -> Sequence[ApiKey]:
        """Every key, by id."""
        return [parse_key(row) for row in await self._database.read(select(keys).order_by(keys.c.id))]

    async def add_key(self, key: ApiKey, audit: AuditRow | None = None) -> ApiKey:
        """Store a new key and return it with its id."""
        statement = insert(keys).values(build_key(key)).returning(keys.c.id)

        async def work(connection: AsyncConnection) -> int:
            await _check_digests(connection, attrs.evolve(key, id=0))
            key_id: int = (await connection.execute(statement)).scalar_one()
            return key_id

        try:
            key_id = await self._database.write(work, audit)
        except IntegrityError as error:
            raise _read_broken(error, key) from None
        return attrs.evolve(key, id=key_id)

    async def put_key(self, key: ApiKey, audit: AuditRow | None = None) -> None:
        """Replace the key of the same id."""
        statement = update(keys).where(keys.c.id == key.id).values(build_key(key))

        async def work(connection: AsyncConnection) -> None:
            await _check_digests(connection, key)
            if not (await connection.execute(statement)).rowcount:
                raise NotFound(f"No key has the id {key.id}")

        try:
            await self._database.write(work, audit)
        except IntegrityError as error:
            raise _read_broken(error, key) from None

    async def delete_key(self, key_id: int, audit: AuditRow | None = None) -> None:
        """Remove the key."""
        if not await self._database.change(delete(keys).where(keys.c.id == key_id), audit):
            raise NotFound(f"No key has the id {key_id}")


async def _check_digests(connection: AsyncConnection, key: ApiKey) -> None:
    """Raise ``Conflict`` where a digest of the key's is another's; of two secrets in use the constraint sees to it."""
    is_taken = keys.c.former_digest == key.digest
    if key.former_digest is not None:
        is_taken = or_(is_taken, keys.c.former_digest == key.former_digest, keys.c.digest == key.former_digest)
    if (await connection.execute(select(keys.c.id).where(is_taken, keys.c.id != key.id).limit(1))).first() is not None:
        raise Conflict(TAKEN, param="secret")


def _read_broken(error: IntegrityError, key: ApiKey) -> GatewayError:
    """Which rule a key broke."""
    reason = str(error.orig).lower()
    if "foreign key" in reason:
        return NotFound(f"No account has the id {key.account_id}")
    if "digest" in reason:
        return Conflict(TAKEN, param="secret")
    return Conflict(f"The account has a key called {key.name!r} already", param="name")
