"""Fan-out: several requests to one channel for one client request with several choices (``n``).

The requests form one attempt with one reservation, one charge and one outcome: if one of them fails, all end. Each
request takes a place of the channel's ``max_concurrency``. Complete answers wait for a free place. Streams are merged,
so all have to run at the same time, even without a free place.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gateway.domain.usage import Usage
from gateway.errors import ProviderError, UnsupportedByProvider
from gateway.formats.chat.fan_out import MAX_REQUESTS, ChoiceMerger, add_parts, merge_answers
from gateway.formats.stream import JsonOrStream, StreamTransform, check_parts, is_json, strip_beginning
from gateway.routing.target import Attempt, Packed, pack
from gateway.upstream.interface import HttpResponse, PumpResult, Sink, read_pushed

MAX_HELD_BYTES = 64 * 1024
"""Limit of bytes buffered for the client; above it reading from the provider pauses."""
_NO_HEADERS: Mapping[str, str] = {}

Send = Callable[[Packed], Awaitable[HttpResponse]]
"""Sends the request once, and returns the response once its headers have arrived. Raises ``ProviderError``."""
T = TypeVar("T")


class MergedResponse:
    """The responses of one attempt as one ``HttpResponse``. ``gates``: the transform of each response's stream."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._replies: list[HttpResponse] = []
        self._merger = ChoiceMerger(attempt.requests)
        self._tasks: list[asyncio.Task[None]] = []
        self._begun: set[int] = set()
        self._ready: deque[bytes] = deque()
        self._held_bytes = 0
        self._running = attempt.requests
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        secrets = attempt.channel.secrets
        self.gates: list[StreamTransform] = [
            attempt.translator.open_transform(secrets) for _ in range(attempt.requests)
        ]

    @property
    def status(self) -> int:
        return 200

    @property
    def headers(self) -> Mapping[str, str]:
        return _NO_HEADERS

    def add(self, response: HttpResponse) -> None:
        """Add a response to merge. It is closed together with this object."""
        self._replies.append(response)

    async def read(self, limit: int) -> bytes:
        return await read_pushed(self, limit, None) or b""

    async def pump(self, sink: Sink) -> PumpResult:
        """Push arriving data to ``sink``. Raises the first error of a response, or the error passed to ``abort``."""
        if not self._tasks:
            self._tasks = [self._start(index, response) for index, response in enumerate(self._replies)]
        while True:
            while self._ready:
                data = self._ready.popleft()
                self._held_bytes -= len(data)
                if sink(data, None):
                    return PumpResult.PAUSED
            if self._error is not None:
                raise self._error
            if not self._running:
                return PumpResult.ENDED
            self._news.clear()
            self._room.set()
            await self._news.wait()

    def _start(self, index: int, response: HttpResponse) -> asyncio.Task[None]:
        task = asyncio.create_task(self._relay(index, response))
        task.add_done_callback(self._note_end)
        return task

    async def _relay(self, index: int, response: HttpResponse) -> None:
        result = PumpResult.PAUSED
        while result is PumpResult.PAUSED and not self.gates[index].closed:
            while self._held_bytes > MAX_HELD_BYTES:
                self._room.clear()
                await self._room.wait()
            result = await response.pump(partial(self._receive, index))
        self._end(index, whole=result is PumpResult.ENDED)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._running -= 1
        if not task.cancelled():
            self._error = self._error or task.exception()
        self._news.set()

    def _end(self, index: int, *, whole: bool) -> None:
        """Finish one stream; ``whole`` says that it was read to its end. Raises the error that the stream reported."""
        transform = self.gates[index]
        if transform.error is not None:
            raise transform.error
        if whole:
            self._queue_output(self._merger.feed(index, transform.finish()))
        self._queue_output(self._merger.end())

    def _receive(self, index: int, data: bytes, _raw_chunks: bytes | None) -> bool:
        transform = self.gates[index]
        if index not in self._begun and (stripped_data := strip_beginning(data)):
            self._begun.add(index)
            if is_json(stripped_data):  # the provider does not stream
                build, secrets = self._attempt.translator.build_whole, self._attempt.channel.secrets
                transform = self.gates[index] = JsonOrStream(lambda raw: build(raw, secrets))
        self._queue_output(self._merger.feed(index, transform.feed(data)))
        return transform.closed or self._held_bytes > MAX_HELD_BYTES

    def _queue_output(self, data: bytes) -> None:
        if data:
            self._ready.append(data)
            self._held_bytes += len(data)
            self._news.set()

    def abort(self, error: ProviderError) -> None:
        self._error = error
        for response in self._replies:
            response.abort(error)
        self._news.set()

    def finish(self) -> None:
        for response in self._replies:
            response.finish()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for response in self._replies:
            response.close()


async def open_merged_response(attempt: Attempt, send: Send) -> MergedResponse:
    """Send the requests of an attempt, and return the merged response. Raises ``ProviderError``."""
    response = attempt.response = MergedResponse(attempt)
    packed = await _pack(attempt)
    await attempt.slot.widen(attempt.requests - 1)

    async def open_one() -> None:
        response.add(await send(packed))

    await _run_all([open_one() for _ in range(attempt.requests)])
    return response


async def fetch_merged_answer(attempt: Attempt, send: Send, limit: int) -> tuple[bytes, Usage]:
    """Send the requests of an attempt; return the merged answer and its usage. ``limit`` is in bytes per answer.

    Raises ``ProviderError``.
    """
    merged = attempt.response = MergedResponse(attempt)
    packed, translator, secrets = await _pack(attempt), attempt.translator, attempt.channel.secrets
    places = asyncio.Semaphore(1 + await attempt.slot.widen(attempt.requests - 1))

    async def fetch_one() -> tuple[bytes, Usage]:
        async with places:
            response = await send(packed)
            merged.add(response)
            raw = await response.read(limit)
            check_parts(raw)
            return translator.parse_answer(raw, secrets)

    answers = await _run_all([fetch_one() for _ in range(attempt.requests)])
    return merge_answers([body for body, _ in answers]), add_parts(
        (usage for _, usage in answers), translator.inference
    )


async def _pack(attempt: Attempt) -> Packed:
    if attempt.requests > MAX_REQUESTS:
        raise UnsupportedByProvider(f"'n' must be at most {MAX_REQUESTS} with this provider", param="n")
    translator, target = attempt.translator, attempt.target
    if translator.inference.large:
        return await attempt.pack_aside()
    return pack(attempt.build_body, target.endpoint, target.model, translator.identity.id, translator)


async def _run_all(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``works`` concurrently, and return their results. If one fails, cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
