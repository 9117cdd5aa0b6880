"""Accounts in the database."""

from collections.abc import Collection, Sequence

import attrs
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gateway.domain.account import Account
from gateway.domain.audit_log import AuditRow
from gateway.errors import Conflict, NotFound
from gateway.storage.async_engine import AsyncConnection
from gateway.storage.audit_log import add_row
from gateway.storage.database import Database
from gateway.storage.merging import merge_change
from gateway.storage.row_mapping import build_account_row, parse_account
from gateway.storage.schema import accounts, session_states

_LIST_ACCOUNTS = select(accounts).order_by(accounts.c.id)


class AccountRepository:
    """The ``accounts`` table. Names are unique. An ``audit`` row is written in the commit of its change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_accounts(self) -> Sequence[Account]:
        return [parse_account(row) for row in await self._database.read(_LIST_ACCOUNTS)]

    async def find_accounts(self, account_ids: Collection[int]) -> Sequence[Account]:
        """Return the accounts with these ids; missing accounts are left out."""
        query = select(accounts).where(accounts.c.id.in_(account_ids))
        return [parse_account(row) for row in await self._database.read_first(query)]

    async def add_account(self, account: Account, audit: AuditRow | None = None) -> Account:
        """Store a new account and return it with its id, which is also set in ``audit``.

        Raises ``Conflict`` if its name is taken.
        """
        statement = insert(accounts).values(build_account_row(account)).returning(accounts.c.id)

        async def work(connection: AsyncConnection) -> int:
            account_id: int = (await connection.execute(statement)).scalar_one()
            await self._put_credit_limit(connection, attrs.evolve(account, id=account_id))
            await add_row(connection, audit and attrs.evolve(audit, account_id=account_id))
            return account_id

        try:
            account_id = await self._database.write(work)
        except IntegrityError:
            raise Conflict(f"An account called {account.name!r} exists already", param="name") from None
        return attrs.evolve(account, id=account_id)

    async def put_account(
        self, account: Account, audit: AuditRow | None = None, *, original: Account | None = None
    ) -> None:
        """Replace the account of the same id; with ``original``, only the fields that differ from it.

        Raises ``NotFound`` if the account does not exist. Raises ``Conflict`` if its name is taken, or a field that
        differs was changed since ``original`` was read.
        """
        is_account = accounts.c.id == account.id

        async def work(connection: AsyncConnection) -> None:
            row = (await connection.execute(select(accounts).where(is_account).with_for_update())).first()
            if row is None:
                raise NotFound(f"No account has the id {account.id}")
            merged_account = account if original is None else merge_change(original, account, parse_account(row))
            await connection.execute(update(accounts).where(is_account).values(build_account_row(merged_account)))
            if row.quota_nanos != merged_account.quota.limit_nanos or row.quota_period != merged_account.quota.period:
                await self._put_credit_limit(connection, attrs.evolve(merged_account, id=account.id))

        try:
            await self._database.write(work, audit)
        except IntegrityError:
            raise Conflict(f"An account called {account.name!r} exists already", param="name") from None

    async def delete_account(self, account_id: int, audit: AuditRow | None = None) -> None:
        """Delete an account with the rows that reference it, and the budgets of its sessions. Raises ``NotFound``."""

        async def work(connection: AsyncConnection) -> None:
            if self._database.credit is not None:
                await self._database.credit.end_balances(connection, ("account", account_id))
            if not (await connection.execute(delete(accounts).where(accounts.c.id == account_id))).rowcount:
                raise NotFound(f"No account has the id {account_id}")
            await connection.execute(delete(session_states).where(session_states.c.account_id == account_id))

        await self._database.write(work, audit)

    async def _put_credit_limit(self, connection: AsyncConnection, account: Account) -> None:
        if self._database.credit is not None:
            await self._database.credit.set_limit(connection, ("account", account.id), account.quota)
