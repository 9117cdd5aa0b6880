"""Admin API: delete kept bodies, and what else has the same texts: cached answers, and streams that can be resumed."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import attrs
import orjson

from gateway.answer_fields import Count
from gateway.domain.audit_log import AuditRow
from gateway.domain.kept_body import BodyFilter, DeletedBodies
from gateway.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.server.admin.answer_cache import build_answers_row, delete_answers, forget_streams
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import read_fields
from gateway.server.admin.kept_bodies import find_stored_names
from gateway.server.context import Services
from gateway.storage.bodies.body_store import BuildAudit

TOUCHED_ACCOUNTS, TOUCHED_LEFT_OUT = "requests_by_account", "accounts_left_out"
"""Fields of a deletion's audit row: the number of requests by account id, and of accounts that are not listed."""
MAX_TOUCHED_ACCOUNTS = 10_000


@frozen
class DeleteBodiesSpec:
    """Whose bodies to delete: those that match all fields.

    Attributes:
        request: Of this request: its whole id.
        user: Of this end user, as clients send its name.
        session: Of this session.
        key: Of this API key: its id.
        account: Of this account.
        before: Of requests that began before then. A time without a zone is UTC.
    """

    request: str | None = None
    user: str | None = None
    session: str | None = None
    key: int | None = None
    account: str | None = None
    before: datetime | None = None


@frozen(kw_only=True)
class DeletedBodiesView:
    """The number of ``requests`` whose bodies were deleted. ``pending`` ones are hidden, and other nodes erase them.

    ``answers`` is the number of cached answers that were deleted on this node. The other nodes delete theirs, too.
    """

    requests: Count
    pending: Count
    answers: Count


@admin_operation(takes=DeleteBodiesSpec)
async def delete_bodies(request: AdminRequest) -> DeletedBodiesView:
    """Delete kept bodies for good. If only `account` is given, its data key is destroyed first.

    Cached answers are deleted, too, on all nodes: of the account and the user, else of the account that the key or
    the request belongs to. If that is unknown, if accounts share answers, or for a session alone: all. With `before`,
    only those stored before then. With only an account, a user or both, so are the events of their streams that can be
    resumed. Bodies of requests that are running may be kept when these end: repeat the call then.
    """
    services, actor = request.services, request.actor
    fields = await read_fields(request)
    spec = parse_spec(fields, DeleteBodiesSpec)
    given_fields = {name: value for name, value in attrs.asdict(spec).items() if value is not None}
    if not given_fields:
        raise InvalidRequest(f"Name what to delete: {', '.join(attrs.fields_dict(DeleteBodiesSpec))}")
    accounts = services.auth.accounts
    if spec.user is not None and services.live_config.attribution.users == "off":
        raise Conflict("No user is stored (attribution.users is off): delete by key, session, account or time")
    account_id = None if spec.account is None else (await accounts.get_stored_account(spec.account, actor)).id
    body_filter = BodyFilter(
        request_id=spec.request,
        account_id=account_id,
        key_id=spec.key,
        end_users=None if spec.user is None else find_stored_names(services, spec.user),
        session=spec.session,
        before_ms=None if spec.before is None else _convert_to_ms(spec.before),
    )
    detail: dict[str, Any] = {
        name: str(value) for name, value in given_fields.items() if name not in {"user", "session"}
    }
    build_audit = make_audit_builder(request, ", ".join(given_fields), account_id, detail)
    owner_filter = BodyFilter(account_id=body_filter.account_id, end_users=body_filter.end_users)
    if body_filter == owner_filter:
        forget_streams(services, body_filter.account_id, body_filter.end_users)
    deleted_bodies, answers, failure = await delete_kept(services, body_filter, build_audit)
    if answers:
        row = build_answers_row(request, answers, ", ".join(given_fields), account_id, detail)
        await services.admin.audit_log.add_audit(row)
    if failure is not None:
        raise failure
    return DeletedBodiesView(requests=deleted_bodies.requests, pending=deleted_bodies.pending, answers=answers)


def make_audit_builder(
    request: AdminRequest, subject: str, account_id: int | None, detail: Mapping[str, Any]
) -> BuildAudit:
    """Return a function that makes the audit row of a deletion, given the number of its requests by account id."""
    now_ms = int(request.services.clock() * 1000)

    def build(requests_by_account: Mapping[int, int]) -> AuditRow:
        fields: dict[str, Any] = {**detail, "requests": sum(requests_by_account.values())}
        if account_id is None:
            touched_accounts = sorted(requests_by_account.items())
            fields[TOUCHED_ACCOUNTS] = dict(touched_accounts[:MAX_TOUCHED_ACCOUNTS])
            if len(touched_accounts) > MAX_TOUCHED_ACCOUNTS:
                fields[TOUCHED_LEFT_OUT] = len(touched_accounts) - MAX_TOUCHED_ACCOUNTS
        text = orjson.dumps(fields, option=orjson.OPT_NON_STR_KEYS).decode()
        return request.actor.build_audit_row("bodies.deleted", subject, now_ms, account_id=account_id, detail=text)

    return build


async def delete_kept(
    services: Services, body_filter: BodyFilter, build_audit: BuildAudit
) -> tuple[DeletedBodies, int, StoreUnavailable | None]:
    """Delete bodies, and the cached answers that may have the same texts.

    Return the deleted bodies, the number of deleted answers, and the error of a failed deletion or None. A failed one
    does not stop the other one. Hidden bodies that could not be erased are erased later.
    """
    failure, bodies, answers = None, DeletedBodies(0), 0
    try:
        bodies = await _erase_bodies(services, body_filter, build_audit)
    except StoreUnavailable as error:
        failure = error
    try:
        account_id, users = await _find_account(services, body_filter), body_filter.end_users
        before_ms = body_filter.before_ms
        answers = await delete_answers(services, account_id=account_id, end_users=users, before_ms=before_ms)
    except StoreUnavailable as error:
        failure = error
    return bodies, answers, failure


async def _find_account(services: Services, body_filter: BodyFilter) -> int | None:
    """Return the account whose cached answers may have the texts of the bodies; None: any account.

    A session may be one of several accounts, some of whose requests are not in the log yet.
    """
    if body_filter.account_id is not None:
        return body_filter.account_id
    if services.live_config.config.cache.scope == "all":
        return None
    if body_filter.request_id is not None:
        stored_request = await services.admin.request_log.find_request(body_filter.request_id)
        if stored_request is not None:
            return stored_request.row.account_id
    if body_filter.key_id is not None:
        with suppress(NotFound):  # a deleted key
            return (await services.auth.accounts.get_stored_key(body_filter.key_id)).account_id
    return None


async def _erase_bodies(services: Services, body_filter: BodyFilter, build_audit: BuildAudit) -> DeletedBodies:
    """Delete bodies. Raises ``StoreUnavailable``, also if the disk or the shared store fails."""
    try:
        return await services.open_bodies().delete(body_filter, build_audit)
    except OSError as error:
        message = f"The bodies are hidden, and not erased yet: the disk or the store failed. Repeat it: {error}"
        raise StoreUnavailable(message) from error


def _convert_to_ms(moment: datetime) -> int:
    """Return Unix milliseconds; a time without a zone is UTC."""
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
