"""Admin API: accounts and API keys. A member sees those of its own account."""

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
import structlog

from gateway.answer_fields import OMITTED, Count, Moment
from gateway.domain.account import Status
from gateway.domain.account_spec import AccountSpec, KeySpec, RotateSpec
from gateway.domain.loop_rule import LoopRule
from gateway.errors import StoreUnavailable
from gateway.frozen import frozen
from gateway.server.admin.answer import DeletedInForce, InForceField
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, parse_key_id, read_change, read_fields
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
class KeyFields:
    """A key with its balance. ``locked`` are the fields that an administrator has set."""

    id: int
    name: str
    account: str
    key: str
    status: Literal["active", "disabled", "expired"]
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
    """A key. Of its secret only the last four characters are shown."""

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


@admin_operation()
async def list_accounts(request: AdminRequest) -> list[AccountView]:
    """List all accounts."""
    return [AccountView(**account) for account in await request.services.auth.accounts.list_accounts(request.actor)]


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
    """Delete an account, its keys and its kept bodies."""
    services, name, confirm = request.services, request.match_info["name"], request.query.get("confirm")
    await services.auth.accounts.delete_account(name, request.actor, confirm=confirm)
    if services.open_bodies.instance is not None:
        try:
            await services.open_bodies().sweep()
        except (OSError, StoreUnavailable) as error:  # the account is deleted: a later sweep erases its bodies
            log.warning("bodies_not_erased", account=name, error=str(error))
    return DeletedInForce(name)


@admin_operation(query=(ACCOUNT_QUERY,))
async def list_keys(request: AdminRequest) -> list[KeyView]:
    """List API keys, of all accounts or of one."""
    return [
        KeyView(**key)
        for key in await request.services.auth.accounts.list_keys(request.actor, request.query.get("account"))
    ]


@admin_operation(takes=KeySpec, status=201, change=True)
async def add_key(request: AdminRequest) -> NewKeyView:
    """Create an API key. The answer is the only one that shows its secret.

    A member creates keys for its own account and need not name it. Their group is one of the account's groups, by
    default
    the first, and the gateway generates their secret.
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
