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
    """Reads accounts and keys, and writes each change together with its audit row."""

    def __init__(self, accounts: AccountRepository, keys: ApiKeyRepository, *, clock: Callable[[], float]) -> None:
        self.accounts = accounts
        self.keys = keys
        self._clock = clock

    @property
    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    # --- reading: objects outside the actor's scope do not exist for the actor

    async def list_accounts(self, actor: Actor) -> list[Account]:
        return [account for account in await self.accounts.list_accounts() if actor.may_see(account.id)]

    async def get_account(self, name: str, actor: Actor) -> Account:
        for account in await self.list_accounts(actor):
            if account.name == name:
                return account
        raise NotFound(f"No account is called {name!r}", param="account")

    async def get_key(self, key_id: int, actor: Actor) -> ApiKey:
        for key in await self.keys.find_keys([key_id], ()):
            if actor.may_see(key.account_id):
                return key
        raise NotFound(f"No key has the id {key_id}")

    async def get_owner(self, key: ApiKey) -> Account:
        for account in await self.accounts.list_accounts():
            if account.id == key.account_id:
                return account
        raise NotFound(f"No key has the id {key.id}")

    # --- changing: an audit row in the same transaction, unless nothing changes

    async def add_account(self, spec: AccountSpec, actor: Actor, *, declared: bool = False) -> Account:
        blank_account = attrs.evolve(_NEW_ACCOUNT, name=spec.name, declared=declared, created_ms=self.now_ms)
        account = spec.apply(blank_account)  # a new account has its time zone from the beginning
        detail = build_change(build_account_fields(blank_account), build_account_fields(account))
        audit = actor.build_audit_row("account.created", account.name, self.now_ms, detail=detail)
        return await self.accounts.add_account(account, audit)

    async def put_account(self, current_account: Account, changed_account: Account, actor: Actor) -> None:
        detail = build_change(build_account_fields(current_account), build_account_fields(changed_account))
        audit = actor.build_audit_row(
            "account.edited", current_account.name, self.now_ms, account_id=current_account.id, detail=detail
        )
        await self.accounts.put_account(
            changed_account, None if changed_account == current_account else audit, original=current_account
        )

    async def delete_account(self, account: Account, actor: Actor) -> None:
        keys = [key.name for key in await self.keys.list_keys() if key.account_id == account.id]
        detail = build_change({"keys": keys}, {"keys": []})
        audit = actor.build_audit_row(
            "account.deleted", account.name, self.now_ms, account_id=account.id, detail=detail
        )
        await self.accounts.delete_account(account.id, audit)

    async def add_key(self, spec: KeySpec, new_key: ApiKey, account: Account, actor: Actor) -> ApiKey:
        """Store ``new_key`` with the settings of ``spec``; return the stored key. Raises ``Conflict``, ``NotFound``."""
        new_key = attrs.evolve(new_key, name=spec.name)
        key = spec.apply(new_key)
        detail = build_change(_build_key_with_secrets(new_key, account), _build_key_with_secrets(key, account))
        return await self.keys.add_key(key, self._build_audit("key.created", key, account, actor, detail=detail))

    async def put_key(
        self, current_key: ApiKey, changed_key: ApiKey, account: Account, actor: Actor, *, action: str = "key.edited"
    ) -> None:
        detail = build_change(
            _build_key_with_secrets(current_key, account), _build_key_with_secrets(changed_key, account)
        )
        audit = self._build_audit(action, current_key, account, actor, detail=detail)
        await self.keys.put_key(changed_key, None if changed_key == current_key else audit, original=current_key)

    async def delete_key(self, key: ApiKey, actor: Actor) -> None:
        await self.keys.delete_key(key.id, self._build_audit("key.deleted", key, await self.get_owner(key), actor))

    def _build_audit(self, action: str, key: ApiKey, account: Account, actor: Actor, *, detail: str = "{}") -> AuditRow:
        return actor.build_audit_row(
            action, f"{account.name}/{key.name}", self.now_ms, account_id=account.id, detail=detail
        )


def _build_key_with_secrets(key: ApiKey, account: Account) -> dict[str, Any]:
    """Return a key as JSON with the digest of its secret. ``build_change`` logs only whether the digests differ."""
    until_s = key.former_until_s
    return {
        **build_key_fields(key, account.name),
        "secret": key.digest.hex(),
        "former_until": None if until_s is None else build_time(until_s),
    }
