"""Admin API: accounts and API keys. A member sees those of its own account."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Literal, get_args

import attrs
import structlog

from gateway.answer_fields import OMITTED, Count, Moment
from gateway.auth.accounts import KeyState
from gateway.deferred import load
from gateway.domain.account import Caller, Status
from gateway.domain.account_spec import AccountSpec, KeySpec, RotateSpec
from gateway.domain.loop_rule import LoopRule
from gateway.errors import InvalidRequest, StoreUnavailable
from gateway.frozen import frozen
from gateway.server.admin.answer import DeletedInForce, InForceField
from gateway.server.admin.handler import AdminRequest, Fields, ListPage, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, parse_key_id, read_change, read_fields
from gateway.server.admin.listing import Listing, replace_objects
from gateway.server.openapi import schema as s

log = structlog.stdlib.get_logger(__name__)


@frozen(kw_only=True)
class AccountView:
    """An account with its balance; ``left_usd`` and ``resets_at`` are null without a quota."""

    id: int
    name: str
    status: Status
    quota_usd: float | None
    quota_period: Literal["none", "daily", "monthly", "lifetime"]
    quota_status: int | None
    rpm: Count | None
    tpm: Count | None
    max_concurrency: Count | None
    burst: Count | None
    groups: Sequence[str]
    timezone: str | None
    declared: bool
    created_at: Moment
    spent_usd: float
    credit_usd: float
    held_usd: float
    left_usd: float | None
    overrun_usd: float
    resets_at: Moment | None
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@frozen(kw_only=True)
class ListedAccountView(AccountView):
    """An account with the numbers of its keys and members."""

    keys: Count
    members: Count


@frozen(kw_only=True)
class KeyFields:
    """A key with its balance. ``locked`` are the fields that an administrator has set."""

    id: int
    name: str
    account: str
    key: str
    status: KeyState
    expires_at: Moment | None
    quota_usd: float | None
    quota_period: Literal["none", "daily", "monthly", "lifetime"]
    quota_status: int | None
    rpm: Count | None
    tpm: Count | None
    max_concurrency: Count | None
    burst: Count | None
    models: Sequence[str]
    group: str | None
    allow_ips: Sequence[str]
    webhook_url: str | None
    user: str | None
    tags: Mapping[str, str]
    loops: LoopRule | None
    max_session_usd: float | None
    show_account: bool
    keep_bodies: str | None
    resumable: bool
    cache_ttl_s: int | None
    locked: Sequence[str]
    declared: bool
    created_at: Moment
    former_until: Moment | None
    last_used_at: Moment | None
    spent_usd: float
    credit_usd: float
    held_usd: float
    left_usd: float | None
    overrun_usd: float
    resets_at: Moment | None


@frozen(kw_only=True)
class KeyView(KeyFields):
    """A key. Only the last four characters of its secret are shown."""

    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@frozen(kw_only=True)
class NewKeyView(KeyFields):
    """A key with its secret, which only the answer to its creation or rotation has."""

    secret: str
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@frozen(kw_only=True)
class DeletedKey:
    """A key that was deleted."""

    id: int
    deleted: bool
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


CONFIRM_QUERY = Query("confirm", "The name of the account: required for the only account and for your own.", s.TEXT)


@frozen
class _KeyRow:
    """A key in a list. ``balance`` is None unless the list is sorted by a field of the balance."""

    caller: Caller
    status: KeyState
    balance: Fields | None

    def find_amount(self, field: str) -> float:
        """Return an amount of the balance; infinity if there is no balance, or no limit."""
        amount: float | None = None if self.balance is None else self.balance[field]
        return inf if amount is None else amount


_KEY_LISTING = Listing[_KeyRow](
    find_id=lambda row: str(row.caller.key.id),
    find_texts=lambda row: (row.caller.key.name, row.caller.account.name, row.caller.key.masked, row.caller.key.group),
    sort_keys={
        "name": lambda row: row.caller.key.name,
        "account": lambda row: row.caller.account.name,
        "status": lambda row: row.status,
        "spent_usd": lambda row: row.find_amount("spent_usd"),
        "left_usd": lambda row: row.find_amount("left_usd"),
        "expires_at": lambda row: row.caller.key.expires_s,
        "created_at": lambda row: row.caller.key.created_ms,
    },
    searched_fields="the key's name, the last four characters of its secret, its group, or its account's name",
)
_ACCOUNT_LISTING = Listing[ListedAccountView](
    find_id=lambda account: str(account.id),
    find_texts=lambda account: (account.name, *account.groups),
    sort_keys={
        "name": lambda account: account.name,
        "status": lambda account: account.status,
        "keys": lambda account: account.keys,
        "members": lambda account: account.members,
        "spent_usd": lambda account: account.spent_usd,
        "left_usd": lambda account: inf if account.left_usd is None else account.left_usd,
        "created_at": lambda account: account.created_at,
    },
    searched_fields="the account's name or groups",
)
_KEY_STATES: tuple[KeyState, ...] = get_args(KeyState)
_KEY_QUERY = (
    ACCOUNT_QUERY,
    Query("status", "Only keys with this status.", s.one_of(*_KEY_STATES)),
    *_KEY_LISTING.query,
)
_BALANCE_FIELDS = frozenset({"spent_usd", "left_usd"})


@admin_operation(query=_ACCOUNT_LISTING.query)
async def list_accounts(request: AdminRequest) -> ListPage[ListedAccountView]:
    """List accounts."""
    auth = request.services.auth
    accounts = await auth.accounts.list_accounts(request.actor)
    keys = Counter(caller.account.id for caller in await auth.accounts.list_callers(request.actor))
    members = await auth.members.count_members()
    views = [
        ListedAccountView(**account, keys=keys[account["id"]], members=members.get(account["id"], 0))
        for account in accounts
    ]
    return _ACCOUNT_LISTING.list_page(request, views)


@admin_operation(takes=AccountSpec, status=201, change=True)
async def add_account(request: AdminRequest) -> AccountView:
    """Create an account."""
    fields = await read_change(request)
    return AccountView(**await request.services.auth.accounts.add_account(fields, request.actor))


@admin_operation()
async def get_account(request: AdminRequest) -> AccountView:
    """Get an account."""
    name = request.match_info["name"]
    return AccountView(**await request.services.auth.accounts.get_account(name, request.actor))


@admin_operation()
async def get_own_account(request: AdminRequest) -> AccountView:
    """Get the account of the member who is signed in."""
    name = request.user.account.name
    return AccountView(**await request.services.auth.accounts.get_account(name, request.actor))


@admin_operation(takes=AccountSpec, partly=True, change=True)
async def edit_account(request: AdminRequest) -> AccountView:
    """Change fields of an account."""
    name, fields = request.match_info["name"], await read_change(request)
    return AccountView(**await request.services.auth.accounts.edit_account(name, fields, request.actor))


@admin_operation(query=(CONFIRM_QUERY,), change=True)
async def delete_account(request: AdminRequest) -> DeletedInForce:
    """Delete an account, its keys, its kept bodies and its cached answers."""
    services, name, confirm = request.services, request.match_info["name"], request.query.get("confirm")
    account = await services.auth.accounts.get_stored_account(name, request.actor)
    await services.auth.accounts.delete_account(name, request.actor, confirm=confirm)
    await load("server.admin.answer_cache:forget_account")(services, account.id)
    if services.open_bodies.instance is not None:
        try:
            await services.open_bodies().sweep()
        except (OSError, StoreUnavailable) as error:  # the account is deleted: a later sweep erases its bodies
            log.warning("bodies_not_erased", account=name, error=str(error))
    return DeletedInForce(name)


@admin_operation(query=_KEY_QUERY)
async def list_keys(request: AdminRequest) -> ListPage[KeyView]:
    """List API keys, of all accounts or of one."""
    accounts, status = request.services.auth.accounts, request.query.get("status")
    if status is not None and status not in _KEY_STATES:
        raise InvalidRequest(f"'status' must be one of {', '.join(_KEY_STATES)}", param="status")
    callers = await accounts.list_callers(request.actor, request.query.get("account"))
    is_sorted_by_balance = request.query.get("sort", "").removeprefix("-") in _BALANCE_FIELDS
    balances = await accounts.describe_balances([caller.key for caller in callers]) if is_sorted_by_balance else {}
    rows = (_KeyRow(caller, accounts.find_key_state(caller.key), balances.get(caller.key.id)) for caller in callers)
    page = _KEY_LISTING.list_page(request, (row for row in rows if status in {None, row.status}))
    return replace_objects(page, [KeyView(**key) for key in await accounts.show_keys([row.caller for row in page])])


@admin_operation(takes=KeySpec, status=201, change=True)
async def add_key(request: AdminRequest) -> NewKeyView:
    """Create an API key. The answer is the only one that shows its secret.

    A member creates keys for its own account and need not name it. Their group is one of the account's groups, by
    default the first, and the gateway generates their secret.
    """
    fields = await read_change(request)
    return NewKeyView(**await request.services.auth.accounts.add_key(fields, request.actor))


@admin_operation()
async def get_key(request: AdminRequest) -> KeyView:
    """Get an API key."""
    return KeyView(**await request.services.auth.accounts.get_key(parse_key_id(request), request.actor))


@admin_operation(takes=KeySpec, partly=True, change=True)
async def edit_key(request: AdminRequest) -> KeyView:
    """Change fields of an API key. A member cannot change the fields in ``locked``, which an administrator has set.

    An administrator unlocks a field by setting it to null, and the status by enabling the key.
    """
    fields = await read_change(request)
    return KeyView(**await request.services.auth.accounts.edit_key(parse_key_id(request), fields, request.actor))


@admin_operation(takes=RotateSpec, change=True)
async def rotate_key(request: AdminRequest) -> NewKeyView:
    """Replace the secret of an API key. The answer is the only one that shows the new secret.

    The old secret stays valid for ``overlap_h`` hours, until ``former_until``; with 0 it ends at once.
    """
    fields = await read_fields(request)
    return NewKeyView(**await request.services.auth.accounts.rotate_key(parse_key_id(request), fields, request.actor))


@admin_operation(change=True)
async def delete_key(request: AdminRequest) -> DeletedKey:
    """Delete an API key. A member cannot delete a key with fields in ``locked``."""
    key_id = parse_key_id(request)
    await request.services.auth.accounts.delete_key(key_id, request.actor)
    return DeletedKey(id=key_id, deleted=True)
