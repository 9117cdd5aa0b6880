"""Admin API: accounts and API keys. A member sees those of its own account."""

from gateway.domain.account_spec import AccountSpec, KeySpec, RotateSpec
from gateway.server.admin.handler import AdminRequest, Fields, Query, admin_operation
from gateway.server.admin.io import (
    OF_ACCOUNT,
    allow_in_force,
    parse_key_id,
    read_change,
    read_fields,
)
from gateway.server.openapi import schema as s

STATUS = s.one_of("active", "disabled")
STANDING = s.record(
    spent_usd=s.NUMBER,
    credit_usd=s.NUMBER,
    held_usd=s.NUMBER,
    left_usd=s.maybe(s.NUMBER),
    overrun_usd=s.NUMBER,
    resets_at=s.maybe(s.MOMENT),
)
"""The balance of an account or a key; ``left_usd`` and ``resets_at`` are null without a quota."""
_BOUNDS = s.record(
    quota_usd=s.maybe(s.NUMBER),
    quota_period=s.one_of("none", "daily", "monthly", "lifetime"),
    quota_status=s.maybe(s.INTEGER),
    rpm=s.maybe(s.COUNT),
    tpm=s.maybe(s.COUNT),
    max_concurrency=s.maybe(s.COUNT),
    burst=s.maybe(s.COUNT),
)
_ACCOUNT_FIELDS = s.extend(
    s.record(id=s.INTEGER, name=s.TEXT, status=STATUS, declared=s.FLAG, created_at=s.MOMENT, groups=s.array(s.TEXT)),
    **_BOUNDS["properties"],
    **STANDING["properties"],
)
ACCOUNT = allow_in_force(_ACCOUNT_FIELDS)
_KEY_FIELDS = s.extend(
    s.record(
        id=s.INTEGER,
        name=s.TEXT,
        account=s.TEXT,
        key=s.TEXT,
        status=s.one_of("active", "disabled", "expired"),
        expires_at=s.maybe(s.MOMENT),
        models=s.array(s.TEXT),
        group=s.maybe(s.TEXT),
        allow_ips=s.array(s.TEXT),
        webhook_url=s.maybe(s.TEXT),
        locked=s.array(s.TEXT),
        declared=s.FLAG,
        created_at=s.MOMENT,
        former_until=s.maybe(s.MOMENT),
        last_used_at=s.maybe(s.MOMENT),
    ),
    **_BOUNDS["properties"],
    **STANDING["properties"],
)
KEY = allow_in_force(_KEY_FIELDS)
"""Of the secret only the last four characters are shown; ``locked`` lists the fields that an administrator has set."""
_NEW_KEY = allow_in_force(s.extend(_KEY_FIELDS, secret=s.TEXT))


CONFIRM = Query("confirm", "The name of the account: required for the only account and for your own.", s.TEXT)


@admin_operation(answer=s.listing(ACCOUNT))
async def list_accounts(request: AdminRequest) -> list[Fields]:
    """List all accounts."""
    return await request.services.auth.accounts.list_accounts(request.actor)


@admin_operation(takes=AccountSpec, answer=ACCOUNT, status=201, change=True)
async def add_account(request: AdminRequest) -> Fields:
    """Create an account."""
    fields = await read_change(request)
    return await request.services.auth.accounts.add_account(fields, request.actor)


@admin_operation(answer=ACCOUNT)
async def get_account(request: AdminRequest) -> Fields:
    """Get an account."""
    name = request.match_info["name"]
    return await request.services.auth.accounts.get_account(name, request.actor)


@admin_operation(answer=ACCOUNT)
async def get_own_account(request: AdminRequest) -> Fields:
    """Get the account of the member who is signed in."""
    name = request.signed.account.name
    return await request.services.auth.accounts.get_account(name, request.actor)


@admin_operation(takes=AccountSpec, partly=True, answer=ACCOUNT, change=True)
async def edit_account(request: AdminRequest) -> Fields:
    """Change fields of an account."""
    name, fields = request.match_info["name"], await read_change(request)
    return await request.services.auth.accounts.edit_account(name, fields, request.actor)


@admin_operation(query=(CONFIRM,), answer=allow_in_force(s.record(name=s.TEXT, deleted=s.FLAG)), change=True)
async def delete_account(request: AdminRequest) -> Fields:
    """Delete an account and its keys."""
    name, confirm = request.match_info["name"], request.query.get("confirm")
    await request.services.auth.accounts.delete_account(name, request.actor, confirm=confirm)
    return {"name": name, "deleted": True}


@admin_operation(query=(OF_ACCOUNT,), answer=s.listing(KEY))
async def list_keys(request: AdminRequest) -> list[Fields]:
    """List API keys, of all accounts or of one."""
    return await request.services.auth.accounts.list_keys(request.actor, request.query.get("account"))


@admin_operation(takes=KeySpec, answer=_NEW_KEY, status=201, change=True)
async def add_key(request: AdminRequest) -> Fields:
    """Create an API key. The answer is the only one that shows its secret.

    A member creates keys for its own account and need not name it. Their group is one of the account's groups, by
    default
    the first, and the gateway generates their secret.
    """
    fields = await read_change(request)
    return await request.services.auth.accounts.add_key(fields, request.actor)


@admin_operation(answer=KEY)
async def get_key(request: AdminRequest) -> Fields:
    """Get an API key."""
    return await request.services.auth.accounts.get_key(parse_key_id(request), request.actor)


@admin_operation(takes=KeySpec, partly=True, answer=KEY, change=True)
async def edit_key(request: AdminRequest) -> Fields:
    """Change fields of an API key. A member cannot change the fields in ``locked``, which an administrator has set.

    An administrator unlocks a field by setting it to null, and the status by enabling the key.
    """
    fields = await read_change(request)
    return await request.services.auth.accounts.edit_key(parse_key_id(request), fields, request.actor)


@admin_operation(takes=RotateSpec, answer=_NEW_KEY, change=True)
async def rotate_key(request: AdminRequest) -> Fields:
    """Replace the secret of an API key. The answer is the only one that shows the new secret.

    The old secret stays valid for ``overlap_h`` hours, until ``former_until``; with 0 it ends at once.
    """
    fields = await read_fields(request)
    return await request.services.auth.accounts.rotate_key(parse_key_id(request), fields, request.actor)


@admin_operation(answer=allow_in_force(s.record(id=s.INTEGER, deleted=s.FLAG)), change=True)
async def delete_key(request: AdminRequest) -> Fields:
    """Delete an API key. A member cannot delete a key with fields in ``locked``."""
    key_id = parse_key_id(request)
    await request.services.auth.accounts.delete_key(key_id, request.actor)
    return {"id": key_id, "deleted": True}
