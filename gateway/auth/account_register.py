"""Stored accounts and keys within the scope of an actor. Every change is audited."""

from collections.abc import Callable
from typing import Any

import attrs

from gateway.domain.account import Account, ApiKey
from gateway.domain.account_spec import AccountSpec, KeySpec, build_account_fields, build_key_fields, build_time
from gateway.domain.audit_log import Actor, AuditRow, build_change
from gateway.errors import NotFound
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository

_NEW_ACCOUNT = Account(id=0, name="")


class AccountRegister:
    """Reads accounts and keys, and writes each change together with its audit row. ``clock``: Unix seconds."""

    def __init__(self, accounts: AccountRepository, keys: ApiKeyRepository, *, clock: Callable[[], float]) -> None:
        self.accounts = accounts
        self.keys = keys
        self._clock = clock

    @property
    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    # --- reading: objects outside the actor's scope do not exist for the actor

    async def list_accounts(self, by: Actor) -> list[Account]:
        return [account for account in await self.accounts.list_accounts() if by.may_see(account.id)]

    async def get_account(self, name: str, by: Actor) -> Account:
        for account in await self.list_accounts(by):
            if account.name == name:
                return account
        raise NotFound(f"No account is called {name!r}", param="account")

    async def get_key(self, key_id: int, by: Actor) -> ApiKey:
        for key in await self.keys.list_keys():
            if key.id == key_id and by.may_see(key.account_id):
                return key
        raise NotFound(f"No key has the id {key_id}")

    async def get_owner(self, key: ApiKey) -> Account:
        for account in await self.accounts.list_accounts():
            if account.id == key.account_id:
                return account
        raise NotFound(f"No key has the id {key.id}")

    # --- changing: an audit row in the same transaction, unless nothing changes

    async def add_account(self, spec: AccountSpec, by: Actor, *, declared: bool = False) -> Account:
        fresh = attrs.evolve(_NEW_ACCOUNT, name=spec.name, declared=declared, created_ms=self.now_ms)
        account = spec.apply(fresh)
        detail = build_change(build_account_fields(fresh), build_account_fields(account))
        audit = by.build_audit_row("account.created", account.name, self.now_ms, detail=detail)
        return await self.accounts.add_account(account, audit)

    async def put_account(self, before: Account, after: Account, by: Actor) -> None:
        detail = build_change(build_account_fields(before), build_account_fields(after))
        audit = by.build_audit_row("account.edited", before.name, self.now_ms, account_id=before.id, detail=detail)
        await self.accounts.put_account(after, None if after == before else audit, before=before)

    async def delete_account(self, account: Account, by: Actor) -> None:
        keys = [key.name for key in await self.keys.list_keys() if key.account_id == account.id]
        detail = build_change({"keys": keys}, {"keys": []})
        audit = by.build_audit_row("account.deleted", account.name, self.now_ms, account_id=account.id, detail=detail)
        await self.accounts.delete_account(account.id, audit)

    async def add_key(self, spec: KeySpec, fresh: ApiKey, account: Account, by: Actor) -> ApiKey:
        """Create a key: ``fresh`` with the settings of ``spec``. Raises ``Conflict``, ``NotFound``."""
        fresh = attrs.evolve(fresh, name=spec.name)
        key = spec.apply(fresh)
        detail = build_change(_build_all(fresh, account), _build_all(key, account))
        return await self.keys.add_key(key, self._note("key.created", key, account, by, detail=detail))

    async def put_key(
        self, before: ApiKey, after: ApiKey, account: Account, by: Actor, *, action: str = "key.edited"
    ) -> None:
        detail = build_change(_build_all(before, account), _build_all(after, account))
        audit = self._note(action, before, account, by, detail=detail)
        await self.keys.put_key(after, None if after == before else audit, before=before)

    async def delete_key(self, key: ApiKey, by: Actor) -> None:
        await self.keys.delete_key(key.id, self._note("key.deleted", key, await self.get_owner(key), by))

    def _note(self, action: str, key: ApiKey, account: Account, by: Actor, *, detail: str = "{}") -> AuditRow:
        return by.build_audit_row(
            action, f"{account.name}/{key.name}", self.now_ms, account_id=account.id, detail=detail
        )


def _build_all(key: ApiKey, account: Account) -> dict[str, Any]:
    """Return a key as JSON with its secrets. ``build_change`` logs only whether the secrets differ."""
    until_s = key.former_until_s
    return {
        **build_key_fields(key, account.name),
        "secret": key.digest.hex(),
        "former_until": None if until_s is None else build_time(until_s),
    }
