"""Admin API: video jobs and webhook deliveries. A member sees those of its own account."""

from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import attrs

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.audit_log import Actor
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import Outcome
from gateway.domain.video import VideoFilter, VideoJob, VideoState, is_video_id
from gateway.domain.webhook import DeliveryStatus, build_secret
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import (
    ACCOUNT_QUERY,
    LIMIT_QUERY,
    MAX_LISTED,
    parse_account,
    parse_key_id,
    parse_limit,
    parse_live,
    parse_search,
)
from gateway.server.openapi import schema as s

_MAX_IDS = 100
_STATES: tuple[VideoState, ...] = get_args(VideoState)
_OPERATOR_FIELDS = ("channel", "provider", "upstream_model", "upstream_id", "owner", "lease_until")
"""Fields that only administrators see; null for members."""


@frozen(kw_only=True)
class VideoView:
    """A job as lists show it; ``price_usd`` is what it costs if it completes."""

    id: str
    status: VideoState
    outcome: Outcome | None
    live: bool
    progress: Count
    account: str
    account_id: int
    key_id: int
    key_name: str
    model: str
    channel: str | None
    size: str | None
    seconds: str | None
    created_at: Moment
    updated_at: Moment
    completed_at: Moment | None
    error_code: str | None
    error_message: str | None
    held_usd: float
    price_usd: float
    cost_usd: float
    cost_nanos: Count


@frozen(kw_only=True)
class DeliveryView:
    """The delivery of a webhook."""

    id: str
    video_id: str
    key_id: int
    event: str
    status: DeliveryStatus
    attempts: Count
    answer: int | None
    error: str | None
    url: str
    created_at: Moment
    due_at: Moment | None
    ended_at: Moment | None


@frozen(kw_only=True)
class WholeVideoView(VideoView):
    """A job without its prompt, and without the provider's address of its file."""

    request_id: str
    remixed_from: str | None
    provider: str | None
    upstream_model: str | None
    upstream_id: str | None
    polls: Count
    failures: Count
    due_at: Moment | None
    deadline_at: Moment
    owner: str | None
    lease_until: Moment | None
    media_id: str | None
    media_type: str | None
    media_bytes: Count
    expires_at: Moment | None
    webhook_url: str | None
    deliveries: Sequence[DeliveryView]


V = TypeVar("V", bound=VideoView)
_VIDEO_QUERY = (
    LIMIT_QUERY,
    Query("order", "`desc`, the newest first, or `asc`.", s.one_of("asc", "desc")),
    Query("after", "Only jobs after this one (an id)."),
    ACCOUNT_QUERY,
    Query("search", "Only jobs whose id or model contains this text, in any case."),
    Query("status", "Only jobs in this state.", s.one_of(*_STATES)),
    Query("live", "`true`: only jobs that have not ended.", s.one_of("true", "false")),
    Query("ids", f"The ids of up to {_MAX_IDS} jobs, separated by commas."),
)
_DELIVERY_QUERY = (LIMIT_QUERY, Query("video", "Only this job (an id)."))


@frozen(kw_only=True)
class WebhookSecret:
    """What signs the webhooks of a key."""

    secret: str


@admin_operation(query=_VIDEO_QUERY)
async def list_videos(request: AdminRequest) -> list[VideoView]:
    """List video jobs, the newest first. With ``ids``, only these jobs are listed, and other filters are ignored."""
    services, query, actor = request.services, request.query, request.actor
    if "ids" in query:
        stored_jobs = [await services.videos.jobs.store.find(video_id) for video_id in _parse_ids(query["ids"])]
        visible_jobs = [job for job in stored_jobs if job is not None and actor.may_see(job.account_id)]
    else:
        video_filter = await _parse_filter(request)
        visible_jobs = list(await services.videos.jobs.store.list_videos(video_filter, parse_limit(request)))
    return [_build_job(VideoView, job, actor) for job in visible_jobs]


@admin_operation()
async def get_video(request: AdminRequest) -> WholeVideoView:
    """Get a video job with its file and its webhook deliveries."""
    services, actor = request.services, request.actor
    job = await services.videos.jobs.get(request.match_info["id"], actor.scope)
    stored_deliveries = await services.videos.deliveries.list_deliveries(video_id=job.id, limit=MAX_LISTED)
    deliveries = [build_view(DeliveryView, delivery) for delivery in stored_deliveries]
    return _build_job(
        WholeVideoView,
        job,
        actor,
        request_id=job.receipt.id,
        provider=job.provider or None,
        upstream_model=job.upstream_model or None,
        owner=job.owner or None,
        lease_until=build_time(job.lease_until_ms // 1000) if job.lease_until_ms else None,
        media_type=job.media_type or None,
        deliveries=deliveries,
    )


@admin_operation()
async def cancel_video(request: AdminRequest) -> VideoView:
    """Cancel a video job at no cost; its provider is asked to stop if it can."""
    actor = request.actor
    job = await request.services.videos.jobs.cancel(request.match_info["id"], actor)
    return _build_job(VideoView, job, actor)


@admin_operation(query=_DELIVERY_QUERY)
async def list_deliveries(request: AdminRequest) -> list[DeliveryView]:
    """List webhook deliveries, the newest first."""
    video_id, deliveries = request.query.get("video"), request.services.videos.deliveries
    if video_id is not None and not is_video_id(video_id):
        raise InvalidRequest("'video' must be the id of a video", param="video")
    stored_deliveries = await deliveries.list_deliveries(
        video_id=video_id, limit=parse_limit(request), account_id=request.actor.scope
    )
    return [build_view(DeliveryView, delivery) for delivery in stored_deliveries]


@admin_operation()
async def get_webhook_secret(request: AdminRequest) -> WebhookSecret:
    """Get the secret that signs the webhooks of an API key."""
    services = request.services
    key = await services.auth.accounts.get_stored_key(parse_key_id(request), request.actor)
    return WebhookSecret(secret=build_secret(services.videos.find_secret(key.id)))


def _parse_ids(text: str) -> list[str]:
    ids = text.split(",")
    if len(ids) > _MAX_IDS or not all(map(is_video_id, ids)):
        raise InvalidRequest(f"'ids' must be the ids of 1 to {_MAX_IDS} videos", param="ids")
    return ids


async def _parse_filter(request: AdminRequest) -> VideoFilter:
    query = request.query
    after_id, order = query.get("after"), query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("'order' must be 'asc' or 'desc'", param="order")
    if after_id is not None and not is_video_id(after_id):
        raise InvalidRequest("'after' must be the id of a video", param="after")
    state = next((name for name in _STATES if name == query.get("status")), None)
    if state is None and "status" in query:
        raise InvalidRequest(f"'status' must be one of {', '.join(_STATES)}", param="status")
    return VideoFilter(
        account_id=await parse_account(request),
        after=after_id,
        newest_first=order == "desc",
        live=parse_live(request),
        state=state,
        search=parse_search(request),
    )


def _build_job(kind: type[V], job: VideoJob, actor: Actor, **extra_fields: Any) -> V:
    """Return what ``actor`` may see of a job. ``price_usd`` is its cost if it completes."""
    cost_nanos = job.cost_nanos if job.state == "completed" else 0
    view = build_view(
        kind,
        job,
        status=job.state,
        live=not job.ended,
        account=job.receipt.account,
        key_name=job.receipt.key_name,
        channel=job.channel or None,
        size=job.size or None,
        seconds=job.seconds or None,
        held_usd=0.0 if job.ended else job.held_nanos / NANOS_PER_USD,
        price_usd=job.cost_nanos / NANOS_PER_USD,
        cost_usd=cost_nanos / NANOS_PER_USD,
        cost_nanos=cost_nanos,
        **extra_fields,
    )
    return _hide_operator_fields(view, actor)


def _hide_operator_fields(view: V, actor: Actor) -> V:
    if actor.scope is None:
        return view
    hidden_fields: dict[str, Any] = {name: None for name in _OPERATOR_FIELDS if hasattr(view, name)}
    return attrs.evolve(view, **hidden_fields)
