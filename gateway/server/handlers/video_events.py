"""``GET /v1/videos/{id}/events``: server-sent events about the changes of a video job."""

import asyncio
from contextlib import suppress

import orjson
from aiohttp import web
from aiohttp_sse import EventSourceResponse

from gateway.domain.video import StatusWords, VideoJob
from gateway.errors import ClientDisconnected, GatewayError
from gateway.formats.videos.openai import build_video
from gateway.server.context import CALLER, SERVICES
from gateway.server.sessions import check_still_signed_in
from gateway.server.subscriber_limit import SUBSCRIBER_LIMIT
from gateway.server.video_status import find_status_words

RELOAD_S = 15.0
"""Polling interval for a job. Changes by this process are sent at once."""
SEND_TIMEOUT_S = 30.0


async def get_events(request: web.Request) -> web.StreamResponse:
    """Send the job without its prompt, now and after every change, until the job has ended.

    The events also end if the job is deleted, the client may no longer read it, or the gateway shuts down. Raises
    ``NotFound``, ``RateLimited`` if the account has too many such streams, and ``ClientDisconnected`` if the client
    closes the connection first.
    """
    services, caller = request.app[SERVICES], request[CALLER]
    job = await services.videos.jobs.get(request.match_info["id"], caller.account.id)
    response = EventSourceResponse(sep="\n", send_timeout=SEND_TIMEOUT_S)
    with request.app[SUBSCRIBER_LIMIT].hold_stream(caller.account.id):
        async with services.videos.notifier.listen(job.id) as job_changed:
            await response.prepare(request)
            try:
                async with response:
                    await _follow(request, response, job, job_changed)
            except (TimeoutError, ConnectionError):
                raise ClientDisconnected from None
    return response


async def _follow(
    request: web.Request, response: EventSourceResponse, job: VideoJob, job_changed: asyncio.Event
) -> None:
    services, words = request.app[SERVICES], find_status_words(request, job)
    sent_data = ""
    while services.drain.open:
        event, data = _build_event(job, words)
        if data != sent_data:
            await response.send(data, event=event)
            sent_data = data
        if job.ended:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(RELOAD_S):
                await job_changed.wait()
        job_changed.clear()
        try:  # the key may have been revoked, or the session may have ended
            await check_still_signed_in(request)
            if request[CALLER].key.id:
                services.auth.api_keys.refresh(request[CALLER])
        except GatewayError:
            return
        stored_job = await services.videos.jobs.store.find(job.id)
        if stored_job is None:
            return
        job = stored_job


def _build_event(job: VideoJob, words: StatusWords) -> tuple[str, str]:
    """Return the event's name and data, without the prompt, which may be long and does not change."""
    body = build_video(job, words)
    del body["prompt"]
    return f"video.{body['status']}", orjson.dumps(body).decode()
