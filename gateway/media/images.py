"""Generate images: ask a provider, wait for its task, fetch the images, and deliver them in the requested form."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import attrs
import structlog

from gateway import errors
from gateway.background import TaskSet
from gateway.domain.image import ImageForm, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.formats.errors.content_filter import parse_image_error
from gateway.formats.errors.openai import parse_retry_after
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.backends import make_image_backend
from gateway.formats.images.openai_response import build_answer, build_completed_stream
from gateway.formats.stream import check_parts
from gateway.media.buffered_stream import BufferedPassthrough, BufferedStream
from gateway.media.image_delivery import ImageDelivery
from gateway.media.word_filter import WordList, check_body
from gateway.proxy import forward
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.failover import Proxy
from gateway.proxy.forward import MAX_ERROR_BYTES, OK_STATUSES, OpenedStream, ProviderAnswer, open_provider_stream
from gateway.request_context import RequestContext
from gateway.routing.target import Attempt
from gateway.upstream.interface import HttpClient

MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Maximum size of a provider's answer: ten images of 4,000 x 4,000 pixels in base64."""
MAX_FAILURES = 5
"""Consecutive failures allowed while a task is polled: one failed poll does not lose the task."""
MAX_WAIT_S = 10.0
POLL_TIMEOUT_S = 30.0
"""Timeout of one poll: an unresponsive server must not use up the whole time of the request."""
ABANDON_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 3.0
_STREAMED_FORMATS = frozenset({"openai_images", "openai_edits"})

log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")


def can_pass(attempt: Attempt, inference: InferenceRequest) -> bool:
    """Return whether the channel streams all requested images in one answer; its events can then be passed on.

    If it is unknown whether a model streams, no stream is requested: the server might answer with addresses instead.
    """
    capability = attempt.target.capability
    return (
        attempt.target.endpoint.wire in _STREAMED_FORMATS
        and bool(capability.streams)
        and len(_split_count(inference, capability.max_n)) == 1
    )


class ImageService:
    """Generates the images of a request, as one answer or as a stream.

    Args:
        wait_scale: factor for the waits between polls of a task.

    Attributes:
        find_words: returns the forbidden words; None for no check.
    """

    def __init__(
        self,
        upstream: HttpClient,
        delivery: ImageDelivery,
        *,
        find_words: Callable[[], WordList | None],
        clock: Callable[[], float],
        wait_scale: float = 1.0,
    ) -> None:
        self._upstream = upstream
        self._delivery = delivery
        self._clock = clock
        self._wait_scale = wait_scale
        self._tasks = TaskSet()
        self.find_words = find_words

    def check(self, inference: InferenceRequest) -> None:
        """Check a request before money is reserved.

        Raises ``SensitiveWords``, ``InvalidRequest`` if there is too much text to check, and ``StoreUnavailable`` if
        images are requested as links and cannot be stored now.
        """
        check_body(self.find_words(), inference.body)
        if inference.image is not None and inference.image.form == "url" and not inference.stream:
            self.check_room()

    def check_room(self) -> None:
        self._delivery.check_room()

    async def fetch(self, proxy: Proxy, ctx: RequestContext) -> ProviderAnswer:
        """Return the whole answer with images.

        Raises the errors of ``Proxy.with_failover``, and ``StoreUnavailable`` if an image for a link cannot be stored.
        """

        async def send(attempt: Attempt) -> ProviderAnswer:
            work = self.answer(attempt, attempt.translator.inference)
            body, ctx.usage = await attempt.wait_for(work, attempt.channel.timeouts.total_s, proxy.timer)
            attempt.check()
            proxy.load_balancer.record_success(attempt.slot)
            return ProviderAnswer(body, attempt.translator.mode.media_type)

        return await proxy.with_failover(ctx, send)

    async def fetch_stream(
        self,
        proxy: Proxy,
        ctx: RequestContext,
        client_stream: ClientStream,
        *,
        settle: Callable[[errors.GatewayError | None], None],
    ) -> errors.ProviderError | None:
        return await forward.stream(proxy, ctx, client_stream, settle=settle, open_stream=self._open_stream)

    async def _open_stream(self, proxy: Proxy, attempt: Attempt) -> OpenedStream:
        inference = attempt.translator.inference
        if can_pass(attempt, inference):
            return await open_provider_stream(proxy, attempt)
        response = attempt.response = self.stream(attempt, inference)
        return response, BufferedPassthrough(response), None

    async def answer(self, attempt: Attempt, inference: InferenceRequest) -> tuple[bytes, Usage]:
        form = inference.image.form if inference.image else "url"
        images = await self._generate_as(attempt, inference, form)
        return build_answer(images, form, created_s=int(self._clock())), images.usage

    def stream(self, attempt: Attempt, inference: InferenceRequest) -> BufferedStream:
        """Start to generate the images, and return the stream of their events, which contain the images in base64."""

        async def generate() -> tuple[bytes, Usage]:
            images = await self._generate_as(attempt, inference, "b64_json")
            return build_completed_stream(images, inference, int(self._clock())), images.usage

        response = BufferedStream(generate())
        self._tasks.add(response.task)
        return response

    async def close(self) -> None:
        """Wait up to ``CLOSE_TIMEOUT_S`` for running tasks, then cancel the rest."""
        await self._tasks.close(CLOSE_TIMEOUT_S)

    async def _generate_as(self, attempt: Attempt, inference: InferenceRequest, form: ImageForm) -> Images:
        images = await self._generate(attempt, inference)
        try:
            items = await _gather([self._delivery.deliver(attempt, inference, image, form) for image in images.items])
        except errors.ProviderError:
            attempt.pending = False  # the client did not cause the failure and gets no image
            raise
        return attrs.evolve(images, items=tuple(items))

    async def _generate(self, attempt: Attempt, inference: InferenceRequest) -> Images:
        """Generate all requested images, with several concurrent requests if one cannot make all of them.

        ``attempt.images`` counts the images of the requests that have begun.
        """
        counts = _split_count(inference, attempt.target.capability.max_n)
        slots = asyncio.Semaphore(1 + await attempt.slot.widen(len(counts) - 1))

        async def generate_part(number: int, count: int) -> Images:
            async with slots:
                attempt.images += count
                return await self._generate_part(attempt, inference, count, number)

        parts = await _gather([generate_part(number, count) for number, count in enumerate(counts)])
        return parts[0] if len(parts) == 1 else _join_images(parts)

    async def _generate_part(self, attempt: Attempt, inference: InferenceRequest, count: int, number: int) -> Images:
        target = attempt.target
        boundary_mark = f"{attempt.identity.id}{number}"
        image_backend = make_image_backend(
            target.endpoint.wire, inference, target.model, boundary_mark, target.capability
        )
        result: Images | ProviderRequest = _begin_generation(image_backend, count)
        is_done = False
        try:
            while isinstance(result, ProviderRequest):
                step = self._step if not result.starts_task else self._step_uncancelled
                result = await step(attempt, image_backend, result)
            is_done = True
        finally:
            if not is_done:
                self._abandon(attempt, image_backend)
        if not result.items:
            error = errors.ProviderBadResponse("The provider answered without an image")
            error.may_be_prompt = True
            raise error
        return result

    async def _step(
        self, attempt: Attempt, image_backend: ImageBackend, provider_request: ProviderRequest
    ) -> Images | ProviderRequest:
        return image_backend.read(await self._ask(attempt, provider_request), attempt.channel.secrets)

    async def _step_uncancelled(
        self, attempt: Attempt, image_backend: ImageBackend, provider_request: ProviderRequest
    ) -> Images | ProviderRequest:
        """Run the step. If the client disconnects, the step may go on for ``ABANDON_TIMEOUT_S``.

        A task that the step has started at the provider by then is cancelled.
        """
        step = self._tasks.start(self._step(attempt, image_backend, provider_request))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            if not step.done():  # else the backend already knows the task to cancel
                step.add_done_callback(lambda _: self._abandon(attempt, image_backend))
                asyncio.get_running_loop().call_later(ABANDON_TIMEOUT_S, step.cancel)
            raise

    async def _ask(self, attempt: Attempt, provider_request: ProviderRequest) -> bytes:
        """Send a provider request and return the body of the answer. After a failure, a poll of a task is repeated.

        Raises ``ProviderError``.
        """
        failures, wait_s = 0, provider_request.wait_s
        while True:
            await asyncio.sleep(wait_s * self._wait_scale)
            try:
                return await self._send(
                    attempt, provider_request, POLL_TIMEOUT_S if provider_request.repeatable else None
                )
            except (errors.ProviderBadResponse, errors.ProviderTimeout, errors.ProviderRejected) as fault:
                failures += 1
                if not provider_request.repeatable or isinstance(fault, errors.ImageBlocked):
                    raise
                if failures > MAX_FAILURES:
                    raise _as_provider_error(fault) from fault
                wait_s = min(max(2.0**failures / 4, fault.provider_retry_after_s or 0.0), MAX_WAIT_S)

    async def _send(self, attempt: Attempt, provider_request: ProviderRequest, timeout_s: float | None) -> bytes:
        """Return the body of a successful answer. Raises ``ProviderError``.

        ``timeout_s`` is the timeout of the request; None stands for that of the attempt.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send_once(attempt, provider_request)
        except TimeoutError:
            raise errors.ProviderTimeout("The provider took too long to answer", phase="headers") from None

    async def _send_once(self, attempt: Attempt, provider_request: ProviderRequest) -> bytes:
        secrets = attempt.channel.secrets
        response = await self._upstream.send(attempt.build_provider_request(provider_request))
        try:
            if response.status in OK_STATUSES:
                raw = await response.read(MAX_ANSWER_BYTES)
                check_parts(raw)
                return raw
            attempt.pending &= provider_request.repeatable
            raw = await response.read(MAX_ERROR_BYTES)
            provider_retry_after_s = parse_retry_after(response.headers.get("Retry-After"), self._clock())
            path = provider_request.path or attempt.target.endpoint.path
            raise parse_image_error(
                response.status, raw, secrets, provider_retry_after_s=provider_retry_after_s, path=path
            )
        finally:
            response.close()

    def _abandon(self, attempt: Attempt, image_backend: ImageBackend) -> None:
        provider_request = image_backend.build_cancel_request()
        if provider_request is not None:
            self._tasks.start(self._give_up(attempt, provider_request))

    async def _give_up(self, attempt: Attempt, provider_request: ProviderRequest) -> None:
        try:
            await self._send(attempt, provider_request, ABANDON_TIMEOUT_S)
        except errors.ProviderError as fault:
            log.warning("provider_task_not_cancelled", channel=attempt.channel.name, error=str(fault))
        except asyncio.CancelledError:
            log.warning(
                "provider_task_not_cancelled", channel=attempt.channel.name, error="The gateway could not wait for it"
            )
            raise


def _as_provider_error(error: errors.ProviderError) -> errors.ProviderError:
    """Return ``error``, or ``ProviderBadResponse`` in place of a rejection, because the client did not send the poll.

    A rate limit is not replaced.
    """
    if not isinstance(error, errors.ProviderRejected) or isinstance(error, errors.ProviderRateLimited):
        return error
    return errors.ProviderBadResponse(f"The provider does not say what became of its task: {error.message}")


def _begin_generation(image_backend: ImageBackend, count: int) -> ProviderRequest:
    try:
        return image_backend.begin(count)
    except errors.InvalidRequest as error:
        raise errors.UnsupportedByProvider(error.message, param=error.param) from None


def _split_count(inference: InferenceRequest, maximum: int | None) -> list[int]:
    count = inference.image.count if inference.image else 1
    if maximum is None or count <= maximum:
        return [count]
    return [min(maximum, count - start) for start in range(0, count, maximum)]


def _join_images(parts: Sequence[Images]) -> Images:
    """Join several answers into one: usage is added up, other fields come from the first answer."""
    usages = [part.usage for part in parts]
    usage = Usage(
        prompt_tokens=sum(part_usage.prompt_tokens for part_usage in usages),
        completion_tokens=sum(part_usage.completion_tokens for part_usage in usages),
        cached_tokens=sum(part_usage.cached_tokens for part_usage in usages),
        source="estimate" if any(part_usage.source == "estimate" for part_usage in usages) else usages[0].source,
        images=sum(part_usage.images for part_usage in usages),
    )
    fields = {name: value for name, value in parts[0].reported.items() if name != "usage"}
    return Images(tuple(item for part in parts for item in part.items), usage, fields)


async def _gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results, or raise the first error after the remaining work has been cancelled and has ended."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.get_running_loop().create_task(job) for job in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [job for job in results if isinstance(job, BaseException)]
    for error in faults:
        if not isinstance(error, asyncio.CancelledError):
            raise error
    if faults:
        raise faults[0]
    return [job for job in results if not isinstance(job, BaseException)]
