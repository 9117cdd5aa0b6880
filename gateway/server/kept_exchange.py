"""The bodies of one request while it runs: what arrived, what the client was sent, what failed attempts got.

The bytes are those that the gateway holds anyway. They are redacted and written later, in the thread of the store.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Protocol, get_args

import orjson

from gateway.deferred import load
from gateway.domain import exact_json
from gateway.domain.keep_rule import KEEP_HEADER, RedactedKind, find_share
from gateway.domain.keep_wish import KeepWish, parse_keep_wish
from gateway.domain.kept_body import BodyKind, BodyOwner, BodyPart, LossReason
from gateway.domain.operation import OPERATIONS
from gateway.domain.request_log import NON_FAILURES
from gateway.errors import GatewayError
from gateway.formats.errors.body import build_error
from gateway.formats.redaction.body import EVENT_STREAM, redact_part
from gateway.formats.redaction.event_texts import split_events
from gateway.formats.redaction.own_patterns import parse_pattern
from gateway.formats.redaction.redactor import Redactor
from gateway.formats.wire.form import ReceivedForm
from gateway.frozen import frozen
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.copying_stream import CopyingStream
from gateway.request_context import RequestContext

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

    from gateway.config.bodies_schema import BodiesSection
    from gateway.config.reload import LiveConfig
    from gateway.routing.target import Attempt
    from gateway.server.context import AuthServices
    from gateway.storage.bodies.body_store import BodyStore

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Maximum size of a body before redaction. A larger one is lost: a cut could leave a part of a secret in it."""
JSON = "application/json"
KINDS: tuple[BodyKind, ...] = get_args(BodyKind)
_TEXT_TYPES = (JSON, "text/")
_SESSION_COLLECTOR = "server.kept_session:KeptSession"


class KeepingServices(Protocol):
    """The services that a collector of bodies needs, a part of ``Services``."""

    @property
    def open_bodies(self) -> "Callable[[], BodyStore]": ...

    @property
    def auth(self) -> "AuthServices": ...

    @property
    def live_config(self) -> "LiveConfig": ...


@frozen
class SentAnswer:
    """What the client was sent. All times are monotonic seconds; ``times`` has those of the pieces of a stream."""

    media_type: str
    pieces: Sequence[bytes]
    times: Sequence[float]
    started_at: float


class KeptExchange:
    """Collects the bodies of a request. Implements ``proxy.body_collector.BodyCollector``.

    Args:
        only_failed: keep them only if the request or one of its attempts fails.

    Attributes:
        error: the error with which the request ended; None without one, and while the request runs.
        has_failure: whether a part of the request has failed, such as a response of a session.
        goes_on: whether the request has begun something that may fail later, such as a video.
        loss: why nothing is kept; None if something may be.
    """

    __slots__ = (
        "_answer", "_ctx", "_is_unwanted", "_media_type", "_memory", "_only_failed", "_request", "_services",
        "_size", "_size_limit", "_started_at", "_store", "_times", "error", "goes_on", "has_failure", "loss",
    )  # fmt: skip

    def __init__(self, ctx: RequestContext, services: KeepingServices, *, only_failed: bool) -> None:
        self._ctx = ctx
        self._services = services
        self._store = store = services.open_bodies()
        self._memory = store.memory
        store.open_requests[ctx.id] = self
        self._only_failed = only_failed
        self._started_at = monotonic()
        self._request = b""
        self._answer: list[bytes] = []
        self._times: list[float] = []
        self._media_type = ""
        self._size = 0
        self._size_limit = MAX_BODY_BYTES
        self._is_unwanted = False
        self.error: GatewayError | None = None
        self.has_failure = self.goes_on = False
        self.loss: LossReason | None = None

    def note_request(self, body: bytes | bytearray) -> None:
        """Take the request's body, unless there is one already."""
        if not self._request and self._take(len(body)):
            self._request = bytes(body)

    def note_form(self, form: ReceivedForm) -> None:
        """Take the fields of a form, as JSON; of its files only names, types and sizes."""
        fields: dict[str, list[str]] = {}
        for name, value in form.fields:
            fields.setdefault(name, []).append(value)
        for file in form.files:
            note = f"[file {file.filename}, {file.media_type}, {file.size:,} bytes]"
            fields.setdefault(file.field, []).append(note)
        self.note_request(exact_json.trim(orjson.dumps({name: _unpack(values) for name, values in fields.items()})))

    def note_answer(self, body: bytes, media_type: str) -> None:
        """Take a complete answer."""
        self._media_type = media_type
        if self._take(len(body)):
            self._answer.append(b"".join((body, b"")))  # ``exact_json.trim`` without its call

    def wrap(self, client_stream: ClientStream) -> CopyingStream:
        """Return a client stream that also collects what is sent."""
        return CopyingStream(client_stream, self)

    def begin_stream(self, media_type: str) -> None:
        self._media_type = media_type
        self._size_limit = self._size + MAX_BODY_BYTES

    def add(self, data: bytes) -> None:
        """Take a piece of a stream. If the stream gets too large, or memory for bodies is full, keep nothing."""
        size = len(data)
        self._size += size
        memory = self._memory
        memory.used += size
        if memory.used > memory.limit or self._size > self._size_limit or self.loss is not None:
            self._lose("memory" if memory.used > memory.limit else "size")
            return
        self._answer.append(data)
        self._times.append(monotonic())

    def drop_bodies_of(self, covers: Callable[[int, str], bool]) -> None:
        """Keep nothing if ``covers`` returns True for the account's id and the end user of the request."""
        if covers(self._ctx.caller.account.id, self._ctx.attribution.end_user):
            self._is_unwanted = True
            self._lose("memory")

    def close(self) -> None:
        """Hand the bodies over to the store, or drop them, and end the entry in ``open_requests``.

        Bodies are dropped if the key or the gateway keeps none any more, if they were deleted meanwhile, or if only
        failed requests are kept and this one neither failed nor began a job that may fail later.
        """
        try:
            self._hand_over()
        finally:
            self._store.open_requests.pop(self._ctx.id, None)

    def _hand_over(self) -> None:
        is_unwanted, is_held = self._is_unwanted, False
        if self._only_failed and not self._has_failed():
            is_unwanted, is_held = is_unwanted or not self.goes_on, True
        if self._ctx.record is None or is_unwanted or not self._is_still_allowed():
            self._release()
            return
        if self.loss is not None:
            self._store.note_loss(self._build_owner(), self.loss)
            return
        errors = self._list_errors()
        if not (errors or self._request or self.has_answer):
            self._release()
            return
        error_bytes = sum(len(part.content) for part in errors) if errors else 0
        self._memory.used += error_bytes
        self._store.keep(self._build_owner(), self._size + error_bytes, self._make_builder(errors), is_held=is_held)
        self._size = 0

    def _has_failed(self) -> bool:
        record = self._ctx.record
        has_failed = self.has_failure or any(attempt.failure is not None for attempt in self._ctx.attempts)
        return has_failed or (record is not None and record.outcome not in NON_FAILURES)

    def _is_still_allowed(self) -> bool:
        """Return whether bodies are kept by the current rule of the key, or else by that of the gateway.

        The rule may have changed while the request ran. A deleted key has the rule that it had before.
        """
        key = self._ctx.caller.key
        caller = self._services.auth.api_keys.find_caller(key.id)
        rule = (key if caller is None else caller.key).keep_bodies or self._services.live_config.keep_bodies
        return rule not in {None, "none"}

    def _make_builder(self, errors: Sequence[BodyPart]) -> Callable[[], list[BodyPart]]:
        """Return the function that builds all bodies in the thread: the loop creates as few objects as it can."""
        section = self._services.live_config.config.bodies
        attempts = self._ctx.attempts
        secrets = attempts[0].channel.secrets if len(attempts) == 1 else _list_secrets(attempts)
        return partial(_build_parts, section, secrets, self._request, errors, self._make_answer_builder())

    @property
    def has_answer(self) -> bool:
        """Whether the client was sent anything but an error."""
        return bool(self._answer)

    def _make_answer_builder(self) -> Callable[[], Sequence[BodyPart]]:
        """Return the function that builds the answer in the thread; it returns no body without an answer."""
        return partial(_build_answers, self._media_type, self._answer, self._times, self._started_at)

    def _list_errors(self) -> Sequence[BodyPart]:
        """Return the error that the client was sent instead of an answer, and those of providers."""
        ctx, errors = self._ctx, list[BodyPart]()
        if self.error is not None and not self.has_answer:
            answer = build_error(self.error, ctx.id, OPERATIONS[ctx.operation].api)
            errors.append(BodyPart("answer", answer, JSON, len(answer)))
        for attempt in ctx.attempts:
            if attempt.error_body:
                status = 0 if attempt.response is None else attempt.response.status
                size, name = len(attempt.error_body), attempt.channel.name
                errors.append(BodyPart("provider_error", attempt.error_body, JSON, size, name, status))
        return errors

    def _build_owner(self) -> BodyOwner:
        ctx = self._ctx
        attribution, caller = ctx.attribution, ctx.caller
        return BodyOwner(
            ctx.id, caller.account.id, caller.key.id, ctx.started_ms, attribution.end_user, attribution.session
        )

    def _take(self, size: int) -> bool:
        if self.loss is not None:
            return False
        self._size += size
        self._memory.used += size
        if self._memory.used > self._memory.limit:
            self._lose("memory")
        elif size > MAX_BODY_BYTES:
            self._lose("size")
        return self.loss is None

    def _lose(self, loss: LossReason) -> None:
        self.loss = self.loss or loss
        self._release()

    def _release(self) -> None:
        self._memory.used -= self._size
        self._size = 0
        self._request = b""
        self._answer.clear()
        self._times.clear()


def _unpack(values: Sequence[str]) -> str | Sequence[str]:
    return values[0] if len(values) == 1 else values


def _list_secrets(attempts: "Sequence[Attempt]") -> Sequence[str]:
    return [secret for attempt in attempts for secret in attempt.channel.secrets]


def _build_parts(
    section: "BodiesSection",
    secrets: Sequence[str],
    request: bytes,
    errors: Sequence[BodyPart],
    build_answers: Callable[[], Sequence[BodyPart]],
) -> list[BodyPart]:
    """Return the bodies of a request, redacted, in the order of ``KINDS``."""
    own_patterns = [parse_pattern(text) for text in section.patterns]
    kinds: frozenset[RedactedKind] = frozenset(section.redact)
    redactor = Redactor(kinds, secrets, own_patterns=own_patterns, left_out=section.leave_out)
    parts = [*build_answers(), *errors]
    if request:
        parts.append(BodyPart("request", request, JSON, len(request)))
    max_bytes = section.bounds().max_body_bytes
    return [
        redact_part(part, redactor, max_bytes, keeps_media=section.media)
        for part in sorted(parts, key=lambda part: KINDS.index(part.kind))
    ]


def _build_answers(
    media_type: str, pieces: Sequence[bytes], times: Sequence[float], started_at: float
) -> Sequence[BodyPart]:
    return [build_answer(SentAnswer(media_type, pieces, times, started_at))] if pieces else []


def build_answer(answer: SentAnswer) -> BodyPart:
    """Return the answer as a body; of sounds and images only their type and size."""
    content, media_type = b"".join(answer.pieces), answer.media_type
    if not media_type.startswith((*_TEXT_TYPES, EVENT_STREAM)):
        note = f"[media {media_type}, {len(content):,} bytes]".encode()
        return BodyPart("answer", note, media_type, len(content))
    times_ms = find_event_times(answer, content) if media_type.startswith(EVENT_STREAM) else ()
    return BodyPart("answer", content, media_type, len(content), event_times_ms=times_ms)


def find_event_times(answer: SentAnswer, content: bytes) -> tuple[int, ...]:
    """Return when each event of a stream was sent whole, in milliseconds after the request began."""
    times_ms, sent_bytes, event_end = [], 0, 0
    sent_pieces = zip(answer.pieces, answer.times, strict=False)
    sent_at = answer.started_at
    for event in split_events(content):
        event_end += len(event)
        while sent_bytes < event_end:
            piece, sent_at = next(sent_pieces)
            sent_bytes += len(piece)
        times_ms.append(int((sent_at - answer.started_at) * 1000))
    return tuple(times_ms)


def open_exchange(
    ctx: RequestContext, services: KeepingServices, headers: "CIMultiDictProxy[str]", rule: str
) -> KeptExchange | None:
    """Return the collector of a request's bodies under ``rule``; None if they are not kept."""
    wish: KeepWish = parse_keep_wish(headers.getall(KEEP_HEADER)) if KEEP_HEADER in headers else ""
    return open_for_wish(ctx, services, wish, rule)


def open_for_wish(ctx: RequestContext, services: KeepingServices, wish: KeepWish, rule: str) -> KeptExchange | None:
    """Return the collector of a request's bodies under ``rule``; None if they are not kept.

    A client may ask for its bodies not to be kept. If its key has a rule of its own, it may ask for them to be kept.
    """
    if rule == "none" or wish == "no":
        return None
    only_failed = False
    if rule != "all" and not (wish == "yes" and ctx.caller.key.keep_bodies is not None):
        share = find_share(rule)
        only_failed = rule == "errors"
        if rule == "on_request" or (share is not None and random.random() >= share):  # noqa: S311 - a sample
            return None
    collector = load(_SESSION_COLLECTOR) if ctx.operation == "realtime" else KeptExchange
    exchange: KeptExchange = collector(ctx, services, only_failed=only_failed)
    return exchange
