"""Pictures, whoever paints them: asked for, waited for, fetched, kept, and given to the caller in the form it wants.

What to ask a provider, and what its answers mean, is a ``ImageBackend``'s business (``formats/image_backend.py``).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import attrs
import structlog

from gateway.billing.quota import Grant
from gateway.domain.image import Images, PictureForm
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage
from gateway.errors import (
    ImageBlocked,
    InvalidRequest,
    ProviderBadResponse,
    ProviderError,
    ProviderRateLimited,
    ProviderRejected,
    ProviderTimeout,
    UnsupportedByProvider,
)
from gateway.formats.content_filter import parse_image_fault
from gateway.formats.image_backend import ImageBackend, ProviderCall
from gateway.formats.image_backends import make_image_backend
from gateway.formats.openai.errors import parse_retry_after
from gateway.formats.openai.image_response import build_answer, build_completed
from gateway.media.buffered_stream import BufferedPassthrough, BufferedStream
from gateway.media.image_delivery import ImageDelivery
from gateway.media.word_filter import WordList, check_body
from gateway.proxy import forward
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.failover import Proxy
from gateway.proxy.forward import OpenedStream, ProviderAnswer, open_provider_stream
from gateway.proxy.open_response import MAX_ERROR_BYTES, OK
from gateway.routing.route import Route
from gateway.routing.target import Attempt
from gateway.upstream.interface import HttpClient

MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""Ten pictures of four thousand pixels square in base64."""
MOST_FAILURES = 5
"""In a row, while a task is asked after: the task is not lost because one answer was."""
LONGEST_WAIT_S = 10.0
POLL_TIMEOUT_S = 30.0
"""For one answer about a task: a server that says nothing must not take the whole time of the call."""
ABANDON_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 3.0
_STREAMED = frozenset({"openai_images", "openai_edits"})

log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")


def can_pass(attempt: Attempt, call: InferenceRequest) -> bool:
    """Whether the channel streams the pictures that are asked for: then its events pass.

    Where nobody knows whether a model streams, it is not asked to: a server that does not might answer with addresses.
    """
    able = attempt.option.capability
    return attempt.option.endpoint.wire in _STREAMED and bool(able.streams) and len(_split(call, able.max_n)) == 1


class ImageService:
    """Gets pictures over an attempt.

    Args:
        upstream: the way out to providers.
        gallery: gives what they paint the form that is wanted.
        clock: Unix seconds.
        pace: what waits for a task are multiplied by.

    Attributes:
        words: what nobody may ask a picture of; may be replaced.
    """

    def __init__(
        self,
        upstream: HttpClient,
        gallery: ImageDelivery,
        *,
        clock: Callable[[], float],
        pace: float = 1.0,
    ) -> None:
        self._upstream = upstream
        self._gallery = gallery
        self._clock = clock
        self._pace = pace
        self._tasks: set[asyncio.Task[Any]] = set()
        self.words: WordList | None = None

    def check(self, call: InferenceRequest) -> None:
        """Before anything is held. Raises ``SensitiveWords``; ``StoreUnavailable`` where no picture could be kept."""
        check_body(self.words, call.body)
        if call.image is not None and call.image.form == "url" and not call.stream:
            self.check_room()

    def check_room(self) -> None:
        """Raise ``StoreUnavailable`` where the disk has no room for what callers send and are to fetch."""
        self._gallery.check_room()

    async def fetch(self, proxy: Proxy, grant: Grant, route: Route, request_id: str) -> ProviderAnswer:
        """Return a whole answer with images. Raises as ``Proxy.with_failover`` does, and ``StoreUnavailable``."""

        async def send(attempt: Attempt) -> ProviderAnswer:
            work = self.answer(attempt, grant.call)
            body, grant.delivery.usage = await attempt.wait_for(work, attempt.channel.timeouts.total_s, proxy.timer)
            attempt.check()
            proxy.record_success(attempt)
            return ProviderAnswer(body, attempt.exchange.manner.media_type)

        return await proxy.with_failover(grant.delivery, route, request_id, send)

    async def fetch_stream(
        self,
        proxy: Proxy,
        grant: Grant,
        route: Route,
        client_stream: ClientStream,
        request_id: str,
        *,
        settle: Callable[[ProviderError | None], None],
    ) -> ProviderError | None:
        """Stream images to the client; see ``proxy.forward.stream``."""
        return await forward.stream(
            proxy, grant, route, client_stream, request_id, settle=settle, open_stream=self._open_stream
        )

    async def _open_stream(self, proxy: Proxy, attempt: Attempt, call: InferenceRequest) -> OpenedStream:
        """Open the provider's stream, or a stream of one piece if the channel does not stream images."""
        if can_pass(attempt, call):
            return await open_provider_stream(proxy, attempt, call)
        response = attempt.response = self.stream(attempt, call)
        return response, BufferedPassthrough(response), None

    async def answer(self, attempt: Attempt, call: InferenceRequest) -> tuple[bytes, Usage]:
        """The whole answer. Raises an ``ProviderError``, ``StoreUnavailable``."""
        form = call.image.form if call.image else "url"
        images = await self._paint_as(attempt, call, form)
        return build_answer(images, form, created_s=int(self._clock())), images.usage

    def stream(self, attempt: Attempt, call: InferenceRequest) -> BufferedStream:
        """The same as events; a stream has its pictures in it."""

        async def paint() -> tuple[bytes, Usage]:
            images = await self._paint_as(attempt, call, "b64_json")
            return build_completed(images, call, int(self._clock())), images.usage

        reply = BufferedStream(paint())
        self._remember(reply.task)
        return reply

    async def close(self) -> None:
        """Wait for what is still being given up, but no longer than whoever stops the gateway would."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_TIMEOUT_S
        while self._tasks and loop.time() < until:  # one that ends may begin another
            await asyncio.wait(self._tasks, timeout=until - loop.time())
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _paint_as(self, attempt: Attempt, call: InferenceRequest, form: PictureForm) -> Images:
        images = await self._paint(attempt, call)
        try:
            items = await _gather([self._gallery.give(attempt, call, image, form) for image in images.items])
        except ProviderError:
            attempt.pending = False  # the caller gets nothing of what was made, and has no part in that
            raise
        return attrs.evolve(images, items=tuple(items))

    async def _paint(self, attempt: Attempt, call: InferenceRequest) -> Images:
        """Everything that is asked for: in several calls at once, where the model makes fewer at a time.

        All of it or nothing: where one call fails the others are given up.
        """
        counts = _split(call, attempt.option.capability.max_n)
        slots = asyncio.Semaphore(1 + attempt.lease.widen(len(counts) - 1))

        async def paint_part(number: int, count: int) -> Images:
            async with slots:
                attempt.images += count
                return await self._paint_part(attempt, call, count, number)

        parts = await _gather([paint_part(number, count) for number, count in enumerate(counts)])
        return parts[0] if len(parts) == 1 else _join(parts)

    async def _paint_part(self, attempt: Attempt, call: InferenceRequest, count: int, number: int) -> Images:
        option = attempt.option
        mark = f"{attempt.naming.id}{number}"
        image_backend = make_image_backend(option.endpoint.wire, call, option.model, mark, option.capability)
        told: Images | ProviderCall = _begin(image_backend, count)
        done = False
        try:
            while isinstance(told, ProviderCall):
                step = self._step if not told.begins else self._step_for_sure
                told = await step(attempt, image_backend, told)
            done = True
        finally:
            if not done:
                self._abandon(attempt, image_backend)
        if not told.items:
            fault = ProviderBadResponse("The provider answered without a picture")
            fault.may_be_prompt = True
            raise fault
        return told

    async def _step(self, attempt: Attempt, image_backend: ImageBackend, ask: ProviderCall) -> Images | ProviderCall:
        return image_backend.read(await self._ask(attempt, ask), attempt.channel.secrets)

    async def _step_for_sure(
        self, attempt: Attempt, image_backend: ImageBackend, ask: ProviderCall
    ) -> Images | ProviderCall:
        """The same, to its end whoever waits for it; what it began for nobody is stopped."""
        step = asyncio.get_running_loop().create_task(self._step(attempt, image_backend, ask))
        self._remember(step)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            if not step.done():  # else the painter knows by now what there is to stop
                step.add_done_callback(lambda _: self._abandon(attempt, image_backend))
                asyncio.get_running_loop().call_later(ABANDON_TIMEOUT_S, step.cancel)
            raise

    async def _ask(self, attempt: Attempt, ask: ProviderCall) -> bytes:
        """An ask's answer, however often it takes where the ask says nothing of the task itself."""
        failures, wait_s = 0, ask.wait_s
        while True:
            await asyncio.sleep(wait_s * self._pace)
            try:
                return await self._send(attempt, ask, POLL_TIMEOUT_S if ask.passing else None)
            except (ProviderBadResponse, ProviderTimeout, ProviderRejected) as fault:
                failures += 1
                if not ask.passing or isinstance(fault, ImageBlocked):
                    raise
                if failures > MOST_FAILURES:
                    raise _blame_provider(fault) from fault
                wait_s = min(max(2.0**failures / 4, fault.provider_retry_after_s or 0.0), LONGEST_WAIT_S)

    async def _send(self, attempt: Attempt, ask: ProviderCall, timeout_s: float | None) -> bytes:
        """A good answer's body. Raises an ``ProviderError``; ``timeout_s`` None: the call's own time bounds it."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send_once(attempt, ask)
        except TimeoutError:
            raise ProviderTimeout("The provider took too long to answer", phase="headers") from None

    async def _send_once(self, attempt: Attempt, ask: ProviderCall) -> bytes:
        secrets = attempt.channel.secrets
        reply = await self._upstream.send(attempt.plan_ask(ask))
        try:
            if reply.status in OK:
                return await reply.read(MAX_ANSWER_BYTES)
            attempt.pending &= ask.passing
            raw = await reply.read(MAX_ERROR_BYTES)
            provider_retry_after_s = parse_retry_after(reply.headers.get("Retry-After"), self._clock())
            path = ask.path or attempt.option.endpoint.path
            raise parse_image_fault(
                reply.status, raw, secrets, provider_retry_after_s=provider_retry_after_s, path=path
            )
        finally:
            reply.close()

    def _abandon(self, attempt: Attempt, image_backend: ImageBackend) -> None:
        """Stop what a provider is still working on for a caller who left; nobody waits for it."""
        ask = image_backend.abandon()
        if ask is not None:
            self._remember(asyncio.get_running_loop().create_task(self._give_up(attempt, ask)))

    async def _give_up(self, attempt: Attempt, ask: ProviderCall) -> None:
        try:
            await self._send(attempt, ask, ABANDON_TIMEOUT_S)
        except ProviderError as fault:
            log.warning("task_not_cancelled", channel=attempt.channel.name, error=str(fault))
        except asyncio.CancelledError:
            log.warning("task_not_cancelled", channel=attempt.channel.name, error="The gateway could not wait for it")
            raise

    def _remember(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._let_go)

    def _let_go(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has been told; and perhaps nobody did


def _blame_provider(fault: ProviderError) -> ProviderError:
    """What a task is asked after with is none of its caller's: a refusal of it is no mistake of theirs."""
    if not isinstance(fault, ProviderRejected) or isinstance(fault, ProviderRateLimited):
        return fault
    return ProviderBadResponse(f"The provider does not say what became of its task: {fault.message}")


def _begin(image_backend: ImageBackend, count: int) -> ProviderCall:
    try:
        return image_backend.begin(count)
    except InvalidRequest as refused:
        raise UnsupportedByProvider(refused.message, param=refused.param) from None


def _split(call: InferenceRequest, most: int | None) -> list[int]:
    """How many pictures each call asks for."""
    count = call.image.count if call.image else 1
    if most is None or count <= most:
        return [count]
    return [min(most, count - done) for done in range(0, count, most)]


def _join(parts: Sequence[Images]) -> Images:
    """Several answers as one; what they say of themselves is what the first one says, but for what was used."""
    usages = [part.usage for part in parts]
    usage = Usage(
        prompt_tokens=sum(one.prompt_tokens for one in usages),
        completion_tokens=sum(one.completion_tokens for one in usages),
        cached_tokens=sum(one.cached_tokens for one in usages),
        source="estimate" if any(one.source == "estimate" for one in usages) else usages[0].source,
        images=sum(one.images for one in usages),
    )
    told = {name: value for name, value in parts[0].told.items() if name != "usage"}
    return Images(tuple(item for part in parts for item in part.items), usage, told)


async def _gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All of it, or the first fault; then the rest is cancelled, and has ended when this returns."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.get_running_loop().create_task(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    faults = [one for one in ended if isinstance(one, BaseException)]
    for fault in faults:
        if not isinstance(fault, asyncio.CancelledError):
            raise fault
    if faults:
        raise faults[0]
    return [one for one in ended if not isinstance(one, BaseException)]
