"""``GET /v1/videos/{id}/events``: how a job moves, as it does, so that nobody need ask."""

import asyncio
from contextlib import suppress

import orjson
from aiohttp import web
from aiohttp_sse import EventSourceResponse

from gateway.domain.video import StatusWords, VideoJob
from gateway.errors import ClientDisconnected, GatewayError
from gateway.formats.openai.videos import build_video
from gateway.server.context import CALLER, SERVICES
from gateway.server.sessions import check_still_signed
from gateway.server.subscriber_limit import SubscriberLimit
from gateway.server.video_status import find_status_words

LOOK_AGAIN_S = 15.0
"""Whoever follows a job hears of its moves at once; those that another process made a little later."""
SEND_TIMEOUT_S = 30.0

FOLLOWING = web.AppKey("following", SubscriberLimit)


async def get_events(request: web.Request) -> web.StreamResponse:
    """The task object without its prompt, now and whenever it has changed, until the job has ended."""
    services, caller = request.app[SERVICES], request[CALLER]
    job = await services.videos.jobs.get(request.match_info["id"], caller.account.id)
    response = EventSourceResponse(sep="\n", send_timeout=SEND_TIMEOUT_S)
    with request.app[FOLLOWING].join(caller.account.id):
        async with services.videos.jobs.notifier.listen(job.id) as bell:
            await response.prepare(request)
            try:
                async with response:
                    await _follow(request, response, job, bell)
            except (TimeoutError, ConnectionError):
                raise ClientDisconnected from None
    return response


async def _follow(request: web.Request, response: EventSourceResponse, job: VideoJob, bell: asyncio.Event) -> None:
    services, words = request.app[SERVICES], find_status_words(request, job)
    told = ""
    while services.drain.open:
        event, now = _write(job, words)
        if now != told:
            await response.send(now, event=event)
            told = now
        if job.ended:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await bell.wait()
        bell.clear()
        try:  # a key may be taken away meanwhile, and a session end
            await check_still_signed(request)
            if request[CALLER].key.id:
                services.auth.api_keys.refresh(request[CALLER])
        except GatewayError:
            return
        found = await services.videos.jobs.find(job.id)
        if found is None:
            return
        job = found


def _write(job: VideoJob, words: StatusWords) -> tuple[str, str]:
    """The event and its data. A prompt may be long, and does not change."""
    said = build_video(job, words)
    del said["prompt"]
    return f"video.{said['status']}", orjson.dumps(said).decode()
