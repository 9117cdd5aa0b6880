"""Accounts and API keys as the admin API shows and changes them.

Accounts and keys of the configuration file are read-only here; ``auth/declared.py`` writes them.
"""

import asyncio
import secrets
import string
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import attrs

from gateway.auth.account_register import AccountRegister
from gateway.auth.api_keys import ApiKeyAuthenticator
from gateway.billing.accounting import AccountingService
from gateway.deferred import load
from gateway.domain.account import KEY_LENGTH, KEY_PREFIX, Account, ApiKey, Caller
from gateway.domain.account_spec import (
    AccountSpec,
    KeySpec,
    RotateSpec,
    build_account_fields,
    build_key_fields,
    build_time,
)
from gateway.domain.audit_log import OPERATOR, Actor
from gateway.domain.key_lock import check_deletable, check_locks, lock_fields
from gateway.domain.webhook import find_webhook_problem
from gateway.errors import Conflict, InvalidRequest
from gateway.frozen import quick_frozen
from gateway.parsing import parse_spec
from gateway.storage.accounts import AccountRepository
from gateway.storage.api_keys import ApiKeyRepository
from gateway.storage.merging import ChangedMeanwhile

_ALPHABET = string.ascii_letters + string.digits
MAX_KEYS, MAX_CHARS = 500, 4_096
"""Limits for keys that members create or change: keys per account, and characters in a list of a key. Compiling
a glob takes 20 us per character, on the event loop."""

Fields = dict[str, Any]
KeyState = Literal["active", "disabled", "expired"]
T = TypeVar("T", AccountSpec, KeySpec)
R = TypeVar("R")


@quick_frozen
class AccountRules:
    """External rules for accounts and keys.

    Attributes:
        find_webhook_hosts: returns globs of the hosts that a member may use in a key's webhook URL.
        find_groups: returns the groups of channels and prices; accounts and keys may use no others. If it returns
            None, any group is valid.
        check_account_may_go: raises ``Conflict`` if every active administrator belongs to the account.
        shared: whether other nodes use the keys, too. Their last uses are read from the stored requests, and accounts
            with a time zone must not have daily or monthly quotas.
    """

    find_webhook_hosts: Callable[[], tuple[str, ...]]
    find_groups: Callable[[], Collection[str] | None]
    check_account_may_go: Callable[[int], Awaitable[None]]
    shared: bool


class AccountService:
    """Reads and changes accounts and keys. A change is in force in this process when the method returns.

    A member as ``actor`` sees only the member's own account. ``change_lock`` is held during every change that
    depends on what was read before it.
    """

    def __init__(
        self,
        accounts: AccountRepository,
        keys: ApiKeyRepository,
        directory: ApiKeyAuthenticator,
        accounting: AccountingService,
        *,
        clock: Callable[[], float],
        rules: AccountRules,
    ) -> None:
        self.register = AccountRegister(accounts, keys, clock=clock)
        self.directory = directory
        self._accounting = accounting
        self._clock = clock
        self._rules = rules
        self.change_lock = asyncio.Lock()

    async def reload(self) -> None:
        await self.directory.reload()

    async def list_accounts(self, actor: Actor = OPERATOR) -> list[Fields]:
        accounts = await self.register.list_accounts(actor)
        await self._accounting.refresh(*accounts)
        return [self._show_account(account) for account in accounts]

    async def get_account(self, name: str, actor: Actor = OPERATOR) -> Fields:
        return await self._read_account(await self.get_stored_account(name, actor))

    async def add_account(self, fields: Fields, actor: Actor = OPERATOR) -> Fields:
        spec = parse_spec(fields, AccountSpec)
        self._check_groups(spec.groups, "groups")
        self._check_zone(spec.apply(Account(0, spec.name)), (), "timezone")
        account = await self.register.add_account(spec, actor)
        self._accounting.set_zones([account], ())
        return await self._read_account(account)

    async def edit_account(self, name: str, fields: Fields, actor: Actor = OPERATOR) -> Fields:
        async with self.change_lock:
            changed_account = await _retry_once(partial(self._edit_account, name, fields, actor))
            await self.directory.reload()
        return await self._read_account(changed_account)

    async def _edit_account(self, name: str, fields: Fields, actor: Actor) -> Account:
        account = await self.get_stored_account(name, actor)
        _check_editable(account.declared, f"account {name!r}")
        changed_account = parse_change(build_account_fields(account), fields, AccountSpec).apply(account, self._clock())
        self._check_groups(set(changed_account.groups) - set(account.groups), "groups")
        if changed_account.timezone is not None and self._rules.shared:
            keys = [key for key in await self.register.keys.list_keys() if key.account_id == account.id]
            param = "quota_period" if changed_account.zones == account.zones else "timezone"
            self._check_zone(changed_account, keys, param)
        if account.status == "active" and changed_account.status != "active":
            await self._rules.check_account_may_go(account.id)
        await self.register.put_account(account, changed_account, actor)
        return changed_account

    async def delete_account(self, name: str, actor: Actor = OPERATOR, *, confirm: str | None = None) -> None:
        """Delete an account and its keys. ``confirm`` must be its name for the only or the actor's own account.

        Raises ``NotFound``, ``InvalidRequest`` without that ``confirm``, and ``Conflict`` if the account is declared in
        the configuration file or has every active administrator.
        """
        async with self.change_lock:
            account = await self.get_stored_account(name, actor)
            _check_editable(account.declared, f"account {name!r}")
            if confirm != name:
                await self._check_unconfirmed(account, actor)
            await self._rules.check_account_may_go(account.id)
            await self.register.delete_account(account, actor)
            await self.directory.reload()

    async def list_keys(self, actor: Actor = OPERATOR, account: str | None = None) -> list[Fields]:
        """Return the keys that ``actor`` may see, or those of one account, without secrets.

        Raises ``NotFound`` for an unknown account.
        """
        return await self.show_keys(await self.list_callers(actor, account))

    async def list_callers(self, actor: Actor = OPERATOR, account: str | None = None) -> list[Caller]:
        """Return the keys that ``actor`` may see, or those of one account, each with its account.

        Raises ``NotFound`` for an unknown account.
        """
        if account is not None:
            actor = attrs.evolve(actor, scope=(await self.get_stored_account(account, actor)).id)
        return [caller for caller in self.directory.list_callers() if actor.may_see(caller.account.id)]

    async def show_keys(self, callers: Sequence[Caller]) -> list[Fields]:
        """Return the fields of keys with their balances, without secrets."""
        keys = [caller.key for caller in callers]
        await self._accounting.refresh(*keys)
        last_used_ms_by_key = await self._find_last_uses(keys)
        return [self._show_key(caller.key, caller.account.name, last_used_ms_by_key) for caller in callers]

    def find_key_state(self, key: ApiKey) -> KeyState:
        """Return the status of a key: ``expired`` for an active key whose expiry has passed."""
        has_expired = key.status == "active" and key.expires_s is not None and key.expires_s <= self._clock()
        return "expired" if has_expired else key.status

    async def describe_balances(self, keys: Sequence[ApiKey]) -> dict[int, Fields]:
        """Return what each key has spent and has left, by its id."""
        await self._accounting.refresh(*keys)
        return {key.id: self._accounting.describe(key) for key in keys}

    async def get_key(self, key_id: int, actor: Actor = OPERATOR) -> Fields:
        key = await self.get_stored_key(key_id, actor)
        return await self._read_key(key, (await self.register.get_owner(key)).name)

    async def add_key(self, fields: Fields, actor: Actor = OPERATOR) -> Fields:
        """Create a key. Only this result contains its ``secret``.

        A member's key gets the member's account, and by default that account's first group. The group decides prices
        and channels, so a member may only choose one of the account's groups.

        Raises ``InvalidRequest``, ``NotFound``, ``Conflict``.
        """
        if actor.scope is not None:
            if fields.get("secret") is not None:
                raise InvalidRequest("The gateway generates the secret of a key", param="secret")
            account_name = next((account.name for account in await self.register.list_accounts(actor)), "")
            fields = {"account": account_name, **fields}
        spec = parse_spec(fields, KeySpec)
        async with self.change_lock:
            account = await self.get_stored_account(spec.account, actor)
            if actor.scope is not None:
                await self._check_key_count(account)
                if spec.group is None and account.groups:
                    spec = attrs.evolve(spec, group=account.groups[0])
            self._check_key(spec, self.make_blank_key(account, ""), account, actor)
            self._check_zone(account, [spec.apply(self.make_blank_key(account, ""))], "quota_period")
            secret = spec.secret or make_secret()
            new_key = self.make_blank_key(account, secret)
            if actor.scope is None:
                new_key = attrs.evolve(new_key, locked=lock_fields(spec.apply(new_key), fields).locked)
            key = await self.register.add_key(spec, new_key, account, actor)
            await self.directory.reload_owners([key.id], ())
        return {**await self._read_key(key, account.name), "secret": secret}

    async def edit_key(self, key_id: int, fields: Fields, actor: Actor = OPERATOR) -> Fields:
        """Change fields of a key.

        Raises ``Forbidden`` if a member changes a locked field, ``InvalidRequest``, ``NotFound``, ``Conflict``.
        """
        async with self.change_lock:
            changed_key, account = await _retry_once(partial(self._edit_key, key_id, fields, actor))
            await self.directory.reload_owners([key_id], ())
        return await self._read_key(changed_key, account.name)

    async def _edit_key(self, key_id: int, fields: Fields, actor: Actor) -> tuple[ApiKey, Account]:
        key = await self.get_stored_key(key_id, actor)
        _check_editable(key.declared, f"key {key_id}")
        account = await self.register.get_owner(key)
        spec = parse_change(build_key_fields(key, account.name), fields, KeySpec)
        if actor.scope is not None:
            await self.get_stored_account(spec.account, actor)
        if spec.account != account.name or spec.secret is not None:
            raise InvalidRequest("A key keeps its account and its secret; make another key", param="account")
        self._check_key(spec, key, account, actor)
        changed_key = spec.apply(key)
        self._check_zone(account, [changed_key], "quota_period")
        if actor.scope is None:
            changed_key = lock_fields(changed_key, fields)
        else:
            check_locks(key, changed_key)
        await self.register.put_key(key, changed_key, account, actor)
        return changed_key, account

    async def rename_user(self, names: Collection[str], new_name: str, account_id: int | None) -> int:
        """Replace the ``names`` of an end user in stored keys by ``new_name``; return the number of changed keys.

        ``account_id`` None means the keys of all accounts. Keys of the configuration file stay as they are. No audit
        row is written, because it would have the name.
        """
        renamed_count = 0
        async with self.change_lock:
            for key in await self.register.keys.list_keys():
                if key.user in names and not key.declared and account_id in {None, key.account_id}:
                    await self.register.keys.put_key(attrs.evolve(key, user=new_name), original=key)
                    renamed_count += 1
            if renamed_count:
                await self.directory.reload()
        return renamed_count

    async def rotate_key(self, key_id: int, fields: Fields, actor: Actor = OPERATOR) -> Fields:
        """Give a key a new ``secret``, returned only here. The former secret stays valid for the overlap.

        Raises ``NotFound``, ``InvalidRequest``, and ``Conflict`` for a key declared in the configuration file.
        """
        overlap_s = parse_spec(fields, RotateSpec).overlap_h * 3_600
        async with self.change_lock:
            key = await self.get_stored_key(key_id, actor)
            _check_editable(key.declared, f"key {key_id}")
            account, secret = await self.register.get_owner(key), make_secret()
            rotated_key = attrs.evolve(
                key,
                digest=self.directory.digest(secret),
                last4=secret[-4:],
                former_digest=key.digest if overlap_s else None,
                former_until_s=int(self._clock()) + overlap_s if overlap_s else None,
            )
            await self.register.put_key(key, rotated_key, account, actor, action="key.rotated")
            await self.directory.reload_owners([key_id], ())
        return {**await self._read_key(rotated_key, account.name), "secret": secret}

    async def delete_key(self, key_id: int, actor: Actor = OPERATOR) -> None:
        async with self.change_lock:
            key = await self.get_stored_key(key_id, actor)
            _check_editable(key.declared, f"key {key_id}")
            if actor.scope is not None:
                check_deletable(key.locked)
            await self.register.delete_key(key, actor)
            await self.directory.reload_owners([key_id], ())

    def make_blank_key(self, account: Account, secret: str) -> ApiKey:
        """Return a key of ``account`` with default settings and without a name; it is not stored."""
        return ApiKey(
            id=0,
            account_id=account.id,
            name="",
            digest=self.directory.digest(secret),
            last4=secret[-4:],
            created_ms=self.register.now_ms,
        )

    async def _check_unconfirmed(self, account: Account, actor: Actor) -> None:
        is_own = actor.account_id == account.id
        if is_own or len(await self.register.list_accounts(OPERATOR)) == 1:
            description = "your own account" if is_own else "the only account"
            raise InvalidRequest(
                f"{account.name!r} is {description}: to delete it with all its keys, pass confirm={account.name}",
                param="confirm",
            )

    async def _check_key_count(self, account: Account) -> None:
        keys = await self.register.keys.list_keys()
        if sum(key.account_id == account.id for key in keys) >= MAX_KEYS:
            raise Conflict(f"The account {account.name!r} has {MAX_KEYS} keys or more: delete one that is not in use")

    def _check_key(self, spec: KeySpec, current_key: ApiKey, account: Account, actor: Actor) -> None:
        """Raise ``InvalidRequest`` if the actor may not give a key these settings."""
        _check_group(spec.group, account)
        if spec.group != current_key.group:
            self._check_groups([spec.group] if spec.group else [], "group")
        expires_s = None if spec.expires_at is None else int(spec.expires_at.timestamp())
        if expires_s is not None and expires_s != current_key.expires_s and expires_s <= self._clock():
            raise InvalidRequest("expires_at is in the past; to end the key now, disable it", param="expires_at")
        if actor.scope is None:
            return
        if spec.group != current_key.group and spec.group not in account.groups:
            group_names = " or ".join(account.groups) or "no other: ask an administrator"
            raise InvalidRequest(f"The group of this key may be {group_names}", param="group")
        url = spec.webhook_url
        problem = (
            None
            if url in {None, current_key.webhook_url}
            else find_webhook_problem(url or "", self._rules.find_webhook_hosts())
        )
        if problem is not None:
            raise InvalidRequest(problem, param="webhook_url")
        for name, values in (("models", spec.models), ("allow_ips", spec.allow_ips)):
            if sum(map(len, values)) > MAX_CHARS and values != getattr(current_key, name):
                raise InvalidRequest(f"expected {MAX_CHARS} characters at the most, in all", param=name)

    def _check_groups(self, groups: Iterable[str], param: str) -> None:
        known_groups = self._rules.find_groups()
        for group in groups:
            if known_groups is not None and group not in known_groups:
                explanation = (
                    f"the groups are {', '.join(sorted(known_groups))}" if known_groups else "there are no groups yet"
                )
                raise InvalidRequest(f"No channel or price group is called {group!r}; {explanation}", param=param)

    def _check_zone(self, account: Account, keys: Collection[ApiKey], param: str) -> None:
        """Raise ``InvalidRequest`` if quotas of a cluster would have to begin at the midnight of a time zone."""
        if account.timezone is not None and self._rules.shared:
            load("domain.zone_quotas:check_quotas")(account, keys, param)

    async def get_stored_account(self, name: str, actor: Actor = OPERATOR) -> Account:
        return await self.register.get_account(name, actor)

    async def get_stored_key(self, key_id: int, actor: Actor = OPERATOR) -> ApiKey:
        return await self.register.get_key(key_id, actor)

    async def name_accounts(self) -> dict[int, str]:
        return {account.id: account.name for account in await self.register.list_accounts(OPERATOR)}

    async def _read_account(self, account: Account) -> Fields:
        await self._accounting.refresh(account)
        return self._show_account(account)

    async def _read_key(self, key: ApiKey, account: str) -> Fields:
        await self._accounting.refresh(key)
        return self._show_key(key, account, await self._find_last_uses([key]))

    async def _find_last_uses(self, keys: Sequence[ApiKey]) -> Mapping[int, int]:
        """Return the times of the last stored requests by key id, in Unix ms; empty unless other nodes use the keys."""
        return await self.register.keys.find_last_requests([key.id for key in keys]) if self._rules.shared else {}

    def _show_account(self, account: Account) -> Fields:
        return build_account_fields(account) | self._accounting.describe(account)

    def _show_key(self, key: ApiKey, account: str, last_used_ms_by_key: Mapping[int, int]) -> Fields:
        now_s = self._clock()
        last_used_s = max(self.directory.find_last_use(key.id) or 0, last_used_ms_by_key.get(key.id, 0) // 1000)
        former_until_s = key.former_until_s if (key.former_until_s or 0) > now_s else None
        return {
            **build_key_fields(key, account),
            "status": self.find_key_state(key),
            "former_until": None if former_until_s is None else build_time(former_until_s),
            "last_used_at": build_time(int(last_used_s)) if last_used_s else None,
            **self._accounting.describe(key),
        }


async def _retry_once(edit: Callable[[], Awaitable[R]]) -> R:
    """Return what ``edit`` returns. Run ``edit`` once more if another node changed the object meanwhile.

    Raises ``Conflict`` if that happens twice.
    """
    try:
        return await edit()
    except ChangedMeanwhile:
        return await edit()


def make_secret() -> str:
    """Return a new secret: ``sk-`` and 48 characters from the system's random source."""
    return KEY_PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(KEY_LENGTH))


def parse_change(current_fields: Fields, change: Fields, kind: type[T]) -> T:
    """Return the specification of an account or key with the fields ``current_fields``, changed by ``change``.

    Null in ``change`` resets a field. Raises ``InvalidRequest``.
    """
    names = {field.name for field in attrs.fields(kind)}
    current_values = {name: value for name, value in current_fields.items() if name in names and value is not None}
    if "quota_usd" in change and "quota_period" not in change and current_values.get("quota_period") == "none":
        del current_values["quota_period"]
    values = current_values | change
    return parse_spec({name: value for name, value in values.items() if value is not None}, kind)


def _check_editable(is_declared: bool, noun: str) -> None:
    if is_declared:
        raise Conflict(f"The {noun} is declared in the configuration file; change it there")


def _check_group(group: str | None, account: Account) -> None:
    if group is not None and account.groups and group not in account.groups:
        group_names = ", ".join(account.groups)
        raise InvalidRequest(
            f"The account {account.name!r} may use the groups {group_names}, not {group!r}", param="group"
        )
