"""Records the provider's answer to a request, to keep it and to give it to those who wait for it."""

import asyncio
from hashlib import sha256

from gateway.config.cache_schema import CacheSection
from gateway.domain.attribution import FORGOTTEN_PREFIX
from gateway.domain.cached_answer import CACHE_HEADER, CachedAnswer
from gateway.domain.request_log import Outcome, format_adapted_fields
from gateway.formats.wire.sse import SseSplitter, parse_data
from gateway.frozen import frozen
from gateway.proxy.answer_flights import CachedAnswers, Flight
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.copying_stream import CopyingStream
from gateway.request_context import RequestContext
from gateway.routing.target import Target
from gateway.server.context import Services

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""A larger answer is not kept, and not given to those who wait for it."""
MAX_STALL_S = 1.0
"""How long a client that reads slowly may hold up those who wait for the same answer."""
MAX_RECORDED_BYTES = 64 * 1024 * 1024
"""Maximum size of all answers that are being recorded, together. An answer beyond that is not kept."""


@frozen
class CachePlan:
    """How a request uses the cache.

    Attributes:
        ttl_s: for how long its answer is kept.
        max_age_s: the highest age of an answer that it gets.
    """

    digest: str
    form: str
    ttl_s: int
    max_age_s: int
    rules: CacheSection


def compute_source(target: Target) -> str:
    """Return the digest of an answer's origin: the model, the route's step, and what of the channel changes answers."""
    channel, place = target.channel, target.place
    origin = (
        (channel.name, channel.id, channel.provider, channel.base_url, channel.headers, channel.allow_fields),
        (target.model, target.endpoint.wire, target.endpoint.path, target.left_out_tools),
        None if place is None else (place.route, place.step, place.model),
    )
    return sha256(repr(origin).encode()).hexdigest()


class AnswerRecorder:
    """Takes the provider's answer to a request, to keep it and to give it to those who wait for it.

    Args:
        flight: the requests that wait for the answer; None if they wait for the answer to another request.

    Attributes:
        is_whole: whether the request has completed: then the answer is whole once it has been sent.
    """

    __slots__ = ("_answers", "_ctx", "_flight", "_is_unwanted", "_media_type", "_pieces", "_plan", "_services",
                 "_size", "is_whole")  # fmt: skip

    def __init__(
        self, ctx: RequestContext, services: Services, answers: CachedAnswers, plan: CachePlan, flight: Flight | None
    ) -> None:
        self._ctx = ctx
        self._services = services
        self._answers = answers
        self._plan = plan
        self._flight = flight
        self._media_type = ""
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_unwanted = False
        self.is_whole = False

    @property
    def is_awaited(self) -> bool:
        """Whether others wait for the answer: then it is read to its end although the client has left."""
        return self._flight is not None and self._flight.waiting > 0

    def note_answer(self, body: bytes, media_type: str) -> None:
        """Take a complete answer, once its request is settled."""
        self._media_type = media_type
        self._deliver(body)

    def wrap(self, client_stream: ClientStream) -> "SharedAnswerStream":
        """Return a client stream whose data are recorded, too."""
        return SharedAnswerStream(client_stream, self)

    def begin_stream(self, media_type: str) -> None:
        self._media_type = media_type

    def add(self, data: bytes) -> None:
        """Take a piece of a stream. Drop the answer if it gets too large, or the answers being recorded do together."""
        if self._is_unwanted:
            return
        self._size += len(data)
        self._answers.recorded_bytes += len(data)
        if self._size > MAX_ANSWER_BYTES or self._answers.recorded_bytes > MAX_RECORDED_BYTES:
            self._drop()
        elif data.startswith(b":") and self._media_type.startswith("text/"):
            self._pieces += _list_events(data)
        else:
            self._pieces.append(data)

    def end_stream(self) -> None:
        """Keep the recorded stream if it is whole. Call this after its last piece, once the request is settled."""
        if not self._is_unwanted:
            self._deliver(b"".join(self._pieces))

    def drop_bodies_of(self, end_user: str) -> None:
        """Keep nothing if the request now has the end user ``end_user``, the new name of a user who was forgotten."""
        if self._ctx.attribution.end_user == end_user:
            self._drop()

    def note_outcome(self, outcome: Outcome) -> None:
        """Note how the request ends, before its answer or its end is sent. A failed request loses its cache header."""
        self.is_whole = outcome == "completed"
        if not self.is_whole:
            headers = self._ctx.headers or {}
            self._ctx.headers = {name: value for name, value in headers.items() if name != CACHE_HEADER}

    def stop_waiting(self) -> None:
        """Let those who wait ask a provider themselves. The answer is kept nevertheless."""
        if self._flight is not None:
            self._flight.end(None)

    def close(self) -> None:
        self._answers.recorded_bytes -= self._size
        self._size = 0
        self._pieces.clear()
        self.stop_waiting()  # unless they have the answer

    def _drop(self) -> None:
        """Discard the answer, and record no more of it. Requests that wait for it ask a provider at once."""
        self._is_unwanted = True
        self.close()

    def _deliver(self, body: bytes) -> None:
        if not self.is_whole or self._is_unwanted or len(body) > MAX_ANSWER_BYTES or not self._may_keep():
            return
        answer = self._build_answer(body)
        self._answers.store.put(answer)
        if self._flight is not None:
            self._flight.end(answer)

    def _may_keep(self) -> bool:
        """Return whether other requests may get the answer.

        They may not if no provider was asked, if its user was forgotten, if its account is gone, if a later request may
        name a part of it at the provider, or if it came from a route after a failed attempt or a passed step.
        """
        ctx, services = self._ctx, self._services
        user, account_id = ctx.attribution.end_user, ctx.caller.account.id
        if user.startswith(FORGOTTEN_PREFIX) or self._answers.was_forgotten(account_id, user, ctx.started_at):
            return False  # no later deletion would find it
        if not ctx.attempts or ctx.inference.made or not services.auth.api_keys.has_account(account_id):
            return False
        was_first = len(ctx.attempts) == 1 and not ctx.target_list.passed
        return ctx.attempts[-1].target.place is None or was_first  # a later step of a route is a makeshift

    def _build_answer(self, body: bytes) -> CachedAnswer:
        ctx, plan, attempt = self._ctx, self._plan, self._ctx.attempts[-1]
        now_ms = int(self._services.clock() * 1000)
        return CachedAnswer(
            digest=plan.digest,
            form=plan.form,
            media_type=self._media_type,
            body=body,
            usage=ctx.usage,
            answered=attempt.answered,
            source=compute_source(attempt.target),
            adapted=format_adapted_fields(attempt.translator.adapted),
            account_id=ctx.caller.account.id,
            key_id=ctx.caller.key.id,
            end_user=ctx.attribution.end_user,
            stored_ms=now_ms,
            expires_ms=now_ms + plan.ttl_s * 1000,
        )


def _list_events(data: bytes) -> list[bytes]:
    """Return the events in a piece of a stream, without the comments that keep a connection alive.

    The last item is what follows the last whole event; it may be empty.
    """
    splitter = SseSplitter()
    events = [event for event in splitter.split(data) if not event.startswith(b":") or parse_data(event) is not None]
    return [*events, splitter.take()]


class SharedAnswerStream(CopyingStream):
    """Sends to another client stream, and records what is sent."""

    __slots__ = ("_recorder", "_stalled_s")

    def __init__(self, stream: ClientStream, recorder: AnswerRecorder) -> None:
        super().__init__(stream, recorder)
        self._recorder = recorder
        self._stalled_s = 0.0

    async def drain(self) -> None:
        """Wait for the client. If it has stalled the stream for ``MAX_STALL_S`` in all, others do not wait any more."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        timer = loop.call_later(max(MAX_STALL_S - self._stalled_s, 0), self._recorder.stop_waiting)
        try:
            await super().drain()
        finally:
            timer.cancel()
            self._stalled_s += loop.time() - started_at

    async def finish(self, data: bytes) -> None:
        if data:
            self._recorder.add(data)
        self._recorder.end_stream()  # before the client reads the end: others do not wait for it
        await self._stream.finish(data)
