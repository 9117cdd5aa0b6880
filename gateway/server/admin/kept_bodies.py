"""Admin API: kept bodies of requests. Each look at bodies is in the audit log."""

from collections.abc import Sequence

import attrs
import orjson

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.attribution import build_stored_user
from gateway.domain.kept_body import BodyKind, BodyPart, LossReason
from gateway.domain.request_log import ID_PREFIX, RequestRecord
from gateway.errors import NotFound, StoreUnavailable
from gateway.formats.redaction.body import EVENT_STREAM
from gateway.formats.redaction.event_texts import describe_texts
from gateway.formats.transcript.answers import ShownAnswer, ShownAnswers
from gateway.formats.transcript.body_parts import parse_values, read_part_answers
from gateway.formats.transcript.messages import ShownMessage, read_messages, read_session_messages
from gateway.formats.videos.openai import build_video
from gateway.frozen import frozen
from gateway.large_work import run_in_thread
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.context import Services
from gateway.storage.bodies.errors import BodiesOutOfReach, BodiesUnreadable
from gateway.storage.bodies.index import BodyEntry

_VIDEO_OPERATIONS = frozenset({"videos", "video_remixes"})


@frozen(kw_only=True)
class StreamTextView:
    """A text that a stream has brought in pieces. ``place`` is where its pieces are in the events."""

    place: str
    text: str


@frozen(kw_only=True)
class ToolCallView:
    """A call of a tool. ``arguments`` is JSON as a text, incomplete if the answer was cut off."""

    name: str
    arguments: str


@frozen(kw_only=True)
class MessageView:
    """A message of a request. ``role`` is the word of the client's format."""

    role: str
    text: str
    tool_calls: Sequence[ToolCallView]


@frozen(kw_only=True)
class AnswerView:
    """An answer. ``finish_reason`` is the word of the client's format, empty without one."""

    text: str
    reasoning: str
    tool_calls: Sequence[ToolCallView]
    finish_reason: str


@frozen(kw_only=True)
class BodyView:
    """A kept body.

    ``received_bytes`` is its size before ``redacted`` values were replaced and its middle was ``cut``. ``messages`` are
    what a request asked. ``answers`` are what an answer says, with the pieces of a stream put together. The tokens are
    those that were reported to the client. All of these are empty if the body has another form, or was cut. For a
    stream, ``texts`` are all of its texts, and ``event_times_ms`` are when each event was sent, in milliseconds after
    the request began.
    """

    kind: BodyKind
    media_type: str
    content: str
    received_bytes: Count
    channel: str | None
    status: Count | None
    redacted: bool
    cut: bool
    messages: Sequence[MessageView]
    answers: Sequence[AnswerView]
    prompt_tokens: Count | None
    completion_tokens: Count | None
    texts: Sequence[StreamTextView]
    event_times_ms: Sequence[int]


@frozen(kw_only=True)
class KeptBodiesView:
    """The kept bodies of a request. ``loss`` says why there are none although they were to be kept."""

    id: str
    started_at: Moment
    expires_at: Moment
    loss: LossReason | None
    bodies: Sequence[BodyView]


@frozen(kw_only=True)
class BodyStatusView:
    """What is kept. ``lost`` are requests of which nothing could be kept.

    ``bytes`` are those of this node, and of all nodes in the shared store (``store.bodies_url``). ``unmoved_bytes`` are
    those of this node that wait to be moved there.
    """

    requests: Count
    lost: Count
    bytes: Count
    oldest_at: Moment | None
    problem: str | None
    waiting_bytes: Count
    unmoved_bytes: Count


@admin_operation()
async def get_bodies(request: AdminRequest) -> KeptBodiesView:
    """Get what a request asked, what its client was sent, and what providers answered to its failed attempts.

    Members need the right `may_read_bodies`; they see no answers of providers to failed attempts. The answer is 404 if
    nothing of the request is kept, and while its bodies are being deleted. Each call is in the audit log.
    """
    services, actor = request.services, request.actor
    row, entry, parts = await read_kept_bodies(request)
    # Members see no channels, and so not what these answered.
    visible_parts = [part for part in parts if actor.scope is None or part.kind != "provider_error"]
    now_ms = int(services.clock() * 1000)
    await services.admin.audit_log.add_audit(
        actor.build_audit_row("bodies.read", row.id, now_ms, account_id=row.account_id)
    )
    return KeptBodiesView(
        id=row.id,
        started_at=build_time(entry.owner.started_ms // 1000),
        expires_at=build_time(entry.expires_ms // 1000),
        loss=entry.loss,
        bodies=await run_in_thread(_build_bodies, visible_parts),
    )


async def read_kept_bodies(request: AdminRequest) -> tuple[RequestRecord, BodyEntry, list[BodyPart]]:
    """Return the row of the request in the path, and its kept bodies. The caller records the access in the audit log.

    Raises ``NotFound`` if the actor may not see the request, or if nothing of it can be read, ``Conflict`` if the path
    has the beginning of several ids, and ``StoreUnavailable`` if the bodies can be read later.
    """
    services = request.services
    await services.billing.flusher.store_waiting()
    stored_request = await services.admin.history.get(request.match_info["id"], request.actor.scope)
    row = stored_request.row
    try:
        found_bodies = await services.open_bodies().read(row.id)
    except BodiesUnreadable as error:
        cause = f": {error}" if request.actor.scope is None else ""  # it names nodes, folders and buckets
        if isinstance(error, BodiesOutOfReach):
            raise StoreUnavailable(f"The bodies of this request cannot be read now{cause}") from None
        raise NotFound(f"The bodies of this request cannot be read{cause}") from None
    if found_bodies is None:
        session_id = row.client_request_id or ""
        is_part = row.operation == "realtime" and session_id.startswith(ID_PREFIX)
        hint = f"; the events of a response are kept with its session: {session_id}" if is_part else ""
        raise NotFound(f"No bodies of this request are kept{hint}")
    entry, parts = found_bodies
    return row, entry, await add_job_end(services, row, parts)


async def add_job_end(services: Services, row: RequestRecord, parts: Sequence[BodyPart]) -> list[BodyPart]:
    """Return the kept bodies of a request; for a video job, add its current state as one more body.

    The state has no prompt, because the job's prompt is not redacted.
    """
    if row.operation not in _VIDEO_OPERATIONS or not parts:
        return list(parts)
    job = await services.videos.jobs.store.find_by_request(row.id)
    if job is None:
        return list(parts)
    state = {name: value for name, value in build_video(job, "openai").items() if name != "prompt"}
    content = orjson.dumps(state)
    return [*parts, BodyPart("answer", content, "application/json", len(content))]


@admin_operation()
async def get_body_status(request: AdminRequest) -> BodyStatusView:
    """Get how much is kept, and whether bodies can be written."""
    stored_bodies = await request.services.open_bodies().describe()
    return BodyStatusView(
        requests=stored_bodies.requests,
        lost=stored_bodies.lost,
        bytes=stored_bodies.bytes,
        oldest_at=None if stored_bodies.oldest_ms is None else build_time(stored_bodies.oldest_ms // 1000),
        problem=stored_bodies.problem or None,
        waiting_bytes=stored_bodies.waiting_bytes,
        unmoved_bytes=stored_bodies.unmoved_bytes,
    )


def find_stored_names(services: Services, user: str) -> frozenset[str]:
    """Return the names under which an end user may be stored: the name that clients send, and its hash."""
    rules = services.live_config.attribution
    return frozenset(build_stored_user(user, attrs.evolve(rules, users=stored_as)) for stored_as in ("text", "hash"))


def _build_bodies(parts: Sequence[BodyPart]) -> list[BodyView]:
    return [_build_body(part) for part in parts]


def _build_body(part: BodyPart) -> BodyView:
    is_stream = part.media_type.startswith(EVENT_STREAM)
    shown_answers = read_part_answers(part) if part.kind == "answer" else ShownAnswers()
    texts = describe_texts(part.content) if is_stream else ()
    return BodyView(
        kind=part.kind,
        media_type=part.media_type,
        content=part.content.decode(errors="replace"),
        received_bytes=part.received_bytes,
        channel=part.channel or None,
        status=part.status or None,
        redacted=part.redacted,
        cut=part.cut,
        messages=[_build_message(message) for message in _read_messages(part)],
        answers=[_build_answer(answer) for answer in shown_answers.answers],
        prompt_tokens=shown_answers.prompt_tokens,
        completion_tokens=shown_answers.completion_tokens,
        texts=[StreamTextView(place=place, text=text) for place, text in texts],
        event_times_ms=part.event_times_ms,
    )


def _read_messages(part: BodyPart) -> list[ShownMessage]:
    """Return the messages of a request or a realtime session; of other parts, such as answers, none."""
    if part.media_type.startswith(EVENT_STREAM):
        return read_session_messages(parse_values(part))
    values = parse_values(part) if part.kind == "request" else []
    return read_messages(values[0]) if values else []


def _build_message(message: ShownMessage) -> MessageView:
    return MessageView(role=message.role, text=message.text, tool_calls=_build_calls(message))


def _build_answer(answer: ShownAnswer) -> AnswerView:
    return AnswerView(
        text=answer.text,
        reasoning=answer.reasoning,
        tool_calls=_build_calls(answer),
        finish_reason=answer.finish_reason,
    )


def _build_calls(holder: ShownMessage | ShownAnswer) -> list[ToolCallView]:
    return [ToolCallView(name=call.name, arguments=call.arguments) for call in holder.tool_calls]
