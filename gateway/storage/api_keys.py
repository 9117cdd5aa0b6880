"""API keys in the database: digests of secrets, never the secrets."""

from collections.abc import Collection, Mapping, Sequence

import attrs
from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.account import ApiKey
from gateway.domain.audit_log import AuditRow
from gateway.errors import Conflict, GatewayError, NotFound
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import describe_violation
from gateway.storage.merging import merge_change
from gateway.storage.row_mapping import build_key_row, parse_key
from gateway.storage.schema import keys, requests

_LIST_KEYS = select(keys).order_by(keys.c.id)
_IDS_PER_QUERY = 500
"""Maximum number of ids in one statement, because databases limit the number of its values."""
KEY_TAKEN = "This key's secret is in use already"


class ApiKeyRepository:
    """The ``keys`` table. Names are unique per account, digests (current and former) in the whole table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_keys(self) -> Sequence[ApiKey]:
        return [parse_key(row) for row in await self._database.read(_LIST_KEYS)]

    async def find_keys(self, key_ids: Collection[int], account_ids: Collection[int]) -> Sequence[ApiKey]:
        query = select(keys).where(or_(keys.c.id.in_(key_ids), keys.c.account_id.in_(account_ids)))
        return [parse_key(row) for row in await self._database.read_first(query)]

    async def find_last_requests(self, key_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the start of each key's newest stored request in Unix ms, by key id; keys without one are missing."""
        newest_query = select(requests.c.started_ms).where(requests.c.key_id == keys.c.id)
        newest_query = newest_query.order_by(requests.c.sequence.desc()).limit(1)
        query, started_ms = select(keys.c.id, newest_query.scalar_subquery().label("started_ms")), dict[int, int]()
        for start in range(0, len(key_ids), _IDS_PER_QUERY):
            rows = await self._database.read(query.where(keys.c.id.in_(key_ids[start : start + _IDS_PER_QUERY])))
            started_ms.update((row.id, row.started_ms) for row in rows if row.started_ms is not None)
        return started_ms

    async def add_key(self, key: ApiKey, audit: AuditRow | None = None) -> ApiKey:
        """Store a new key (its ``id`` is ignored) and return it with its id.

        Raises ``Conflict`` if its name or secret is taken, ``NotFound`` if its account does not exist.
        """
        statement = insert(keys).values(build_key_row(key)).returning(keys.c.id)

        async def work(connection: AsyncConnection) -> int:
            await _check_digests(connection, attrs.evolve(key, id=0))
            key_id: int = (await connection.execute(statement)).scalar_one()
            await self._put_credit_limit(connection, attrs.evolve(key, id=key_id))
            return key_id

        try:
            key_id = await self._database.write(work, audit)
        except IntegrityError as error:
            raise _read_constraint_error(error, key) from None
        return attrs.evolve(key, id=key_id)

    async def put_key(self, key: ApiKey, audit: AuditRow | None = None, *, original: ApiKey | None = None) -> None:
        """Replace the key of the same id; with ``original``, only the fields that differ from it.

        Raises ``NotFound`` if the key does not exist. Raises ``Conflict`` if its name or secret is taken, or a field
        that differs was changed since ``original`` was read.
        """
        is_key = keys.c.id == key.id

        async def work(connection: AsyncConnection) -> None:
            await _check_digests(connection, key)
            row = (await connection.execute(select(keys).where(is_key).with_for_update())).first()
            if row is None:
                raise NotFound(f"No key has the id {key.id}")
            merged_key = key if original is None else merge_change(original, key, parse_key(row))
            await connection.execute(update(keys).where(is_key).values(build_key_row(merged_key)))
            if row.quota_nanos != merged_key.quota.limit_nanos or row.quota_period != merged_key.quota.period:
                await self._put_credit_limit(connection, attrs.evolve(merged_key, id=key.id))

        try:
            await self._database.write(work, audit)
        except IntegrityError as error:
            raise _read_constraint_error(error, key) from None

    async def delete_key(self, key_id: int, audit: AuditRow | None = None) -> None:
        async def work(connection: AsyncConnection) -> None:
            if self._database.credit is not None:
                await self._database.credit.end_balances(connection, ("key", key_id))
            if not (await connection.execute(delete(keys).where(keys.c.id == key_id))).rowcount:
                raise NotFound(f"No key has the id {key_id}")

        await self._database.write(work, audit)

    async def _put_credit_limit(self, connection: AsyncConnection, key: ApiKey) -> None:
        if self._database.credit is not None:
            await self._database.credit.set_limit(connection, ("key", key.id), key.quota)


async def _check_digests(connection: AsyncConnection, key: ApiKey) -> None:
    """Raise ``Conflict`` if the secret of the key is another key's former one, or its former one is another key's.

    The table's constraint compares only current digests.
    """
    is_taken = keys.c.former_digest == key.digest
    if key.former_digest is not None:
        is_taken = or_(is_taken, keys.c.former_digest == key.former_digest, keys.c.digest == key.former_digest)
    if (await connection.execute(select(keys.c.id).where(is_taken, keys.c.id != key.id).limit(1))).first() is not None:
        raise Conflict(KEY_TAKEN, param="secret")


def _read_constraint_error(error: IntegrityError, key: ApiKey) -> GatewayError:
    reason = describe_violation(error)
    if "foreign key" in reason:
        return NotFound(f"No account has the id {key.account_id}")
    if "digest" in reason:
        return Conflict(KEY_TAKEN, param="secret")
    return Conflict(f"The account has a key called {key.name!r} already", param="name")
