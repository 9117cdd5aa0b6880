"""Members, their sessions and links in the database. Secrets are stored as digests, as hashes or encrypted."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.account import Account
from gateway.domain.audit_log import AuditRow
from gateway.domain.member import (
    ABSOLUTE_MS,
    CHANGED_MEANWHILE,
    DISABLED_TEXT,
    IDLE_MS,
    LAST_ADMINISTRATOR,
    LINK_GONE,
    Credential,
    Forbidden,
    Identity,
    InviteLink,
    Member,
    Session,
    WrongPassphrase,
    find_difference,
)
from gateway.errors import Conflict, NotFound
from gateway.storage import row_mapping
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.database import Database
from gateway.storage.dialect import describe_violation
from gateway.storage.identities import put_identity
from gateway.storage.schema import accounts, links, members, passkeys, sessions

_COUNT_PASSKEYS = select(func.count()).where(passkeys.c.member_id == members.c.id).correlate(members).scalar_subquery()
_MEMBER_COLUMNS = tuple(
    (_COUNT_PASSKEYS if name == "passkeys" else members.c[name]).label(f"member_{name}")
    for name in row_mapping.MEMBER_COLUMNS
)
_SESSION_COLUMNS = tuple(sessions.c[name].label(f"session_{name}") for name in row_mapping.SESSION_COLUMNS)
_LIST_MEMBERS = select(*_MEMBER_COLUMNS)
_LIST_SESSIONS = select(*_SESSION_COLUMNS)
_LIST_ADMINISTRATORS = (
    select(members.c.id)
    .join(accounts)
    .where(members.c.role == "administrator", members.c.status == "active", accounts.c.status == "active")
    .limit(1)
)


class MemberRepository:
    """The tables of members, sessions and links.

    An ``audit`` row is written in the same commit as the change that it describes. Once an active member of an active
    account is an administrator, a change that would leave no such member raises ``Conflict``. Deleting an account
    deletes its members.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_members(self) -> Sequence[Member]:
        return [
            row_mapping.parse_member(row) for row in await self._database.read(_LIST_MEMBERS.order_by(members.c.id))
        ]

    async def count_members(self) -> Mapping[int, int]:
        """Return the number of members of each account that has any, by the account's id."""
        query = select(members.c.account_id, func.count().label("number")).group_by(members.c.account_id)
        return {row.account_id: row.number for row in await self._database.read(query)}

    async def find_member(self, member_id: int) -> Member | None:
        rows = await self._database.read(_LIST_MEMBERS.where(members.c.id == member_id))
        return row_mapping.parse_member(rows[0]) if rows else None

    async def find_member_by_name(self, name: str) -> Member | None:
        rows = await self._database.read(_LIST_MEMBERS.where(members.c.name == name))
        return row_mapping.parse_member(rows[0]) if rows else None

    async def is_administered(self) -> bool:
        return bool(await self._database.read(_LIST_ADMINISTRATORS))

    async def add_member(
        self,
        member: Member,
        audit: AuditRow | None = None,
        *,
        link: bytes | None = None,
        identity: Identity | None = None,
    ) -> Member:
        """Store a new member and return it with its id. The commit uses up the invitation ``link``.

        Raises ``Conflict`` if the name is taken or ``identity`` belongs to another member, ``NotFound`` if the account
        or ``link`` does not exist.
        """

        async def add(connection: AsyncConnection) -> int:
            await _consume_link(connection, link)
            statement = insert(members).values(row_mapping.build_member_row(member)).returning(members.c.id)
            member_id = int((await connection.execute(statement)).scalar_one())
            if identity is not None:
                await put_identity(connection, attrs.evolve(identity, member_id=member_id))
            return member_id

        try:
            return attrs.evolve(member, id=await self._database.write(add, audit))
        except IntegrityError as error:
            raise _read_constraint_error(error, member) from None

    async def put_member(
        self,
        original_member: Member,
        changed_member: Member,
        audit: AuditRow | None = None,
        *,
        link: bytes | None = None,
        end_sessions: bool = False,
    ) -> None:
        """Store the fields that differ between ``original_member`` and ``changed_member``.

        Other fields keep their values. If ``changed_member`` has no ``passkeys``, they are deleted. With
        ``end_sessions`` all sessions of the member end, and its reset links are deleted.

        Raises ``NotFound`` if the member, its new account or ``link`` does not exist. Raises ``Conflict`` if the name
        is taken, a field that differs was changed meanwhile, or no administrator would be left.
        """
        difference = find_difference(original_member, changed_member)
        values = {
            name: value for name, value in row_mapping.build_member_row(changed_member).items() if name in difference
        }

        async def update_member(connection: AsyncConnection) -> None:
            current_member = await _get_member(connection, changed_member.id)
            if find_difference(original_member, current_member) & difference:
                raise Conflict(CHANGED_MEANWHILE)
            await _consume_link(connection, link)
            if values:
                await _change(connection, changed_member.id, values)
            if "passkeys" in difference:
                await connection.execute(delete(passkeys).where(passkeys.c.member_id == changed_member.id))
            if end_sessions:
                await connection.execute(delete(sessions).where(sessions.c.member_id == changed_member.id))
                await connection.execute(delete(links).where(links.c.member_id == changed_member.id))

        try:
            await self._database.write(update_member, audit)
        except IntegrityError as error:
            raise _read_constraint_error(error, changed_member) from None

    async def delete_member(self, member_id: int, audit: AuditRow | None = None) -> None:
        """Delete a member with its sessions and links. Raises ``NotFound``, ``Conflict`` for the last administrator."""

        async def remove(connection: AsyncConnection) -> None:
            was_administered = await _is_administered(connection)
            if not (await connection.execute(delete(members).where(members.c.id == member_id))).rowcount:
                raise NotFound(f"No member has the id {member_id}")
            if was_administered and not await _is_administered(connection):
                raise Conflict(LAST_ADMINISTRATOR)

        await self._database.write(remove, audit)

    async def add_session(
        self, session: Session, proof: Credential, audit: AuditRow | None = None, *, replaces: bytes | None = None
    ) -> None:
        """Store a new session, set its member's ``signed_in_ms``, and use up ``proof``.

        ``replaces``: the digest of a session that is deleted; None without one.

        Raises ``WrongPassphrase`` if the proof is not valid any more, ``Forbidden`` if the member or account is
        disabled.
        """
        is_member = members.c.id == session.member_id

        async def add(connection: AsyncConnection) -> None:
            statement = (
                select(accounts.c.status, *_MEMBER_COLUMNS).join(accounts).where(is_member).with_for_update(of=members)
            )
            row = (await connection.execute(statement)).first()
            member = None if row is None else row_mapping.parse_member(row[1:]).accept(proof)
            if row is None or member is None:
                raise WrongPassphrase
            if {member.status, row.status} != {"active"}:
                raise Forbidden(DISABLED_TEXT, should_retry=False)
            if proof.passkey is not None:
                from gateway.storage.passkeys import use_passkey  # noqa: PLC0415 - only for who signs in with one

                if not await use_passkey(connection, member.id, proof.passkey, session):
                    raise WrongPassphrase
            used_credentials = {"totp_step": member.totp_step, "recovery": list(member.recovery)}
            await connection.execute(
                update(members).where(is_member).values(signed_in_ms=session.created_ms, **used_credentials)
            )
            if replaces is not None:
                await connection.execute(delete(sessions).where(sessions.c.digest == replaces))
            await connection.execute(insert(sessions).values(row_mapping.build_session_row(session)))

        await self._database.write(add, audit)

    async def find_session(self, digest: bytes) -> tuple[Session, Member, Account] | None:
        """Return a session with its member and account, even if these are expired or disabled; None if unknown."""
        query = select(*_SESSION_COLUMNS, *_MEMBER_COLUMNS, accounts).select_from(sessions.join(members).join(accounts))
        rows = await self._database.read(query.where(sessions.c.digest == digest))
        if not rows:
            return None
        row, member_start, member_end = rows[0], len(_SESSION_COLUMNS), len(_SESSION_COLUMNS) + len(_MEMBER_COLUMNS)
        return (
            row_mapping.parse_session(row[:member_start]),
            row_mapping.parse_member(row[member_start:member_end]),
            row_mapping.parse_account(row),
        )

    async def touch_session(self, digest: bytes, seen_ms: int) -> None:
        """Record when the session was last used. An unknown session or an earlier time is ignored."""
        touch_query = update(sessions).where(sessions.c.digest == digest, sessions.c.seen_ms < seen_ms)
        await self._database.change(touch_query.values(seen_ms=seen_ms))

    async def list_sessions(self, member_id: int) -> Sequence[Session]:
        query = _LIST_SESSIONS.where(sessions.c.member_id == member_id)
        rows = await self._database.read(query.order_by(sessions.c.created_ms.desc(), sessions.c.digest))
        return [row_mapping.parse_session(row) for row in rows]

    async def delete_sessions(self, digests: Sequence[bytes], audit: AuditRow | None = None) -> int:
        return await self._database.change(delete(sessions).where(sessions.c.digest.in_(digests)), audit)

    async def sweep_sessions(self, now_ms: int) -> int:
        has_expired = or_(sessions.c.seen_ms <= now_ms - IDLE_MS, sessions.c.created_ms <= now_ms - ABSOLUTE_MS)

        async def sweep(connection: AsyncConnection) -> int:
            result = await connection.execute(delete(sessions).where(has_expired))
            old_links = await connection.execute(delete(links).where(links.c.expires_ms <= now_ms))
            return result.rowcount + old_links.rowcount

        return await self._database.write(sweep)

    async def add_link(self, link: InviteLink, audit: AuditRow | None = None) -> None:
        statement = insert(links).values(row_mapping.build_link_row(link))
        try:
            await self._database.change(statement, audit)
        except IntegrityError:
            raise NotFound("The account or the member that the link is for is not there any more") from None

    async def find_link(self, digest: bytes) -> InviteLink | None:
        rows = await self._database.read(select(links).where(links.c.digest == digest))
        return row_mapping.parse_link(rows[0]) if rows else None

    async def list_links(self) -> Sequence[InviteLink]:
        query = select(links).order_by(links.c.created_ms.desc(), links.c.digest)
        return [row_mapping.parse_link(row) for row in await self._database.read(query)]

    async def delete_link(self, digest: bytes, audit: AuditRow | None = None) -> bool:
        return bool(await self._database.change(delete(links).where(links.c.digest == digest), audit))


async def _get_member(connection: AsyncConnection, member_id: int) -> Member:
    """Return a member and lock its row until the commit. Raises ``NotFound``."""
    row = (await connection.execute(_LIST_MEMBERS.where(members.c.id == member_id).with_for_update())).first()
    if row is None:
        raise NotFound(f"No member has the id {member_id}")
    return row_mapping.parse_member(row)


async def _change(connection: AsyncConnection, member_id: int, values: Mapping[str, Any]) -> None:
    """Set columns of a member. Raises ``Conflict`` if no administrator would be left."""
    was_administered = await _is_administered(connection)
    await connection.execute(update(members).where(members.c.id == member_id).values(values))
    if was_administered and not await _is_administered(connection):
        raise Conflict(LAST_ADMINISTRATOR)


async def _is_administered(connection: AsyncConnection) -> bool:
    return (await connection.execute(_LIST_ADMINISTRATORS)).first() is not None


async def _consume_link(connection: AsyncConnection, link: bytes | None) -> None:
    if link is not None and not (await connection.execute(delete(links).where(links.c.digest == link))).rowcount:
        raise NotFound(LINK_GONE)


def _read_constraint_error(error: IntegrityError, member: Member) -> Exception:
    if "foreign key" in describe_violation(error):
        return NotFound(f"No account has the id {member.account_id}")
    return Conflict(f"A member called {member.name!r} exists already", param="name")
