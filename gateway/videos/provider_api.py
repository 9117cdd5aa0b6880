"""What is asked of providers for the sake of a job: to begin it, what became of it, and where its file is.

Nothing here keeps records: whoever asks does (``videos/jobs.py``).
"""

import asyncio
from collections.abc import Callable
from hashlib import sha256

import attrs
import structlog

from gateway.domain.channel import Channel
from gateway.domain.video import LONGEST_HINT_S, SHORTEST_HINT_S, VideoJob
from gateway.errors import (
    GatewayError,
    InvalidRequest,
    ProviderBadResponse,
    ProviderContentGone,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    UnsupportedByProvider,
)
from gateway.formats.image_backend import ProviderCall
from gateway.formats.openai.errors import parse_retry_after
from gateway.formats.video_backend import ContentLocation, ProviderTask, TaskStatus, Variant, VideoBackend, VideoSpec
from gateway.formats.video_backends import VIDEO_BACKENDS
from gateway.providers.registry import PROVIDERS
from gateway.proxy.attempt import MAX_ERROR_BYTES, OK
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.target import Attempt, Way
from gateway.upstream.interface import FetchedFile, Fetcher, FileRequest, HttpClient, HttpResponse

MAX_ANSWER_BYTES = 256 * 1024
"""Of what is said of a task: it is read in one go."""
POLL_TIMEOUT_S = 30.0
_PRINT_CHARS = 12
_OF_NOBODY = frozenset({408, 502, 504, *range(520, 528)})
"""What servers between here and the provider say of it: nothing that tells whether it heard."""
_MOVED = frozenset({301, 302, 307, 308})
_ERRORS = range(400, 600)
_GONE = frozenset({404, 410})
_LATER = "openai-poll-after-ms"

log = structlog.stdlib.get_logger(__name__)


def must_fetch(wire: str) -> bool:
    """Whether addresses of pictures have to be fetched for whoever speaks a language."""
    return not VIDEO_BACKENDS[wire].takes_urls


class SubmitOutcomeUnknown(ProviderError):
    """A provider was asked to begin a job, and nobody knows whether it did: it must not be asked again."""

    retryable = False

    def __init__(self, fault: ProviderError) -> None:
        super().__init__(
            f"{fault.message}; whether the job was begun is not known", phase=fault.phase, should_retry=False
        )
        if fault.status in _OF_NOBODY:  # whoever hears it in turn must not take it for a refusal, as a 503 is
            self.status, self.public_code = fault.status, fault.public_code
        self.failure_scope = fault.failure_scope


def _is_refusal(status: int) -> bool:
    """Whether an answer outside 2xx says that nothing was done. Whatever is no status of the sort says nothing."""
    return status in _MOVED or (status in _ERRORS and status not in _OF_NOBODY)


@attrs.frozen
class PollResult:
    """What an answer said of a task, and how long the provider wants to be left alone; None where it does not say."""

    take: TaskStatus
    poll_after_s: float | None = None


def build_print(key: str) -> str:
    """A fingerprint of a channel's key: a task is known to the key that began it."""
    return sha256(key.encode()).hexdigest()[:_PRINT_CHARS] if key else ""


def find_key(channel: Channel, key_print: str, other: str) -> str:
    """The key of that fingerprint, or where the channel has it no more the ``other``."""
    return next((key for key in channel.api_keys if build_print(key) == key_print), other)


class VideoProviderApi:
    """Asks providers.

    Args:
        upstream: the way out.
        fetcher: the guarded way to files.
        catalog: the channels.
        clock: Unix seconds.
    """

    def __init__(
        self, upstream: HttpClient, fetcher: Fetcher, catalog: ModelCatalog, *, clock: Callable[[], float]
    ) -> None:
        self._upstream = upstream
        self._fetcher = fetcher
        self._catalog = catalog
        self._clock = clock

    async def submit(self, attempt: Attempt, job: VideoJob, shot: VideoSpec, original: VideoJob | None) -> TaskStatus:
        """Have a job begun; once.

        Raises an ``ProviderError`` where the provider said no, or was never reached; ``SubmitOutcomeUnknown``.
        """
        maker = VIDEO_BACKENDS[attempt.option.endpoint.wire]
        way = attrs.evolve(attempt.way, mark=job.id)
        if original is not None:  # a task is known to the key that began it
            way = attrs.evolve(way, key=find_key(attempt.channel, original.key_print, way.key))
        plan = way.plan(self._prepare(maker, shot, original), self._now_s, once=True)
        try:
            reply = await self._upstream.send(plan)
        except ProviderError as fault:
            if fault.phase == "connect":
                raise
            raise SubmitOutcomeUnknown(fault) from fault
        try:
            if reply.status not in OK:
                refusal = await self._parse_refusal(reply, maker, attempt.channel)
                raise refusal if _is_refusal(reply.status) else SubmitOutcomeUnknown(refusal)
            try:
                raw = await reply.read(MAX_ANSWER_BYTES)
            except ProviderError as fault:
                raise SubmitOutcomeUnknown(fault) from fault
        finally:
            reply.close()
        try:
            return maker.parse_submitted(raw, attempt.channel.secrets)
        except ProviderError as fault:
            if fault.declined:
                raise
            raise SubmitOutcomeUnknown(fault) from fault

    @staticmethod
    def _prepare(maker: VideoBackend, shot: VideoSpec, original: VideoJob | None) -> ProviderCall:
        """The submit, or the remix. Raises ``UnsupportedByProvider``."""
        try:
            if original is None:
                return maker.submit(shot)
            ask = maker.remix(_name_task(original), shot)
        except InvalidRequest as refused:
            raise UnsupportedByProvider(refused.message, param=refused.param) from None
        if ask is None:
            raise UnsupportedByProvider("The provider cannot make a video anew by another prompt", param="video_id")
        return ask

    def find_way(self, job: VideoJob) -> Way | None:
        """The way to a job's task; None where its channel is no more, or leads to another vendor."""
        channel = next((one for one in self._catalog.channels if one.name == job.channel), None)
        if channel is None or channel.provider != job.provider:
            return None
        endpoints = [one for one in PROVIDERS[channel.provider].endpoints if one.wire == job.wire]
        endpoint = next(
            (one for one in endpoints if one.takes(job.upstream_model)), endpoints[0] if endpoints else None
        )
        if endpoint is None:
            return None
        key = find_key(channel, job.key_print, next(iter(channel.api_keys), ""))
        return Way(channel, endpoint, job.upstream_model, key, job.id)

    async def poll(self, way: Way, job: VideoJob) -> PollResult:
        """Ask after a task. Raises an ``ProviderError``: then nothing is known of it."""
        maker = VIDEO_BACKENDS[job.wire]
        raw, poll_after_s = await self._ask(way, maker, maker.poll(_name_task(job)))
        return PollResult(maker.parse_polled(raw, way.channel.secrets), poll_after_s)

    async def cancel(self, way: Way, job: VideoJob) -> bool:
        """Have a task stopped, if the provider offers that; whether it was. Never raises for what it says."""
        return await self._say(way, job, VIDEO_BACKENDS[job.wire].cancel(_name_task(job)))

    async def delete(self, way: Way, job: VideoJob) -> bool:
        """Have a task forgotten, if the provider offers that; whether it was. Never raises for what it says."""
        return await self._say(way, job, VIDEO_BACKENDS[job.wire].delete(_name_task(job)))

    async def open(self, way: Way, job: VideoJob, variant: Variant, wanted: str | None = None) -> FetchedFile | None:
        """The file of a completed task, at its headers; None where the provider has no such variant.

        Raises ``ProviderContentGone``, or another ``ProviderError``.
        """
        maker = VIDEO_BACKENDS[job.wire]
        found = maker.find_content(_name_task(job), variant)
        if isinstance(found, ProviderCall):
            found = maker.read_content(await self._ask_place(way, maker, found), way.channel.secrets)
        return None if found is None else await self._fetcher.open(self._locate(way, found, wanted))

    async def _ask_place(self, way: Way, maker: VideoBackend, ask: ProviderCall) -> bytes:
        """Raises as ``open`` does: that the provider refuses to say is no mistake of whoever wants the file."""
        try:
            return (await self._ask(way, maker, ask))[0]
        except ProviderRejected as refused:
            kind = ProviderContentGone if refused.status in _GONE else ProviderBadResponse
            raise kind(f"The provider does not say where the video is: {refused.message}") from refused

    async def open_anew(
        self, way: Way, job: VideoJob, variant: Variant, wanted: str | None = None
    ) -> FetchedFile | None:
        """The same, by an address that is fresh: those that were given once expire."""
        try:
            return await self.open(way, job, variant, wanted)
        except (ProviderContentGone, ProviderBadResponse):
            clue = await self._find_clue(way, job)
            if clue is None or clue == job.clue:
                raise
            return await self.open(way, attrs.evolve(job, clue=clue), variant, wanted)

    async def _find_clue(self, way: Way, job: VideoJob) -> str | None:
        """Where its provider says now that a video is; None where it says nothing of it, or nothing at all."""
        try:
            return (await self.poll(way, job)).take.clue
        except ProviderError:
            return None

    def _locate(self, way: Way, place: ContentLocation, wanted: str | None) -> FileRequest:
        channel = way.channel
        plan = way.plan(ProviderCall(method="GET", path=place.path), self._now_s)
        signature = tuple((name, value) for name, value in plan.headers.items() if name not in _NOT_SIGNED)
        return FileRequest(
            place.url or plan.url,
            trusted_origin=channel.base_url,
            proxy=channel.proxy,
            signature=signature if place.signed else (),
            wanted=wanted,
        )

    async def _say(self, way: Way, job: VideoJob, ask: ProviderCall | None) -> bool:
        if ask is None:
            return False
        try:
            await self._ask(way, VIDEO_BACKENDS[job.wire], ask)
        except GatewayError as fault:
            log.warning("task_not_dropped", video_id=job.id, channel=job.channel, error=fault.message)
            return False
        return True

    async def _ask(self, way: Way, maker: VideoBackend, ask: ProviderCall) -> tuple[bytes, float | None]:
        """A good answer's body, and its hint. Raises an ``ProviderError``."""
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                reply = await self._upstream.send(way.plan(ask, self._now_s))
                try:
                    if reply.status in OK:
                        return await reply.read(MAX_ANSWER_BYTES), self._parse_hint(reply)
                    raise await self._parse_refusal(reply, maker, way.channel)
                finally:
                    reply.close()
        except TimeoutError:
            raise ProviderTimeout("The provider took too long to answer", phase="headers") from None

    async def _parse_refusal(self, reply: HttpResponse, maker: VideoBackend, channel: Channel) -> ProviderError:
        """The fault of an answer outside 2xx, whether or not the whole of it can be read."""
        provider_retry_after_s = parse_retry_after(reply.headers.get("Retry-After"), self._clock())
        try:
            raw = await reply.read(MAX_ERROR_BYTES)
        except ProviderError:
            raw = b""
        return maker.parse_refused(reply.status, raw, channel.secrets, provider_retry_after_s=provider_retry_after_s)

    def _parse_hint(self, reply: HttpResponse) -> float | None:
        later = reply.headers.get(_LATER, "")
        if later.isascii() and later.isdigit() and len(later) < _PRINT_CHARS:
            poll_after_s: float | None = int(later) / 1000
        else:
            poll_after_s = parse_retry_after(reply.headers.get("Retry-After"), self._clock())
        return None if poll_after_s is None else min(max(poll_after_s, SHORTEST_HINT_S), LONGEST_HINT_S)

    @property
    def _now_s(self) -> int:
        return int(self._clock())


_NOT_SIGNED = frozenset({"Content-Type", "Accept", "Accept-Encoding"})


def _name_task(job: VideoJob) -> ProviderTask:
    return ProviderTask(job.upstream_id or "", job.upstream_model, job.clue)
