"""Passkeys in the database: public keys, no secrets."""

from collections.abc import Sequence
from typing import Any

import attrs
from sqlalchemy import Row, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.audit_log import AuditRow
from gateway.domain.member import Session
from gateway.domain.passkey import MAX_PASSKEYS, Passkey, PasskeyUse
from gateway.errors import Conflict, NotFound
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import describe_violation
from gateway.storage.schema import passkeys


class PasskeyRepository:
    """The ``passkeys`` table. An ``audit`` row is written in the same commit as the change that it describes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_passkeys(self, member_id: int) -> Sequence[Passkey]:
        query = select(passkeys).where(passkeys.c.member_id == member_id).order_by(passkeys.c.id)
        return [_parse(row) for row in await self._database.read(query)]

    async def find_passkey(self, credential_id: bytes) -> Passkey | None:
        rows = await self._database.read(select(passkeys).where(passkeys.c.credential_id == credential_id))
        return _parse(rows[0]) if rows else None

    async def add_passkey(self, passkey: Passkey, audit: AuditRow | None = None) -> Passkey:
        """Store a new passkey (its ``id`` is ignored) and return it with its id.

        Raises ``Conflict`` if the credential is already registered, or the member has the maximum number of passkeys.
        Raises ``NotFound`` if the member does not exist.
        """
        values = attrs.asdict(passkey) | {"transports": list(passkey.transports)}
        del values["id"]
        count = select(func.count()).where(passkeys.c.member_id == passkey.member_id).select_from(passkeys)

        async def add(connection: AsyncConnection) -> int:
            if (await connection.execute(count)).scalar_one() >= MAX_PASSKEYS:
                raise Conflict(f"You have {MAX_PASSKEYS} passkeys already: remove one first")
            statement = insert(passkeys).values(values).returning(passkeys.c.id)
            return int((await connection.execute(statement)).scalar_one())

        try:
            return attrs.evolve(passkey, id=await self._database.write(add, audit))
        except IntegrityError as error:
            if "foreign key" in describe_violation(error):
                raise NotFound(f"No member has the id {passkey.member_id}") from None
            raise Conflict("This passkey is registered already") from None

    async def rename_passkey(self, passkey: Passkey, name: str, audit: AuditRow | None = None) -> None:
        if not await self._database.change(update(passkeys).where(_is_own(passkey)).values(name=name), audit):
            raise NotFound("This passkey was removed")

    async def delete_passkey(self, passkey: Passkey, audit: AuditRow | None = None) -> None:
        if not await self._database.change(delete(passkeys).where(_is_own(passkey)), audit):
            raise NotFound("This passkey was removed")


async def use_passkey(connection: AsyncConnection, member_id: int, use: PasskeyUse, session: Session) -> bool:
    """Record a sign-in. Return False if the passkey was removed, or its signature counter did not increase.

    A counter that stays 0 is accepted.
    """
    sign_count = passkeys.c.sign_count
    is_increasing = or_(sign_count < use.sign_count, (sign_count == 0) & (use.sign_count == 0))
    query = update(passkeys).where(passkeys.c.id == use.id, passkeys.c.member_id == member_id, is_increasing)
    values = {"sign_count": use.sign_count, "used_ms": session.created_ms}
    return bool((await connection.execute(query.values(values))).rowcount)


def _is_own(passkey: Passkey) -> Any:
    return (passkeys.c.id == passkey.id) & (passkeys.c.member_id == passkey.member_id)


def _parse(row: Row[Any]) -> Passkey:
    values = row._mapping  # noqa: SLF001 - the documented way to a row's names
    return Passkey(**{**values, "transports": tuple(values["transports"])})
