"""Accounts and API keys that the configuration file declares."""

import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence

import attrs
import orjson

from gateway.auth.accounts import AccountService
from gateway.domain.account import Account, ApiKey
from gateway.domain.account_spec import AccountSpec, KeySpec
from gateway.domain.audit_log import FILE
from gateway.domain.key_lock import LOCKABLE, lock_fields

KeyPath = tuple[int, str]
"""The id of a key's account, and the key's name in it."""


def digest_declared(accounts: Iterable[AccountSpec], keys: Iterable[KeySpec], pepper: bytes) -> str:
    """Return a digest of a file's accounts and keys, secrets included. Guessing a secret from it needs ``pepper``."""
    declared = [*map(attrs.asdict, accounts), *map(attrs.asdict, keys)]
    return hmac.digest(pepper, orjson.dumps(declared, default=str), "sha256").hex()


async def declare(service: AccountService, accounts: Iterable[AccountSpec], keys: Iterable[KeySpec]) -> None:
    """Make the stored accounts and keys agree with the configuration file.

    Declared accounts and keys become read-only; an existing account or key of the same name is taken over. Accounts and
    keys that only an earlier file declared are disabled, and no longer read-only.
    """
    async with service.changing:
        await _declare_keys(service, keys, await _declare_accounts(service, accounts))
        await service.directory.reload()


async def _declare_accounts(service: AccountService, specs: Iterable[AccountSpec]) -> list[Account]:
    register = service.register
    known = {account.name: account for account in await register.list_accounts(FILE)}
    accounts = dict(known)
    for spec in specs:
        before = known.pop(spec.name, None)
        if before is None:
            accounts[spec.name] = await register.add_account(spec, FILE, declared=True)
            continue
        accounts[spec.name] = after = attrs.evolve(spec.apply(before), declared=True)
        if after != before:
            await register.put_account(before, after, FILE)
    for account in known.values():
        if account.declared:
            await register.put_account(account, attrs.evolve(account, declared=False, status="disabled"), FILE)
    return list(accounts.values())


async def _declare_keys(service: AccountService, specs: Iterable[KeySpec], accounts: Sequence[Account]) -> None:
    register = service.register
    by_name, by_id = {account.name: account for account in accounts}, {account.id: account for account in accounts}
    wanted = {(by_name[spec.account].id, spec.name): spec for spec in specs}
    known = {(key.account_id, key.name): key for key in await _free_secrets(service, wanted, by_id)}
    for path, spec in wanted.items():
        account = by_id[path[0]]
        fresh = attrs.evolve(service.new_key(account, spec.secret or ""), declared=True)
        before = known.pop(path, None)
        if before is None:
            await register.add_key(spec, fresh, account, FILE)
            continue
        after = spec.apply(attrs.evolve(fresh, id=before.id, created_ms=before.created_ms))
        if after != before:
            await register.put_key(before, after, account, FILE)
    for key in known.values():
        if key.declared:
            after = lock_fields(attrs.evolve(key, declared=False, status="disabled"), LOCKABLE)
            await register.put_key(key, after, by_id[key.account_id], FILE)


async def _free_secrets(
    service: AccountService, wanted: Mapping[KeyPath, KeySpec], accounts: Mapping[int, Account]
) -> list[ApiKey]:
    """Free the file's secrets from all other keys, renamed or moved in the file. Return all stored keys afterwards."""
    paths = {service.directory.digest(spec.secret or ""): path for path, spec in wanted.items()}
    keys = list(await service.register.keys.list_keys())
    for index, key in enumerate(keys):
        here = (key.account_id, key.name)
        changed = key
        if key.former_digest is not None and paths.get(key.former_digest, here) != here:
            changed = attrs.evolve(changed, former_digest=None, former_until_s=None)
        if paths.get(key.digest, here) != here:
            unusable = secrets.token_bytes(len(key.digest))
            changed = attrs.evolve(changed, digest=unusable, status="disabled")
        if changed is not key:
            keys[index] = changed
            await service.register.put_key(key, changed, accounts[key.account_id], FILE)
    return keys
