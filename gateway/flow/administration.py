"""What an operator does: accounts and keys, looked at and changed. The admin API is this over HTTP.

What the configuration file declares is read-only here; ``declare`` alone writes it.
"""

import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from gateway.domain.caller import KEY_LENGTH, KEY_PREFIX, Account, AccountStore, ApiKey, KeyStore
from gateway.domain.declaration import AccountSpec, KeySpec, write_account, write_key
from gateway.domain.fault import Conflict, InvalidRequest, NotFound
from gateway.domain.reading import Problems, read_table
from gateway.flow.accounting import Accounting
from gateway.flow.auth import Directory

_ALPHABET = string.ascii_letters + string.digits
_NEW_ACCOUNT = Account(id=0, name="")

Fields = dict[str, Any]
S = TypeVar("S")
T = TypeVar("T", AccountSpec, KeySpec)


class Administration:
    """Accounts and keys. Every change is in force when it returns; ``directory`` is what it is in force in.

    Args:
        accounts: where accounts live.
        keys: where keys live.
        directory: told of every change.
        accounting: knows what each has spent.
        clock: Unix seconds.
    """

    def __init__(
        self,
        accounts: AccountStore,
        keys: KeyStore,
        directory: Directory,
        accounting: Accounting,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._accounts = accounts
        self._keys = keys
        self.directory = directory
        self._accounting = accounting
        self._clock = clock

    async def reload(self) -> None:
        """Bring what the store holds into force."""
        await self.directory.reload()

    async def list_accounts(self) -> list[Fields]:
        """Every account."""
        return [self._show_account(account) for account in await self._accounts.list_accounts()]

    async def get_account(self, name: str) -> Fields:
        """One account by its name. Raises ``NotFound``."""
        return self._show_account(await self.get_account_noun(name))

    async def add_account(self, fields: Fields) -> Fields:
        """A new account. Raises ``InvalidRequest``, ``Conflict``."""
        spec = read_spec(fields, AccountSpec)
        account = spec.apply(attrs.evolve(_NEW_ACCOUNT, created_ms=self._now_ms()))
        return self._show_account(await self._accounts.add_account(account))

    async def edit_account(self, name: str, fields: Fields) -> Fields:
        """Change some fields. Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
        account = await self.get_account_noun(name)
        _check_editable(account.declared, f"account {name!r}")
        changed = _read_change(write_account(account), fields, AccountSpec).apply(account)
        await self._accounts.put_account(changed)
        await self.directory.reload()
        return self._show_account(changed)

    async def delete_account(self, name: str) -> None:
        """Remove an account and its keys. Raises ``NotFound``, ``Conflict``."""
        account = await self.get_account_noun(name)
        _check_editable(account.declared, f"account {name!r}")
        await self._accounts.delete_account(account.id)
        await self.directory.reload()

    async def list_keys(self) -> list[Fields]:
        """Every key, without its secret."""
        names = {account.id: account.name for account in await self._accounts.list_accounts()}
        return [self._show_key(key, names[key.account_id]) for key in await self._keys.list_keys()]

    async def get_key(self, key_id: int) -> Fields:
        """One key. Raises ``NotFound``."""
        for fields in await self.list_keys():
            if fields["id"] == key_id:
                return fields
        raise NotFound(f"No key has the id {key_id}")

    async def add_key(self, fields: Fields) -> Fields:
        """A new key; only here is its ``secret`` ever shown. Raises ``InvalidRequest``, ``NotFound``, ``Conflict``."""
        spec = read_spec(fields, KeySpec)
        account = await self.get_account_noun(spec.account)
        _check_group(spec.group, account)
        secret = spec.secret or make_secret()
        key = await self._keys.add_key(spec.apply(self._new_key(account, secret)))
        await self.directory.reload()
        return {**self._show_key(key, account.name), "secret": secret}

    async def edit_key(self, key_id: int, fields: Fields) -> Fields:
        """Change some fields; not the account or the secret. Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
        key = await self.get_key_noun(key_id)
        _check_editable(key.declared, f"key {key_id}")
        before = await self.get_key(key_id)
        spec = _read_change(before, fields, KeySpec)
        if spec.account != before["account"] or spec.secret is not None:
            raise InvalidRequest("A key keeps its account and its secret; make another key", param="account")
        _check_group(spec.group, await self.get_account_noun(spec.account))
        changed = spec.apply(key)
        await self._keys.put_key(changed)
        await self.directory.reload()
        return self._show_key(changed, before["account"])

    async def delete_key(self, key_id: int) -> None:
        """Remove a key. Raises ``NotFound``, ``Conflict``."""
        key = await self.get_key_noun(key_id)
        _check_editable(key.declared, f"key {key_id}")
        await self._keys.delete_key(key_id)
        await self.directory.reload()

    async def declare(self, accounts: Iterable[AccountSpec], keys: Iterable[KeySpec]) -> None:
        """Make the store agree with the configuration file.

        What it declares is written as it says; what an earlier file declared and this one does not is disabled,
        and no longer read-only. A name that was made by hand is taken over.
        """
        await self._declare_accounts(accounts)
        await self._declare_keys(keys)
        await self.directory.reload()

    async def _declare_accounts(self, specs: Iterable[AccountSpec]) -> None:
        known = {account.name: account for account in await self._accounts.list_accounts()}
        declared = set()
        for spec in specs:
            declared.add(spec.name)
            before = known.get(spec.name)
            if before is None:
                fresh = attrs.evolve(_NEW_ACCOUNT, declared=True, created_ms=self._now_ms())
                await self._accounts.add_account(spec.apply(fresh))
                continue
            after = attrs.evolve(spec.apply(before), declared=True)
            if after != before:
                await self._accounts.put_account(after)
        for account in known.values():
            if account.declared and account.name not in declared:
                await self._accounts.put_account(attrs.evolve(account, declared=False, status="disabled"))

    async def _declare_keys(self, specs: Iterable[KeySpec]) -> None:
        accounts = {account.name: account for account in await self._accounts.list_accounts()}
        wanted = {(accounts[spec.account].id, spec.name): spec for spec in specs}
        await self._free_secrets(wanted)
        known = {(key.account_id, key.name): key for key in await self._keys.list_keys()}
        for place, spec in wanted.items():
            fresh = attrs.evolve(self._new_key(accounts[spec.account], spec.secret or ""), declared=True)
            before = known.get(place)
            if before is None:
                await self._keys.add_key(spec.apply(fresh))
                continue
            after = spec.apply(attrs.evolve(fresh, id=before.id, created_ms=before.created_ms))
            if after != before:
                await self._keys.put_key(after)
        for place, key in known.items():
            if key.declared and place not in wanted:
                await self._keys.put_key(attrs.evolve(key, declared=False, status="disabled"))

    async def _free_secrets(self, wanted: Mapping[tuple[int, str], KeySpec]) -> None:
        """Take a secret that the file gives to one key away from any other key that has it: it was renamed or moved."""
        owners = {self.directory.digest(spec.secret or ""): place for place, spec in wanted.items()}
        for key in await self._keys.list_keys():
            if owners.get(key.digest, (key.account_id, key.name)) != (key.account_id, key.name):
                unusable = secrets.token_bytes(len(key.digest))
                await self._keys.put_key(attrs.evolve(key, digest=unusable, status="disabled"))

    def _new_key(self, account: Account, secret: str) -> ApiKey:
        return ApiKey(
            id=0,
            account_id=account.id,
            name="",
            digest=self.directory.digest(secret),
            last4=secret[-4:],
            created_ms=self._now_ms(),
        )

    async def get_account_noun(self, name: str) -> Account:
        """The account itself. Raises ``NotFound``."""
        for account in await self._accounts.list_accounts():
            if account.name == name:
                return account
        raise NotFound(f"No account is called {name!r}", param="account")

    async def get_key_noun(self, key_id: int) -> ApiKey:
        """The key itself. Raises ``NotFound``."""
        for key in await self._keys.list_keys():
            if key.id == key_id:
                return key
        raise NotFound(f"No key has the id {key_id}")

    def _show_account(self, account: Account) -> Fields:
        return write_account(account) | self._accounting.describe(account)

    def _show_key(self, key: ApiKey, account: str) -> Fields:
        return write_key(key, account) | self._accounting.describe(key)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def make_secret() -> str:
    """A new key's secret: ``sk-`` and 48 characters from the system's random source."""
    return KEY_PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(KEY_LENGTH))


def read_spec(fields: Fields, kind: type[S]) -> S:
    """Fields of the admin API -> what they specify. Raises ``InvalidRequest`` with every problem."""
    try:
        return read_table(fields, kind)
    except Problems as error:
        where, _ = error.problems[0]
        message = "; ".join(f"{path}: {what}" for path, what in error.problems)
        raise InvalidRequest(message, param=where) from None
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def _read_change(before: Fields, change: Fields, kind: type[T]) -> T:
    """What stands, with ``change`` over it. A null in ``change`` takes a setting back."""
    names = {field.name for field in attrs.fields(kind)}
    kept = {name: value for name, value in before.items() if name in names and value is not None}
    if "quota_usd" in change and "quota_period" not in change and kept.get("quota_period") == "none":
        del kept["quota_period"]
    merged = kept | change
    return read_spec({name: value for name, value in merged.items() if value is not None}, kind)


def _check_editable(declared: bool, what: str) -> None:
    if declared:
        raise Conflict(f"The {what} is declared in the configuration file; change it there")


def _check_group(group: str | None, account: Account) -> None:
    if group is not None and account.groups and group not in account.groups:
        allowed = ", ".join(account.groups)
        raise InvalidRequest(f"The account {account.name!r} may use the groups {allowed}, not {group!r}", param="group")
