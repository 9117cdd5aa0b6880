"""Admin API: video jobs and webhook deliveries. A member sees those of its own account."""

from typing import get_args

from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import Outcome
from gateway.domain.video import VideoFilter, VideoJob, VideoState, is_video_id
from gateway.domain.webhook import DeliveryStatus, WebhookDelivery, build_secret
from gateway.errors import InvalidRequest
from gateway.server.admin.handler import AdminRequest, Fields, Query, admin_operation
from gateway.server.admin.io import LIMIT, MAX_LISTED, OF_ACCOUNT, parse_key_id, parse_limit
from gateway.server.openapi import schema as s

_MAX_NAMED = 100
_STATES: tuple[VideoState, ...] = get_args(VideoState)
_TRUTH = {"true": True, "false": False}
_OPERATORS = ("channel", "provider", "upstream_model", "upstream_id", "owner", "lease_until")
"""Fields that only administrators see; for a member they are null."""

_JOB = s.record(
    id=s.TEXT,
    status=s.one_of(*_STATES),
    outcome=s.maybe(s.one_of(*get_args(Outcome))),
    live=s.FLAG,
    progress=s.COUNT,
    account=s.TEXT,
    account_id=s.INTEGER,
    key_id=s.INTEGER,
    key_name=s.TEXT,
    model=s.TEXT,
    channel=s.maybe(s.TEXT),
    size=s.maybe(s.TEXT),
    seconds=s.maybe(s.TEXT),
    created_at=s.MOMENT,
    updated_at=s.MOMENT,
    completed_at=s.maybe(s.MOMENT),
    error_code=s.maybe(s.TEXT),
    error_message=s.maybe(s.TEXT),
    held_usd=s.NUMBER,
    price_usd=s.NUMBER,
    cost_usd=s.NUMBER,
    cost_nanos=s.COUNT,
)
_DELIVERY = s.record(
    id=s.TEXT,
    video_id=s.TEXT,
    key_id=s.INTEGER,
    event=s.TEXT,
    status=s.one_of(*get_args(DeliveryStatus)),
    attempts=s.COUNT,
    answer=s.maybe(s.INTEGER),
    error=s.maybe(s.TEXT),
    url=s.TEXT,
    created_at=s.MOMENT,
    due_at=s.maybe(s.MOMENT),
    ended_at=s.maybe(s.MOMENT),
)
_WHOLE_JOB = s.extend(
    _JOB,
    request_id=s.TEXT,
    remixed_from=s.maybe(s.TEXT),
    provider=s.maybe(s.TEXT),
    upstream_model=s.maybe(s.TEXT),
    upstream_id=s.maybe(s.TEXT),
    polls=s.COUNT,
    failures=s.COUNT,
    due_at=s.maybe(s.MOMENT),
    deadline_at=s.MOMENT,
    owner=s.maybe(s.TEXT),
    lease_until=s.maybe(s.MOMENT),
    media_id=s.maybe(s.TEXT),
    media_type=s.maybe(s.TEXT),
    media_bytes=s.COUNT,
    expires_at=s.maybe(s.MOMENT),
    webhook_url=s.maybe(s.TEXT),
    deliveries=s.array(_DELIVERY),
)


_VIDEO_QUERY = (
    LIMIT,
    Query("order", "`desc`, the newest first, or `asc`.", s.one_of("asc", "desc")),
    Query("after", "Only jobs after this one (an id)."),
    OF_ACCOUNT,
    Query("status", "Only jobs in this state.", s.one_of(*_STATES)),
    Query("live", "`true`: only jobs that have not ended.", s.one_of("true", "false")),
    Query("ids", f"The ids of up to {_MAX_NAMED} jobs, separated by commas."),
)
_DELIVERY_QUERY = (LIMIT, Query("video", "Only this job (an id)."))
_SECRET = s.record(secret=s.TEXT)


@admin_operation(query=_VIDEO_QUERY, answer=s.listing(_JOB))
async def list_videos(request: AdminRequest) -> list[Fields]:
    """List video jobs, the newest first. With ``ids`` only these jobs, and all other filters are ignored."""
    services, query, actor = request.services, request.query, request.actor
    if "ids" in query:
        found = [await services.videos.jobs.store.find(video_id) for video_id in _parse_ids(query["ids"])]
        seen = [job for job in found if job is not None and actor.may_see(job.account_id)]
    else:
        wanted = await _parse_filter(request)
        seen = list(await services.videos.jobs.store.list_videos(wanted, parse_limit(request)))
    return [_build_job(job, actor) for job in seen]


@admin_operation(answer=_WHOLE_JOB)
async def get_video(request: AdminRequest) -> Fields:
    """Get a video job with its file and its webhook deliveries."""
    services, actor = request.services, request.actor
    job = await services.videos.jobs.get(request.match_info["id"], actor.scope)
    found = await services.videos.deliveries.list_deliveries(video_id=job.id, limit=MAX_LISTED)
    deliveries = [_build_delivery(one) for one in found]
    return {**_build_job(job, actor), **_build_details(job, actor), "deliveries": deliveries}


@admin_operation(answer=_JOB)
async def cancel_video(request: AdminRequest) -> Fields:
    """Cancel a video job at no cost; its provider is asked to stop if it can."""
    actor = request.actor
    job = await request.services.videos.jobs.cancel(request.match_info["id"], actor)
    return _build_job(job, actor)


@admin_operation(query=_DELIVERY_QUERY, answer=s.listing(_DELIVERY))
async def list_deliveries(request: AdminRequest) -> list[Fields]:
    """List webhook deliveries, the newest first."""
    video_id, deliveries = request.query.get("video"), request.services.videos.deliveries
    if video_id is not None and not is_video_id(video_id):
        raise InvalidRequest("'video' must be the id of a video", param="video")
    found = await deliveries.list_deliveries(
        video_id=video_id, limit=parse_limit(request), account_id=request.actor.scope
    )
    return [_build_delivery(one) for one in found]


@admin_operation(answer=_SECRET)
async def get_webhook_secret(request: AdminRequest) -> Fields:
    """Get the secret that signs the webhooks of an API key."""
    services = request.services
    key = await services.auth.accounts.get_key_noun(parse_key_id(request), request.actor)
    return {"secret": build_secret(services.videos.find_secret(key.id))}


def _parse_ids(text: str) -> list[str]:
    ids = text.split(",")
    if len(ids) > _MAX_NAMED or not all(map(is_video_id, ids)):
        raise InvalidRequest(f"'ids' must be the ids of 1 to {_MAX_NAMED} videos", param="ids")
    return ids


async def _parse_filter(request: AdminRequest) -> VideoFilter:
    accounts, query, actor = request.services.auth.accounts, request.query, request.actor
    account, after, order = query.get("account"), query.get("after"), query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("'order' must be 'asc' or 'desc'", param="order")
    if after is not None and not is_video_id(after):
        raise InvalidRequest("'after' must be the id of a video", param="after")
    state = next((known for known in _STATES if known == query.get("status")), None)
    if state is None and "status" in query:
        raise InvalidRequest(f"'status' must be one of {', '.join(_STATES)}", param="status")
    live = _TRUTH.get(query.get("live", "false"))
    if live is None:
        raise InvalidRequest("'live' must be 'true' or 'false'", param="live")
    return VideoFilter(
        account_id=actor.scope if account is None else (await accounts.get_account_noun(account, actor)).id,
        after=after,
        newest_first=order == "desc",
        live=live,
        state=state,
    )


def _build_job(job: VideoJob, actor: Actor) -> Fields:
    """Return a job as listings show it; ``price_usd`` is what it costs if it completes."""
    cost_nanos = job.cost_nanos if job.state == "completed" else 0
    shown = {
        "id": job.id,
        "status": job.state,
        "outcome": job.outcome,
        "live": not job.ended,
        "progress": job.progress,
        "account": job.receipt.account,
        "account_id": job.account_id,
        "key_id": job.key_id,
        "key_name": job.receipt.key_name,
        "model": job.model,
        "channel": job.channel or None,
        "size": job.size or None,
        "seconds": job.seconds or None,
        "created_at": _format_moment(job.created_ms),
        "updated_at": _format_moment(job.updated_ms),
        "completed_at": _format_moment(job.completed_ms),
        "error_code": job.error_code,
        "error_message": job.error_message,
        "held_usd": 0.0 if job.ended else job.held_nanos / NANOS_PER_USD,
        "price_usd": job.cost_nanos / NANOS_PER_USD,
        "cost_usd": cost_nanos / NANOS_PER_USD,
        "cost_nanos": cost_nanos,
    }
    return _hide(shown, actor)


def _build_details(job: VideoJob, actor: Actor) -> Fields:
    """Return the fields of a single job; neither its prompt nor the provider's address of its file."""
    shown = {
        "request_id": job.receipt.id,
        "remixed_from": job.remixed_from,
        "provider": job.provider or None,
        "upstream_model": job.upstream_model or None,
        "upstream_id": job.upstream_id,
        "polls": job.polls,
        "failures": job.failures,
        "due_at": _format_moment(job.due_ms),
        "deadline_at": _format_moment(job.deadline_ms),
        "owner": job.owner or None,
        "lease_until": _format_moment(job.lease_until_ms or None),
        "media_id": job.media_id,
        "media_type": job.media_type or None,
        "media_bytes": job.media_bytes,
        "expires_at": _format_moment(job.expires_ms),
        "webhook_url": job.webhook_url,
    }
    return _hide(shown, actor)


def _hide(shown: Fields, actor: Actor) -> Fields:
    if actor.scope is None:
        return shown
    return {name: None if name in _OPERATORS else value for name, value in shown.items()}


def _build_delivery(delivery: WebhookDelivery) -> Fields:
    return {
        "id": delivery.id,
        "video_id": delivery.video_id,
        "key_id": delivery.key_id,
        "event": delivery.event,
        "status": delivery.status,
        "attempts": delivery.attempts,
        "answer": delivery.answer,
        "error": delivery.error,
        "url": delivery.url,
        "created_at": _format_moment(delivery.created_ms),
        "due_at": _format_moment(delivery.due_ms),
        "ended_at": _format_moment(delivery.ended_ms),
    }


def _format_moment(at_ms: int | None) -> str | None:
    return None if at_ms is None else build_time(at_ms // 1000)
