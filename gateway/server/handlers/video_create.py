"""``POST /v1/videos`` and its like: a call that becomes a job, which its caller need not wait for."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import attrs
import orjson
from aiohttp import web

from gateway.domain.inference_request import InferenceRequest, Operation
from gateway.domain.price import usd
from gateway.domain.request_log import Ending
from gateway.domain.video import StatusWords, VideoJob, VideoRequest, find_poll_after_ms
from gateway.domain.webhook import find_webhook_problem
from gateway.errors import Conflict, GatewayError, InvalidRequest
from gateway.formats.openai.video_params import parse_remix_call, parse_remix_form, parse_videos_call, parse_videos_form
from gateway.formats.openai.videos import build_video
from gateway.request_context import Delivery
from gateway.server.handlers.inference import Walk, open_form
from gateway.server.idempotency import IdempotencyKey
from gateway.server.media_type import read_media_type
from gateway.server.multipart import MultipartReader
from gateway.server.video_status import FORM_TYPE, find_status_words, find_submitted_words
from gateway.videos.jobs import check_completed
from gateway.videos.provider_api import SubmitOutcomeUnknown
from gateway.videos.submit import Submission

POLL_AFTER = "openai-poll-after-ms"


async def post_videos(request: web.Request) -> web.StreamResponse:
    """``POST /v1/videos``, and ``POST /v1/video/generations``: JSON or a form."""
    walk = _VideoWalk(request, "videos")
    if not _is_form(request):
        return await walk.go(walk.read_json(parse_videos_call))
    return await walk.go_with_form(lambda reader: walk.read_form(reader, parse_videos_form))


async def post_remix(request: web.Request) -> web.StreamResponse:
    """``POST /v1/videos/{id}/remix``: JSON or a form."""
    walk = _VideoWalk(request, "video_remixes")
    if not _is_form(request):
        return await walk.go(walk.read_remix(walk.read_json(parse_remix_call)))
    return await walk.go_with_form(lambda reader: walk.read_remix(walk.read_form(reader, parse_remix_form)))


def _is_form(request: web.Request) -> bool:
    return read_media_type(request) == FORM_TYPE


class _VideoWalk(Walk):
    """A call on its way to being a job."""

    def __init__(self, request: web.Request, operation: Operation) -> None:
        super().__init__(request, operation)
        self._ticket: Submission | None = None
        self._reader: MultipartReader | None = None

    @property
    def delivery(self) -> Delivery | None:
        """What has become of it; its job's is written down elsewhere."""
        return self._ticket.grant.delivery if self._ticket and self._ticket.grant else None

    def cancel(self) -> bool:
        """End it while it is still a call. Raises ``Conflict``: what is on its way to being a job is ended as one."""
        if self._ticket is not None:
            raise Conflict("The request is becoming a video: cancel that one, where the videos are", should_retry=False)
        return super().cancel()

    async def go_with_form(self, read: Callable[[MultipartReader], Awaitable[InferenceRequest]]) -> web.StreamResponse:
        """The same for a form; its file is there until the job is begun, whether or not its caller is."""
        reader = self._reader = open_form(self._request)
        try:
            return await self.go(read(reader))
        finally:
            if self._reader is not None:
                self._reader.close()

    async def read_remix(self, reading: Awaitable[InferenceRequest]) -> InferenceRequest:
        """A remix, with the model and the measures of its original. Raises ``NotFound``, ``TaskNotReady``."""
        call = await reading
        original = await self._rooms.videos.get(self._request.match_info["id"], self._arrival.caller.account.id)
        check_completed(original)
        seconds = int(original.seconds) if original.seconds else None
        ask = attrs.evolve(_get_ask(call), seconds=seconds, size=original.size or None, remix_of=original)
        return attrs.evolve(call, model=original.model, video=ask)

    async def _serve(self, call: InferenceRequest) -> web.StreamResponse:
        rooms, ask = self._rooms, _get_ask(call)
        call = attrs.evolve(call, video=attrs.evolve(ask, status_words=self._find_words(ask)))
        rooms.submissions.check(call)
        url = ask.webhook_url
        problem = find_webhook_problem(url, rooms.webhook_hosts()) if url else None
        if problem is not None:
            raise InvalidRequest(problem, param="webhook_url")
        ticket = Submission(self._arrival, call, rooms.router.route(self._arrival.caller, call))
        carrying = rooms.videos.run(self._carry(ticket, self._named.hand_over(), self._reader))
        self._ticket, self._reader = ticket, None
        try:
            job, body = await asyncio.shield(carrying)
        finally:
            if ticket.grant is not None:
                self._trace.delivery = ticket.grant.delivery
            if ticket.standing is not None:
                self._trace.standing = ticket.standing
        upstream_s = ticket.grant.delivery.upstream_s if ticket.grant else 0.0
        headers = {
            "Content-Type": "application/json",
            POLL_AFTER: str(find_poll_after_ms(0)),
            "x-gateway-overhead-ms": f"{(monotonic() - self._read_at - upstream_s) * 1000:.2f}",
            "x-gateway-cost-usd": usd(job.cost_nanos),
        }
        self._settle("completed")
        return web.Response(body=body, headers=headers)

    def _find_words(self, ask: VideoRequest) -> StatusWords:
        """The words to remember with the job; those of an original are its remixes', too."""
        found = find_submitted_words(self._request)
        return ask.remix_of.status_words if ask.remix_of is not None and found == "spec" else found

    async def _carry(
        self, ticket: Submission, named: IdempotencyKey, reader: MultipartReader | None
    ) -> tuple[VideoJob, bytes]:
        """The call to its end, whoever waits for it: a provider that was asked is listened to, also by a drain."""
        gate = self._rooms.gate
        gate.inside += 1
        try:
            job = await self._rooms.submissions.submit(ticket)
            body = orjson.dumps(build_video(job, find_status_words(self._request, job)))
            await named.keep(body)
        except GatewayError as fault:
            if not isinstance(fault, SubmitOutcomeUnknown):
                named.close()
            raise
        finally:
            await named.lose()  # cut off, it may have left a job: its name is not free for another one
            if reader is not None:
                reader.close()
            self._rooms.running.calls.pop(self._arrival.id, None)
            gate.inside -= 1
        return job, body

    def _settle(self, ending: Ending, fault: GatewayError | None = None) -> None:
        """A call that has a ticket leaves its row when its job ends, or where it was refused: not here."""
        if self._ticket is None:
            super()._settle(ending, fault)
        elif self._ticket.row is not None:
            self._trace.row = self._ticket.row


def _get_ask(call: InferenceRequest) -> VideoRequest:
    return call.video or VideoRequest("")
