"""Admin API: batches. A member sees those of its own account."""

from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.batch import Batch, BatchFilter, BatchStatus, is_batch_id
from gateway.domain.price import NANOS_PER_USD, ONE_PPM
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import ACCOUNT_QUERY, LIMIT_QUERY, parse_account, parse_limit, parse_live, parse_search
from gateway.server.openapi import schema as s

_STATUSES: tuple[BatchStatus, ...] = get_args(BatchStatus)


@frozen(kw_only=True)
class BatchView:
    """A batch as lists show it. The name of a deleted account or key is null."""

    id: str
    status: BatchStatus
    live: bool
    endpoint: str
    model: str | None
    account: str | None
    account_id: int
    key_id: int
    key_name: str | None
    total: Count
    completed: Count
    failed: Count
    input_tokens: Count
    output_tokens: Count
    price_multiplier: float
    created_at: Moment
    expires_at: Moment
    ended_at: Moment | None


@frozen(kw_only=True)
class BatchErrorView:
    """Why a batch, or a line of its input, is refused."""

    code: str
    message: str
    line: int | None
    param: str | None


@frozen(kw_only=True)
class WholeBatchView(BatchView):
    """A batch with its files, its errors and what it has cost."""

    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    requests: Count
    cost_usd: float
    cost_nanos: Count
    errors: Sequence[BatchErrorView]


B = TypeVar("B", bound=BatchView)
_BATCH_QUERY = (
    LIMIT_QUERY,
    Query("after", "Only batches after this one (an id)."),
    ACCOUNT_QUERY,
    Query("search", "Only batches whose id or model contains this text, in any case."),
    Query("status", "Only batches in this status.", s.one_of(*_STATUSES)),
    Query("live", "`true`: only batches that have not ended.", s.one_of("true", "false")),
)


@admin_operation(query=_BATCH_QUERY)
async def list_batches(request: AdminRequest) -> list[BatchView]:
    """List batches, the newest first."""
    batch_filter = await _parse_filter(request)
    batches = await request.services.batches.list_batches(batch_filter, parse_limit(request))
    names = await request.services.auth.accounts.name_accounts()
    return [_build_batch(BatchView, request, batch, names) for batch in batches]


@admin_operation()
async def get_batch(request: AdminRequest) -> WholeBatchView:
    """Get a batch with its errors, and what its requests have cost so far."""
    services, actor = request.services, request.actor
    batch = await services.batches.get(request.match_info["id"], actor.scope)
    await services.billing.flusher.store_waiting()
    requests, cost_nanos = await services.batches.sum_cost(batch.id)
    return _build_batch(
        WholeBatchView,
        request,
        batch,
        await services.auth.accounts.name_accounts(),
        output_file_id=batch.output_file_id if batch.ended else None,
        error_file_id=batch.error_file_id if batch.ended else None,
        requests=requests,
        cost_usd=cost_nanos / NANOS_PER_USD,
        cost_nanos=cost_nanos,
        errors=[build_view(BatchErrorView, error) for error in batch.errors],
    )


@admin_operation()
async def cancel_batch(request: AdminRequest) -> BatchView:
    """Cancel a batch: requests under way may finish, and no other begins."""
    services, actor = request.services, request.actor
    batch = await services.batches.cancel(request.match_info["id"], actor.scope)
    now_ms = int(services.clock() * 1000)
    await services.admin.audit_log.add_audit(
        actor.build_audit_row("batch.cancelled", batch.id, now_ms, account_id=batch.account_id)
    )
    return _build_batch(BatchView, request, batch, await services.auth.accounts.name_accounts())


async def _parse_filter(request: AdminRequest) -> BatchFilter:
    """Return the query's filters, limited to the actor's scope. Raises ``InvalidRequest``, ``NotFound``."""
    query = request.query
    after_id = query.get("after")
    if after_id is not None and not is_batch_id(after_id):
        raise InvalidRequest("'after' must be the id of a batch", param="after")
    status = next((name for name in _STATUSES if name == query.get("status")), None)
    if status is None and "status" in query:
        raise InvalidRequest(f"'status' must be one of {', '.join(_STATUSES)}", param="status")
    live_only = parse_live(request)
    return BatchFilter(
        account_id=await parse_account(request),
        after=after_id,
        status=status,
        live=live_only,
        search=parse_search(request),
    )


def _build_batch(kind: type[B], request: AdminRequest, batch: Batch, names: dict[int, str], **extra_fields: Any) -> B:
    """Return ``batch`` as the view ``kind``. The name of a deleted account or key is null."""
    caller = request.services.auth.api_keys.find_caller(batch.key_id)
    ended_s = max(batch.times.values(), default=None) if batch.ended else None
    return build_view(
        kind,
        batch,
        live=not batch.ended,
        account=names.get(batch.account_id),
        key_name=None if caller is None else caller.key.name,
        completed=batch.tally.completed,
        failed=batch.tally.failed,
        input_tokens=batch.tally.input_tokens,
        output_tokens=batch.tally.output_tokens,
        price_multiplier=batch.multiplier_ppm / ONE_PPM,
        ended_at=None if ended_s is None else build_time(ended_s),
        **extra_fields,
    )
