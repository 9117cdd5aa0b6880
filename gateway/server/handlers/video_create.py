"""``POST /v1/videos`` and ``/remix``: create a video job, which continues without the client."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import attrs
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.deferred import load
from gateway.domain.attribution import BUDGET_HEADER
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import Operation
from gateway.domain.price import usd
from gateway.domain.request_log import Outcome
from gateway.domain.video import StatusWords, VideoJob, VideoRequest, find_poll_after_ms
from gateway.domain.webhook import find_webhook_problem
from gateway.errors import Conflict, GatewayError, InvalidRequest
from gateway.formats.videos.openai import build_video
from gateway.formats.videos.openai_request import (
    parse_remix_form,
    parse_remix_inference,
    parse_videos_form,
    parse_videos_inference,
)
from gateway.formats.wire.form import ReceivedForm
from gateway.request_context import QUOTE_HEADER
from gateway.server.active_inference import INFERENCE, ActiveInference, get_active
from gateway.server.context import CONTEXT, SERVICES
from gateway.server.idempotency import IdempotencyKey
from gateway.server.media_type import read_media_type
from gateway.server.middlewares import parse_form, parse_request, replay_response, settle_request, with_middlewares
from gateway.server.multipart import MultipartReader
from gateway.server.video_status import FORM_TYPE, find_status_words, find_submitted_words
from gateway.videos.jobs import check_completed
from gateway.videos.provider_api import SubmitOutcomeUnknown

_JSON_TYPE = "application/json"
POLL_AFTER_HEADER = "openai-poll-after-ms"


class ActiveVideoSubmission(ActiveInference):
    """An active request that creates a video job. Once ``submitting``, it can no longer be cancelled."""

    def __init__(self, request: web.Request, operation: Operation) -> None:
        super().__init__(request, operation)
        self.submitting = False

    def cancel(self) -> bool:
        """Cancel the request; return False if it was already cancelled.

        Raises ``Conflict`` once the submission has begun: cancel the job by its id instead.
        """
        if self.submitting:
            raise Conflict("The request has become a video job: cancel the job", should_retry=False)
        return super().cancel()

    def settle(self, outcome: Outcome, error: GatewayError | None = None) -> None:
        """Record the request if its submission never began; otherwise the job records it."""
        if not self.submitting:
            super().settle(outcome, error)

    def handle_disconnect(self) -> bool:
        return False


async def parse_video(
    request: web.Request,
    handler: Handler,
    parse_json: Callable[[dict[str, Any]], InferenceRequest],
    parse_fields: Callable[[ReceivedForm], InferenceRequest],
) -> web.StreamResponse:
    """Parse the body of a video request, JSON or a form, into ``ctx.inference``; return the answer of ``handler``."""
    if read_media_type(request) == FORM_TYPE:
        return await parse_form(request, handler, parse_fields)
    return await parse_request(request, handler, parse_json)


async def load_original(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the original and its model, size and length to a remix request. Raises ``NotFound``, ``TaskNotReady``."""
    active, ctx = request[INFERENCE], request[CONTEXT]
    original = await active.services.videos.jobs.get(request.match_info["id"], ctx.caller.account.id)
    check_completed(original)
    seconds = int(original.seconds) if original.seconds else None
    video = attrs.evolve(_get_video(ctx.inference), seconds=seconds, size=original.size or None, remix_of=original)
    ctx.inference = attrs.evolve(ctx.inference, model=original.model, video=video)
    return await handler(request)


async def submit(request: web.Request) -> web.StreamResponse:
    """Create the job and answer with it. Raises ``InvalidRequest`` for a quote, or a webhook that is not allowed."""
    active, ctx, services = get_active(request, ActiveVideoSubmission), request[CONTEXT], request.app[SERVICES]
    if QUOTE_HEADER in request.headers:
        raise InvalidRequest(f"{QUOTE_HEADER}: nothing can be held for a video", param=QUOTE_HEADER)
    video = _get_video(ctx.inference)
    ctx.inference = attrs.evolve(ctx.inference, video=attrs.evolve(video, status_words=_find_words(request, video)))
    services.videos.submitter.check(ctx.inference)
    url = video.webhook_url
    problem = find_webhook_problem(url, services.live_config.find_webhook_hosts()) if url else None
    if problem is not None:
        raise InvalidRequest(problem, param="webhook_url")
    router = services.routing.router
    ctx.route = router.find_route_name(ctx.inference.model)
    ctx.target_list = router.route(ctx.caller, ctx.inference)
    if BUDGET_HEADER in request.headers:
        await load("server.request_checks:apply_budget")(active)
    # The submission must survive a disconnect of the client, which ends this handler. Its task therefore takes over the
    # objects that the request would release at its end: the idempotency key, which keeps the answer for a repeated
    # request, and the uploaded files, which the provider may still be reading.
    key, form = active.idempotency_key.hand_over(), active.form
    active.form, active.submitting, active.outlives_client = None, True, True
    job, body = await asyncio.shield(services.videos.jobs.tasks.start(_complete_submit(active, key, form)))
    headers = {
        "Content-Type": _JSON_TYPE,
        POLL_AFTER_HEADER: str(find_poll_after_ms(0)),
        "x-gateway-overhead-ms": f"{(monotonic() - ctx.read_at - ctx.upstream_s) * 1000:.2f}",
    }
    if not job.receipt.unpriced:
        headers["x-gateway-cost-usd"] = usd(job.cost_nanos)
    return web.Response(body=body, headers=headers)


def _find_words(request: web.Request, video: VideoRequest) -> StatusWords:
    words = find_submitted_words(request)
    return video.remix_of.status_words if video.remix_of is not None and words == "spec" else words


async def _complete_submit(
    active: ActiveVideoSubmission, key: IdempotencyKey, form: MultipartReader | None
) -> tuple[VideoJob, bytes]:
    """Submit the job, and store the answer under ``key``, even if the client disconnects or the gateway drains.

    If the submission fails, later requests may use the key, unless the provider may have created a job.
    """
    ctx, services, request = active.context, active.services, active.request
    drain = services.drain
    drain.active_count += 1
    try:
        job = await services.videos.submitter.submit(ctx)
        body = orjson.dumps(build_video(job, find_status_words(request, job)))
        if active.exchange is not None:
            active.exchange.note_answer(body, _JSON_TYPE)
            active.exchange.goes_on = True
        await key.keep(body)
    except GatewayError as error:
        if active.exchange is not None:
            active.exchange.error = error
        if not isinstance(error, SubmitOutcomeUnknown):
            key.release()
        raise
    finally:
        await key.mark_lost()  # the interrupted submission may have created a job: block the key for other requests
        if form is not None:
            form.close()
        services.active_requests.calls.pop(ctx.id, None)
        active.close_collectors()
        drain.active_count -= 1
    return job, body


def _get_video(inference: InferenceRequest) -> VideoRequest:
    return inference.video or VideoRequest("")


# The middleware ``quota`` is missing on purpose: the submitter reserves a job's cost in the commit that stores the job.
POST_VIDEOS = with_middlewares(
    submit,
    [
        partial(settle_request, operation="videos", kind=ActiveVideoSubmission),
        partial(parse_video, parse_json=parse_videos_inference, parse_fields=parse_videos_form),
        replay_response,
    ],
)
POST_REMIX = with_middlewares(
    submit,
    [
        partial(settle_request, operation="video_remixes", kind=ActiveVideoSubmission),
        partial(parse_video, parse_json=parse_remix_inference, parse_fields=parse_remix_form),
        load_original,
        replay_response,
    ],
)
