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
from gateway.domain.key_lock import LOCKABLE_FIELDS, lock_fields

KeyPath = tuple[int, str]
"""The id of a key's account, and the key's name in that account."""


def digest_declared(accounts: Iterable[AccountSpec], keys: Iterable[KeySpec], pepper: bytes) -> str:
    """Return a digest of a file's accounts and keys, secrets included. Guessing a secret from it needs ``pepper``."""
    declared_rows = [*map(attrs.asdict, accounts), *map(attrs.asdict, keys)]
    return hmac.digest(pepper, orjson.dumps(declared_rows, default=str), "sha256").hex()


async def declare(service: AccountService, accounts: Iterable[AccountSpec], keys: Iterable[KeySpec]) -> None:
    """Make the stored accounts and keys agree with the configuration file.

    Declared accounts and keys become read-only; an existing account or key of the same name is taken over. Accounts and
    keys that only an earlier file declared are disabled, and no longer read-only.
    """
    async with service.change_lock:
        await _declare_keys(service, keys, await _declare_accounts(service, accounts))
        await service.directory.reload()


async def _declare_accounts(service: AccountService, specs: Iterable[AccountSpec]) -> list[Account]:
    register = service.register
    known_accounts = {account.name: account for account in await register.list_accounts(FILE)}
    accounts = dict(known_accounts)
    for spec in specs:
        current_account = known_accounts.pop(spec.name, None)
        if current_account is None:
            accounts[spec.name] = await register.add_account(spec, FILE, declared=True)
            continue
        specified_account = spec.apply(current_account, register.now_ms / 1000)
        accounts[spec.name] = declared_account = attrs.evolve(specified_account, declared=True)
        if declared_account != current_account:
            await register.put_account(current_account, declared_account, FILE)
    for account in known_accounts.values():
        if account.declared:
            await register.put_account(account, attrs.evolve(account, declared=False, status="disabled"), FILE)
    return list(accounts.values())


async def _declare_keys(service: AccountService, specs: Iterable[KeySpec], accounts: Sequence[Account]) -> None:
    register = service.register
    by_name, by_id = {account.name: account for account in accounts}, {account.id: account for account in accounts}
    specs_by_path = {(by_name[spec.account].id, spec.name): spec for spec in specs}
    known_keys = {(key.account_id, key.name): key for key in await _free_secrets(service, specs_by_path, by_id)}
    for path, spec in specs_by_path.items():
        account = by_id[path[0]]
        new_key = attrs.evolve(service.make_blank_key(account, spec.secret or ""), declared=True)
        current_key = known_keys.pop(path, None)
        if current_key is None:
            await register.add_key(spec, new_key, account, FILE)
            continue
        declared_key = spec.apply(attrs.evolve(new_key, id=current_key.id, created_ms=current_key.created_ms))
        if declared_key != current_key:
            await register.put_key(current_key, declared_key, account, FILE)
    for key in known_keys.values():
        if key.declared:
            declared_key = lock_fields(attrs.evolve(key, declared=False, status="disabled"), LOCKABLE_FIELDS)
            await register.put_key(key, declared_key, by_id[key.account_id], FILE)


async def _free_secrets(
    service: AccountService, specs_by_path: Mapping[KeyPath, KeySpec], accounts: Mapping[int, Account]
) -> list[ApiKey]:
    """Take the file's secrets away from other stored keys, because a secret belongs to one key.

    Another key has such a secret if a key was renamed, or moved to another account, in the file. That key is disabled,
    unless only its former secret was taken. Return all stored keys afterwards.
    """
    paths = {service.directory.digest(spec.secret or ""): path for path, spec in specs_by_path.items()}
    keys = list(await service.register.keys.list_keys())
    for index, key in enumerate(keys):
        key_path = (key.account_id, key.name)
        freed_key = key
        if key.former_digest is not None and paths.get(key.former_digest, key_path) != key_path:
            freed_key = attrs.evolve(freed_key, former_digest=None, former_until_s=None)
        if paths.get(key.digest, key_path) != key_path:
            unusable_digest = secrets.token_bytes(len(key.digest))
            freed_key = attrs.evolve(freed_key, digest=unusable_digest, status="disabled")
        if freed_key is not key:
            keys[index] = freed_key
            await service.register.put_key(key, freed_key, accounts[key.account_id], FILE)
    return keys
