"""Admin API: the cache of answers. Also the deletion of cached answers and kept streams, for other operations."""

from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from typing import Any

import attrs
import orjson
import structlog

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import AuditRow
from gateway.errors import Conflict, StoreUnavailable
from gateway.frozen import frozen
from gateway.parsing import parse_spec
from gateway.proxy.resumable_streams import STREAMS_FORGOTTEN
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import read_fields
from gateway.server.admin.kept_bodies import find_stored_names
from gateway.server.context import Services
from gateway.storage.handed_over_streams import delete_streams

log = structlog.stdlib.get_logger(__name__)


@frozen(kw_only=True)
class CacheView:
    """What this node has stored of answers, and how often it gave them since its start.

    ``bytes`` are those on disk. ``problem`` says why answers cannot be stored there at the moment.
    """

    answers: Count
    bytes: Count
    memory_bytes: Count
    oldest_at: Moment | None
    hits: Count
    joined: Count
    misses: Count
    problem: str | None


@frozen
class ClearCacheSpec:
    """Whose answers to delete: those that match all fields; without a field all.

    Attributes:
        account: Of requests of this account.
        user: Of requests made for this end user, as clients send its name.
    """

    account: str | None = None
    user: str | None = attrs.field(default=None, repr=False)


@frozen(kw_only=True)
class ClearedCacheView:
    """The number of ``answers`` that were deleted on this node. The other nodes delete theirs, too."""

    answers: Count


@admin_operation()
async def get_cache(request: AdminRequest) -> CacheView:
    """Get how many answers are stored, and how often they were given."""
    answers = request.services.open_answers()
    status, counts = await answers.store.describe(), answers.counts
    return CacheView(
        answers=status.answers,
        bytes=status.bytes,
        memory_bytes=status.memory_bytes,
        oldest_at=None if status.oldest_ms is None else build_time(status.oldest_ms // 1000),
        hits=counts["hit"],
        joined=counts["joined"],
        misses=counts["miss"],
        problem=status.problem or None,
    )


@admin_operation(takes=ClearCacheSpec)
async def clear_cache(request: AdminRequest) -> ClearedCacheView:
    """Delete stored answers: all, or those of an account or an end user."""
    services, actor = request.services, request.actor
    spec = parse_spec(await read_fields(request), ClearCacheSpec)
    account_id = None
    if spec.account is not None:
        account_id = (await services.auth.accounts.get_stored_account(spec.account, actor)).id
    if spec.user is not None and services.live_config.attribution.users == "off":
        raise Conflict("No user is stored (attribution.users is off): delete by account, or all answers")
    end_users = None if spec.user is None else find_stored_names(services, spec.user)
    deleted = await delete_answers(services, account_id=account_id, end_users=end_users)
    field_names = ", ".join(name for name in ("account", "user") if getattr(spec, name) is not None)
    detail = {} if spec.account is None else {"account": spec.account}
    row = build_answers_row(request, deleted, field_names or "all", account_id, detail)
    await services.admin.audit_log.add_audit(row)
    return ClearedCacheView(answers=deleted)


def build_answers_row(
    request: AdminRequest, answers: int, subject: str, account_id: int | None, detail: Mapping[str, Any]
) -> AuditRow:
    """Return the audit row of a deletion. ``answers`` is the number of deleted answers."""
    text, now_ms = orjson.dumps({"answers": answers, **detail}).decode(), int(request.services.clock() * 1000)
    return request.actor.build_audit_row("cache.cleared", subject, now_ms, account_id=account_id, detail=text)


async def delete_answers(
    services: Services,
    *,
    account_id: int | None = None,
    end_users: Collection[str] | None = None,
    before_ms: int | None = None,
) -> int:
    """Delete the answers on all nodes that match every argument that is given; return how many on this one.

    ``before_ms``, in Unix milliseconds: those that were stored before. Raises ``StoreUnavailable`` if the disk fails.
    """
    if services.open_answers.instance is None and services.storage.node is None:
        return 0
    try:
        return await services.open_answers().delete(account_id=account_id, end_users=end_users, before_ms=before_ms)
    except OSError as error:
        raise StoreUnavailable(f"The disk failed during the deletion. Repeat it: {error}") from error


async def forget_account(services: Services, account_id: int) -> None:
    """Delete the answers and the streams of a deleted account.

    Even if the disk fails, no answer of the account is given any more.
    """
    forget_streams(services, account_id, None)
    try:
        await delete_answers(services, account_id=account_id)
    except StoreUnavailable as error:
        log.warning("answers_not_erased", account=str(account_id), error=error.message)


def forget_streams(services: Services, account_id: int | None, end_users: Collection[str] | None) -> None:
    """Delete the kept streams of an account or of users on all nodes.

    Streams that wait on this disk for the next process are deleted, whosever they are.
    """
    services.open_streams().forget_streams(account_id, end_users)
    if (node := services.storage.node) is not None:
        users = None if end_users is None else sorted(end_users)
        node.notifications.publish(STREAMS_FORGOTTEN, urlsafe_b64encode(orjson.dumps([account_id, users])).decode())
    try:
        delete_streams(services.open_streams().memory.folder)
    except OSError as error:  # the next start leaves them out
        log.warning("streams_not_erased", error=str(error))
