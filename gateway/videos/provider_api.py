"""Requests to providers about video jobs: submit, poll, cancel, delete, and open the file."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from hashlib import sha256

import attrs
import structlog

from gateway.domain.channel import Channel
from gateway.domain.video import MAX_HINT_S, MIN_HINT_S, VideoJob
from gateway.errors import (
    GatewayError,
    InvalidRequest,
    ProviderAnswerUnusable,
    ProviderBadResponse,
    ProviderContentGone,
    ProviderError,
    ProviderRejected,
    ProviderTimeout,
    UnsupportedByProvider,
)
from gateway.formats.errors.openai import parse_retry_after
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.stream import check_parts
from gateway.formats.videos.backend import ContentLocation, ProviderTask, TaskStatus, Variant, VideoBackend, VideoSpec
from gateway.formats.videos.backends import VIDEO_BACKENDS
from gateway.frozen import frozen
from gateway.large_work import run_in_thread
from gateway.providers.registry import PROVIDERS
from gateway.proxy.forward import MAX_ERROR_BYTES, OK_STATUSES
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.target import Attempt, ProviderAccess
from gateway.upstream.interface import FetchedFile, FileRequest, HttpClient, HttpResponse
from gateway.upstream.safe_fetch import SafeFetcher
from gateway.videos.inline_file import InlineFile

MAX_ANSWER_BYTES = 256 * 1024
"""Maximum size of an answer about a task, which is read whole."""
MAX_INLINE_BYTES = 100 * 1024 * 1024
"""Maximum size of an answer that contains the video."""
MAX_INLINE_VIDEOS = 2
"""Concurrent answers with a video in memory; polls and file reads have one such limit each."""
POLL_TIMEOUT_S = 30.0
INLINE_TIMEOUT_S = 120.0
_KEY_PRINT_CHARS = 12
_PROXY_STATUSES = frozenset({408, 502, 504, *range(520, 528)})
"""Statuses that proxies in front of the provider send, too. They leave open whether the provider received the
request."""
_REDIRECT_STATUSES = frozenset({301, 302, 307, 308})
_ERROR_STATUSES = range(400, 600)
_GONE_STATUSES = frozenset({404, 410})
_POLL_HINT_HEADER = "openai-poll-after-ms"

log = structlog.stdlib.get_logger(__name__)


def must_fetch(wire: str) -> bool:
    """Return whether the gateway must fetch reference images itself, because the provider fetches no URLs."""
    return not VIDEO_BACKENDS[wire].takes_urls


class SubmitOutcomeUnknown(ProviderError):
    """A submit with an unknown outcome: the provider may have accepted it, so the request must not be repeated."""

    retryable = False

    def __init__(self, error: ProviderError) -> None:
        super().__init__(
            f"{error.message}; whether the job was begun is not known", phase=error.phase, should_retry=False
        )
        if error.status in _PROXY_STATUSES:  # unlike a 503, this must not look like a refusal
            self.status, self.public_code = error.status, error.public_code
        self.failure_scope = error.failure_scope


def _is_refusal(status: int) -> bool:
    """Return whether a status outside 2xx means that the provider has not acted. False for invalid statuses."""
    return status in _REDIRECT_STATUSES or (status in _ERROR_STATUSES and status not in _PROXY_STATUSES)


@frozen
class PollResult:
    """The reported state of a task.

    Attributes:
        poll_after_s: the provider's hint for the next poll; None without a hint.
    """

    status: TaskStatus
    poll_after_s: float | None = None


def fingerprint_key(key: str) -> str:
    """Return a fingerprint of a channel's key, empty without a key. Providers find a task only with its key."""
    return sha256(key.encode()).hexdigest()[:_KEY_PRINT_CHARS] if key else ""


def find_key(channel: Channel, key_print: str, default_key: str) -> str:
    """Return the channel's key with that fingerprint, or ``default_key`` if there is none."""
    return next((key for key in channel.api_keys if fingerprint_key(key) == key_print), default_key)


class VideoProviderApi:
    """Client for the providers' video APIs."""

    def __init__(
        self, upstream: HttpClient, fetcher: SafeFetcher, catalog: ModelCatalog, *, clock: Callable[[], float]
    ) -> None:
        self._upstream = upstream
        self._fetcher = fetcher
        self._catalog = catalog
        self._clock = clock
        self._poll_slots = asyncio.Semaphore(MAX_INLINE_VIDEOS)
        self._open_slots = asyncio.Semaphore(
            MAX_INLINE_VIDEOS
        )  # separate: clients that read slowly must not block polls

    async def submit(self, attempt: Attempt, job: VideoJob, spec: VideoSpec, source_job: VideoJob | None) -> TaskStatus:
        """Ask the provider, once, to start a job; return the status of its task.

        Raises ``SubmitOutcomeUnknown`` if the provider may have started the job, and another ``ProviderError`` if it
        refused or was not reached.
        """
        backend = VIDEO_BACKENDS[attempt.target.endpoint.wire]
        access = attrs.evolve(attempt.access, mark=job.id)
        if source_job is not None:  # a provider finds a task only with the key that created it
            access = attrs.evolve(access, key=find_key(attempt.channel, source_job.key_print, access.key))
        http_request = access.build_request(self._prepare(backend, spec, source_job), self._now_s, once=True)
        try:
            response = await self._upstream.send(http_request)
        except ProviderError as fault:
            if fault.phase == "connect":
                raise
            raise SubmitOutcomeUnknown(fault) from fault
        try:
            if response.status not in OK_STATUSES:
                refusal = await self._parse_refusal(response, backend, attempt.channel)
                raise refusal if _is_refusal(response.status) else SubmitOutcomeUnknown(refusal)
            try:
                raw = await response.read(MAX_ANSWER_BYTES)
            except ProviderError as fault:
                raise SubmitOutcomeUnknown(fault) from fault
        finally:
            response.close()
        try:
            return backend.parse_submit_answer(raw, attempt.channel.secrets)
        except ProviderError as fault:
            if fault.declined:
                raise
            raise SubmitOutcomeUnknown(fault) from fault

    @staticmethod
    def _prepare(backend: VideoBackend, spec: VideoSpec, source_job: VideoJob | None) -> ProviderRequest:
        try:
            if source_job is None:
                return backend.submit(spec)
            provider_request = backend.remix(_build_task(source_job), spec)
        except InvalidRequest as error:
            raise UnsupportedByProvider(error.message, param=error.param) from None
        if provider_request is None:
            raise UnsupportedByProvider("The provider cannot remix a video with another prompt", param="video_id")
        return provider_request

    def find_access(self, job: VideoJob) -> ProviderAccess | None:
        """Return the access to a job's task.

        None if its channel is gone or now belongs to another provider, or if the provider no longer has the API format.
        """
        channel = next((candidate for candidate in self._catalog.channels if candidate.name == job.channel), None)
        if channel is None or channel.provider != job.provider:
            return None
        endpoints = [candidate for candidate in PROVIDERS[channel.provider].endpoints if candidate.wire == job.wire]
        endpoint = next(
            (candidate for candidate in endpoints if candidate.serves(job.upstream_model)),
            endpoints[0] if endpoints else None,
        )
        if endpoint is None:
            return None
        key = find_key(channel, job.key_print, next(iter(channel.usable_keys), ""))
        return ProviderAccess(channel, endpoint, job.upstream_model, key, job.id)

    async def poll(self, access: ProviderAccess, job: VideoJob) -> PollResult:
        backend = VIDEO_BACKENDS[job.wire]
        slot: AbstractAsyncContextManager[None] = self._poll_slots if backend.inline_videos else nullcontext()
        async with slot:
            raw, poll_after_s = await self._ask(access, backend, backend.poll(_build_task(job)))
            with _reading_answer():
                if len(raw) > MAX_ANSWER_BYTES:
                    return PollResult(
                        await run_in_thread(backend.parse_poll_answer, raw, access.channel.secrets), poll_after_s
                    )
                return PollResult(backend.parse_poll_answer(raw, access.channel.secrets), poll_after_s)

    async def cancel(self, access: ProviderAccess, job: VideoJob) -> bool:
        """Ask the provider to stop a task; return whether it did. False after an error, which is logged."""
        return await self._ask_quietly(access, job, VIDEO_BACKENDS[job.wire].cancel(_build_task(job)))

    async def delete(self, access: ProviderAccess, job: VideoJob) -> bool:
        """Ask the provider to delete a task; return whether it did. False after an error, which is logged."""
        return await self._ask_quietly(access, job, VIDEO_BACKENDS[job.wire].delete(_build_task(job)))

    async def open(
        self, access: ProviderAccess, job: VideoJob, variant: Variant, byte_range: str | None = None
    ) -> FetchedFile | None:
        """Open the file of a completed task, and read its headers; None if the provider has no such variant.

        Raises ``ProviderContentGone`` if the file is gone, ``ProviderAnswerUnusable`` if the answer does not contain
        the file's location, else ``ProviderError``.
        """
        backend = VIDEO_BACKENDS[job.wire]
        location = backend.find_content(_build_task(job), variant)
        if isinstance(location, ProviderRequest):
            if backend.inline_videos:
                return await self._open_inline(access, backend, location)
            raw = await self._ask_location(access, backend, location)
            with _reading_answer():
                location = backend.parse_content_location(raw, access.channel.secrets)
        return None if location is None else await self._fetcher.open(self._locate(access, location, byte_range))

    async def _open_inline(
        self, access: ProviderAccess, backend: VideoBackend, provider_request: ProviderRequest
    ) -> InlineFile:
        """Return the video inside the answer to ``provider_request``. The file occupies a memory slot until closed."""
        await self._open_slots.acquire()
        file: InlineFile | None = None
        try:
            raw = await self._ask_location(access, backend, provider_request)
            with _reading_answer():
                file = InlineFile(await run_in_thread(backend.read_video, raw), self._open_slots.release)
        finally:
            if file is None:
                self._open_slots.release()
        return file

    async def _ask_location(
        self, access: ProviderAccess, backend: VideoBackend, provider_request: ProviderRequest
    ) -> bytes:
        """Return the answer with the file's address, or with the video itself.

        Raises ``ProviderContentGone`` or another ``ProviderError``. A rejection is no error of the client, which did
        not send this request.
        """
        try:
            return (await self._ask(access, backend, provider_request))[0]
        except ProviderRejected as error:
            kind = ProviderContentGone if error.status in _GONE_STATUSES else ProviderBadResponse
            raise kind(f"The provider does not say where the video is: {error.message}") from error

    async def open_with_retry(
        self, access: ProviderAccess, job: VideoJob, variant: Variant, byte_range: str | None = None
    ) -> FetchedFile | None:
        """Open the file like ``open``, and retry once with a new address, because providers' addresses expire.

        Returns None if the provider has no such variant.
        """
        try:
            return await self.open(access, job, variant, byte_range)
        except (ProviderContentGone, ProviderBadResponse):
            content_ref = await self._find_content_ref(access, job)
            if content_ref is None or content_ref == job.clue:
                raise
            return await self.open(access, attrs.evolve(job, clue=content_ref), variant, byte_range)

    async def _find_content_ref(self, access: ProviderAccess, job: VideoJob) -> str | None:
        """Return the provider's current reference to the content; None without one, or after an error."""
        try:
            return (await self.poll(access, job)).status.clue
        except ProviderError:
            return None

    def _locate(self, access: ProviderAccess, location: ContentLocation, byte_range: str | None) -> FileRequest:
        channel = access.channel
        http_request = access.build_request(ProviderRequest(method="GET", path=location.path), self._now_s)
        signature = tuple(
            (name, value) for name, value in http_request.headers.items() if name not in _UNSIGNED_HEADERS
        )
        return FileRequest(
            location.url or http_request.url,
            trusted_origin=channel.base_url,
            proxy=channel.proxy,
            signature=signature if location.is_signed else (),
            byte_range=byte_range,
        )

    async def _ask_quietly(
        self, access: ProviderAccess, job: VideoJob, provider_request: ProviderRequest | None
    ) -> bool:
        if provider_request is None:
            return False
        try:
            await self._ask(access, VIDEO_BACKENDS[job.wire], provider_request)
        except GatewayError as fault:
            log.warning("provider_task_not_cancelled", video_id=job.id, channel=job.channel, error=fault.message)
            return False
        return True

    async def _ask(
        self, access: ProviderAccess, backend: VideoBackend, provider_request: ProviderRequest
    ) -> tuple[bytes, float | None]:
        """Return the body of a 2xx answer, and the provider's poll hint in seconds or None.

        Raises ``ProviderError``.
        """
        inline = backend.inline_videos
        try:
            async with asyncio.timeout(INLINE_TIMEOUT_S if inline else POLL_TIMEOUT_S):
                response = await self._upstream.send(access.build_request(provider_request, self._now_s))
                try:
                    if response.status in OK_STATUSES:
                        limit = MAX_INLINE_BYTES if inline else MAX_ANSWER_BYTES
                        raw = await response.read(limit)
                        check_parts(raw)
                        return raw, self._parse_hint(response)
                    raise await self._parse_refusal(response, backend, access.channel)
                finally:
                    response.close()
        except TimeoutError:
            raise ProviderTimeout("The provider took too long to answer", phase="headers") from None

    async def _parse_refusal(self, response: HttpResponse, backend: VideoBackend, channel: Channel) -> ProviderError:
        provider_retry_after_s = parse_retry_after(response.headers.get("Retry-After"), self._clock())
        try:
            raw = await response.read(MAX_ERROR_BYTES)
        except ProviderError:
            raw = b""
        return backend.parse_error_answer(
            response.status, raw, channel.secrets, provider_retry_after_s=provider_retry_after_s
        )

    def _parse_hint(self, response: HttpResponse) -> float | None:
        hint = response.headers.get(_POLL_HINT_HEADER, "")
        if hint.isascii() and hint.isdigit() and len(hint) < _KEY_PRINT_CHARS:
            poll_after_s: float | None = int(hint) / 1000
        else:
            poll_after_s = parse_retry_after(response.headers.get("Retry-After"), self._clock())
        return None if poll_after_s is None else min(max(poll_after_s, MIN_HINT_S), MAX_HINT_S)

    @property
    def _now_s(self) -> int:
        return int(self._clock())


@contextmanager
def _reading_answer() -> Iterator[None]:
    """Raise ``ProviderAnswerUnusable`` for a complete answer that a backend cannot parse."""
    try:
        yield
    except ProviderBadResponse as error:
        raise ProviderAnswerUnusable(error.message) from error


_UNSIGNED_HEADERS = frozenset({"Content-Type", "Accept", "Accept-Encoding"})


def _build_task(job: VideoJob) -> ProviderTask:
    return ProviderTask(job.upstream_id or "", job.upstream_model, job.clue)
