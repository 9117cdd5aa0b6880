"""Admin API: the audit log."""

from collections.abc import Mapping
from typing import Annotated, Any

import orjson

from gateway.answer_fields import FieldSchema, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import KINDS, AuditFilter, AuditRow
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import LIMIT_QUERY, parse_limit
from gateway.server.openapi import schema as s
from gateway.server.query import parse_number


@frozen(kw_only=True)
class AuditView:
    """Who changed what."""

    sequence: int
    at: Moment
    actor_kind: Annotated[str, FieldSchema(s.one_of(*KINDS))]
    actor: str
    address: str
    action: str
    account: str | None
    subject: str
    detail: Mapping[str, Any]


@admin_operation(
    query=(
        Query("account", "Only changes of this account (a name)."),
        Query("actor", "Only changes by this member (a name), or by `token`, `file` or `gateway`."),
        Query("action", "Only this action, such as `key.created`, or `key` for all changes of keys."),
        Query("before", "Only rows before this `sequence`: the last one of a page leads to the next page.", s.COUNT),
        LIMIT_QUERY,
    )
)
async def list_audit(request: AdminRequest) -> list[AuditView]:
    """List changes, the newest first.

    ``detail`` has the changed fields with their values before and after; for a secret field only that it ``changed``.
    """
    services, query = request.services, request.query
    account = query.get("account")
    log_filter = AuditFilter(
        account_id=None if account is None else (await services.auth.accounts.get_stored_account(account)).id,
        actor=query.get("actor"),
        action=query.get("action"),
        before=parse_number(query, "before"),
    )
    rows = await services.admin.audit_log.list_audit(log_filter, parse_limit(request))
    names = await services.auth.accounts.name_accounts()
    return [_build_row(row, names) for row in rows]


def _build_row(row: AuditRow, names: Mapping[int, str]) -> AuditView:
    account_id, moment = row.account_id, build_time(row.at_ms // 1000)
    account = None if account_id is None else names.get(account_id, f"{account_id} (deleted)")
    return build_view(AuditView, row, at=moment, account=account, detail=orjson.loads(row.detail))
