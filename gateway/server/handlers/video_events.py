"""``GET /v1/videos/{id}/events``: how a job moves, as it does, so that nobody need ask."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import orjson
from aiohttp import web
from aiohttp_sse import EventSourceResponse

from gateway.domain.video import StatusWords, VideoJob
from gateway.errors import ClientDisconnected, GatewayError, RateLimited
from gateway.formats.openai.videos import build_video
from gateway.server.context import CALLER, ROOMS
from gateway.server.sessions import check_still_signed
from gateway.server.video_status import find_status_words

MOST_FOLLOWING = 32
"""Streams of one account at a time."""
LOOK_AGAIN_S = 15.0
"""Whoever follows a job hears of its moves at once; those that another process made a little later."""
SEND_TIMEOUT_S = 30.0


class SubscriberLimit:
    """How many streams every account has open; those of nobody's account are counted together.

    Args:
        most: how many it may have.
        what: is followed.
    """

    def __init__(self, most: int = MOST_FOLLOWING, what: str = "videos") -> None:
        self._most = most
        self._what = what
        self._open: Counter[int | None] = Counter()

    @contextmanager
    def join(self, account_id: int | None) -> Iterator[None]:
        """One more, until the end of the block. Raises ``RateLimited``."""
        if self._open[account_id] >= self._most:
            raise RateLimited(f"The account follows {self._most} {self._what} already", retry_after_s=5)
        self._open[account_id] += 1
        try:
            yield
        finally:
            self._open[account_id] -= 1
            if not self._open[account_id]:
                del self._open[account_id]


FOLLOWING = web.AppKey("following", SubscriberLimit)


async def get_events(request: web.Request) -> web.StreamResponse:
    """The task object without its prompt, now and whenever it has changed, until the job has ended."""
    rooms, caller = request.app[ROOMS], request[CALLER]
    job = await rooms.videos.get(request.match_info["id"], caller.account.id)
    response = EventSourceResponse(sep="\n", send_timeout=SEND_TIMEOUT_S)
    with request.app[FOLLOWING].join(caller.account.id):
        async with rooms.videos.notifier.listen(job.id) as bell:
            await response.prepare(request)
            try:
                async with response:
                    await _follow(request, response, job, bell)
            except (TimeoutError, ConnectionError):
                raise ClientDisconnected from None
    return response


async def _follow(request: web.Request, response: EventSourceResponse, job: VideoJob, bell: asyncio.Event) -> None:
    rooms, words = request.app[ROOMS], find_status_words(request, job)
    told = ""
    while rooms.gate.open:
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
                rooms.directory.refresh(request[CALLER])
        except GatewayError:
            return
        found = await rooms.videos.find(job.id)
        if found is None:
            return
        job = found


def _write(job: VideoJob, words: StatusWords) -> tuple[str, str]:
    """The event and its data. A prompt may be long, and does not change."""
    said = build_video(job, words)
    del said["prompt"]
    return f"video.{said['status']}", orjson.dumps(said).decode()
