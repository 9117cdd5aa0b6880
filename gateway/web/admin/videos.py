"""The admin API's part about videos: every account's jobs, and what was told of them."""

from typing import Any, get_args

from aiohttp import web

from gateway.domain.declaration import write_time
from gateway.domain.fault import InvalidRequest
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.video import VideoFilter, VideoJob, VideoState, is_video_id
from gateway.domain.webhook import Delivery, write_secret
from gateway.web.admin.doors import Door
from gateway.web.admin.forms import read_id, write_json, write_listing
from gateway.web.keys import OFFICE
from gateway.web.query import read_number

Fields = dict[str, Any]
_LISTED = 50
_MAX_LISTED = 1000
_MAX_NAMED = 100
_STATES: tuple[VideoState, ...] = get_args(VideoState)
_TRUTH = {"true": True, "false": False}


async def list_videos(request: web.Request) -> web.Response:
    """Jobs: ``limit`` (50), ``order`` (desc: the newest first; asc), ``after`` (an id: those that follow it).

    Only of an ``account`` (a name), in a ``status``, or with ``live=true`` those that have not ended. ``ids``: those
    of up to 100 ids, with commas between them, that there are; then nothing else is looked at.
    """
    office, query = request.app[OFFICE], request.query
    if "ids" in query:
        found = [await office.videos.find(video_id) for video_id in _read_ids(query["ids"])]
        return write_listing([_write_job(job) for job in found if job is not None])
    wanted = await _read_filter(request)
    limit = min(read_number(query, "limit") or _LISTED, _MAX_LISTED)
    return write_listing([_write_job(job) for job in await office.videos.list_videos(wanted, limit)])


async def get_video(request: web.Request) -> web.Response:
    """One job: what the listing has, where its file is, and every telling of its end."""
    office = request.app[OFFICE]
    job = await office.videos.get(request.match_info["id"])
    told = await office.deliveries.list_deliveries(video_id=job.id, limit=_MAX_LISTED)
    return write_json({**_write_job(job), **_write_rest(job), "deliveries": [_write_delivery(one) for one in told]})


async def cancel_video(request: web.Request) -> web.Response:
    """End a job that has not ended, at no cost; its provider is asked to stop where it can be."""
    job = await request.app[OFFICE].videos.cancel(request.match_info["id"])
    return write_json(_write_job(job))


async def list_deliveries(request: web.Request) -> web.Response:
    """What was told of jobs' ends, the newest first: ``limit`` (50), of one ``video`` (an id)."""
    query = request.query
    video_id = query.get("video")
    if video_id is not None and not is_video_id(video_id):
        raise InvalidRequest("'video' must be the id of a video", param="video")
    limit = min(read_number(query, "limit") or _LISTED, _MAX_LISTED)
    told = await request.app[OFFICE].deliveries.list_deliveries(video_id=video_id, limit=limit)
    return write_listing([_write_delivery(one) for one in told])


async def get_webhook_secret(request: web.Request) -> web.Response:
    """What signs the deliveries of a key's videos."""
    office = request.app[OFFICE]
    key = await office.administration.get_key_noun(read_id(request))
    return write_json({"secret": write_secret(office.find_secret(key.id))})


VIDEO_DOORS: tuple[Door, ...] = (
    Door("GET", "/videos", list_videos),
    Door("GET", "/videos/{id}", get_video),
    Door("POST", "/videos/{id}/cancel", cancel_video),
    Door("GET", "/deliveries", list_deliveries),
    Door("GET", "/keys/{id}/webhook-secret", get_webhook_secret),
)


def _read_ids(text: str) -> list[str]:
    ids = text.split(",")
    if len(ids) > _MAX_NAMED or not all(map(is_video_id, ids)):
        raise InvalidRequest(f"'ids' must be the ids of 1 to {_MAX_NAMED} videos", param="ids")
    return ids


async def _read_filter(request: web.Request) -> VideoFilter:
    administration, query = request.app[OFFICE].administration, request.query
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
        account_id=None if account is None else (await administration.get_account_noun(account)).id,
        after=after,
        newest_first=order == "desc",
        live=live,
        state=state,
    )


def _write_job(job: VideoJob) -> Fields:
    """A job as a listing shows it. ``price_usd`` is what it costs if it is completed, ``cost_usd`` what it did cost."""
    cost_nanos = job.cost_nanos if job.state == "completed" else 0
    return {
        "id": job.id,
        "status": job.state,
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
        "created_at": _write_moment(job.created_ms),
        "updated_at": _write_moment(job.updated_ms),
        "completed_at": _write_moment(job.completed_ms),
        "error_code": job.error_code,
        "error_message": job.error_message,
        "held_usd": 0.0 if job.ended else job.held_nanos / NANOS_PER_USD,
        "price_usd": job.cost_nanos / NANOS_PER_USD,
        "cost_usd": cost_nanos / NANOS_PER_USD,
        "cost_nanos": cost_nanos,
    }


def _write_rest(job: VideoJob) -> Fields:
    """What is worth a look where one job is looked at; neither its prompt nor the provider's address of its file."""
    return {
        "request_id": job.receipt.id,
        "remixed_from": job.remixed_from,
        "provider": job.provider or None,
        "upstream_model": job.upstream_model or None,
        "upstream_id": job.upstream_id,
        "polls": job.polls,
        "failures": job.failures,
        "due_at": _write_moment(job.due_ms),
        "deadline_at": _write_moment(job.deadline_ms),
        "owner": job.owner or None,
        "lease_until": _write_moment(job.lease_until_ms or None),
        "media_id": job.media_id,
        "media_type": job.media_type or None,
        "media_bytes": job.media_bytes,
        "expires_at": _write_moment(job.expires_ms),
        "webhook_url": job.webhook_url,
    }


def _write_delivery(delivery: Delivery) -> Fields:
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
        "created_at": _write_moment(delivery.created_ms),
        "due_at": _write_moment(delivery.due_ms),
        "ended_at": _write_moment(delivery.ended_ms),
    }


def _write_moment(at_ms: int | None) -> str | None:
    return None if at_ms is None else write_time(at_ms // 1000)
