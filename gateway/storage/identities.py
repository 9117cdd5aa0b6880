"""Members' identities at OpenID Connect providers, and sessions begun by providers, in the database."""

import attrs
from sqlalchemy import delete, insert, select, update

from gateway.domain.audit_log import AuditRow
from gateway.domain.member import Identity
from gateway.errors import Conflict
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.schema import identities, provider_sessions

IDENTITY_TAKEN = "This identity belongs to another member: an administrator must remove that member first"


class IdentityRepository:
    """The tables of identities and of sessions begun by providers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_identity(self, issuer: str, subject: str) -> Identity | None:
        is_identity = (identities.c.issuer == issuer, identities.c.subject == subject)
        rows = await self._database.read(select(identities.c.member_id).where(*is_identity))
        return Identity(issuer, subject, rows[0].member_id) if rows else None

    async def link(self, identity: Identity, audit: AuditRow) -> None:
        async def insert_identity(connection: AsyncConnection) -> None:
            await put_identity(connection, identity)

        await self._database.write(insert_identity, audit)

    async def list_issuers(self, member_id: int) -> set[str]:
        rows = await self._database.read(select(identities.c.issuer).where(identities.c.member_id == member_id))
        return {row.issuer for row in rows}

    async def unlink(self, issuer: str, member_id: int, audit: AuditRow) -> bool:
        is_identity = (identities.c.issuer == issuer, identities.c.member_id == member_id)
        return bool(await self._database.change(delete(identities).where(*is_identity), audit))

    async def add_session(self, digest: bytes, provider: str, sealed: bytes) -> None:
        """Record which provider began a session, with its encrypted ID token."""
        values = {"digest": digest, "provider": provider, "sealed": sealed}
        await self._database.change(insert(provider_sessions).values(values))

    async def find_session(self, digest: bytes) -> tuple[str, bytes] | None:
        query = select(provider_sessions.c.provider, provider_sessions.c.sealed)
        rows = await self._database.read(query.where(provider_sessions.c.digest == digest))
        return (rows[0].provider, rows[0].sealed) if rows else None


async def put_identity(connection: AsyncConnection, identity: Identity) -> None:
    """Link an identity to its member. Raises ``Conflict`` if it belongs to another member."""
    is_identity = (identities.c.issuer == identity.issuer, identities.c.subject == identity.subject)
    row = (await connection.execute(select(identities.c.member_id).where(*is_identity))).first()
    if row is not None and row.member_id not in {None, identity.member_id}:
        raise Conflict(IDENTITY_TAKEN)
    if row is not None:
        await connection.execute(update(identities).where(*is_identity).values(member_id=identity.member_id))
    else:
        await connection.execute(insert(identities).values(attrs.asdict(identity)))
