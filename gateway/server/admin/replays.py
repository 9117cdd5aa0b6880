"""Admin API: send a kept request again, to the same model or to another one, and compare the two answers."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import attrs
import orjson

from gateway.answer_fields import Count
from gateway.domain import exact_json
from gateway.domain.account import Caller
from gateway.domain.audit_log import Actor
from gateway.domain.kept_body import BodyPart
from gateway.domain.member import Forbidden
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.request_log import Outcome, RequestRecord
from gateway.errors import Conflict, GatewayError, InvalidRequest, NotFound
from gateway.formats.redaction.body import EVENT_STREAM
from gateway.formats.redaction.event_texts import parse_event, split_events
from gateway.formats.transcript.answers import ShownAnswers, read_answers
from gateway.formats.transcript.comparison import (
    TextChange,
    compare_texts,
    compute_cosine,
    find_vector,
    join_texts,
    list_tools,
)
from gateway.formats.transcript.verdict import check_schema, list_problems
from gateway.frozen import frozen
from gateway.large_work import run_in_thread
from gateway.parsing import between, must, parse_spec
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.admin.io import read_fields
from gateway.server.admin.kept_bodies import read_kept_bodies
from gateway.server.client_ip import check_client_ip
from gateway.server.context import USER
from gateway.server.replayed_request import ReplayedAnswer, ReplayedRequest, build_replay

_MAX_WORDS = 50
_MAX_NAME_CHARS = 256
_NAME = must("1 to 256 printable characters", lambda name: 0 < len(name) <= _MAX_NAME_CHARS and name.isprintable())
_FEW_WORDS = must("at most 50 texts that are not empty", lambda words: len(words) <= _MAX_WORDS and all(words))


@frozen
class ReplaySpec:
    """How to send a kept request again.

    Attributes:
        model: The model or the route; null: that of the request.
        channel: The only channel that may serve it. For administrators.
        key: The API key that pays, by its id; null: the first usable key of the account of the member who is signed in.
        allow_redacted: Whether a body whose values were replaced is sent with the marks in their place.
        low_priority: Whether the last places of channels and rate limits are left to other requests.
        expect: Texts that the answer must have, in any case.
        schema: A JSON Schema that the answer's text must satisfy; null: none.
    """

    model: str | None = attrs.field(default=None, metadata=_NAME)
    channel: str | None = attrs.field(default=None, metadata=_NAME)
    key: int | None = attrs.field(default=None, metadata=between(1, 2**63 - 1))
    allow_redacted: bool = False
    low_priority: bool = False
    expect: tuple[str, ...] = attrs.field(default=(), metadata=_FEW_WORDS)
    schema: Any = None


@frozen(kw_only=True)
class ReplayRunView:
    """The first request, or the one that was sent again.

    ``text`` is the text of the answer, or its JSON if the answer has another form. ``problems`` say why the answer is
    not what ``expect`` and ``schema`` ask for; a request that did not complete has one. ``is_whole`` is false if a part
    of the answer is missing, or if values were replaced in it: then nothing is compared.
    """

    id: str
    model: str
    served_model: str
    channel: str | None
    outcome: Outcome
    status: Count
    error: str
    prompt_tokens: Count
    completion_tokens: Count
    cost_usd: float
    first_byte_ms: Count | None
    total_ms: Count
    text: str
    tools: Sequence[str]
    problems: Sequence[str]
    is_whole: bool


@frozen(kw_only=True)
class TextChangeView:
    """A part of the two texts: of both (``same``), of the first answer (``old``), or of the second one (``new``)."""

    kind: str
    text: str


@frozen(kw_only=True)
class ReplayView:
    """A request that was sent again, beside the first one.

    ``same_text`` and ``same_tools`` compare the answers. They are null, as are ``changes``, unless both requests
    completed and both answers are whole. ``changes`` are null, too, if the texts are too long to be compared.
    ``cosine`` is the similarity of the first vectors of embeddings, else null. ``retry_after_s`` says when a request
    that was refused for now, such as for a rate limit, may be sent once more; else it is null.
    """

    first: ReplayRunView
    second: ReplayRunView
    same_text: bool | None
    same_tools: bool | None
    changes: Sequence[TextChangeView] | None
    cosine: float | None
    retry_after_s: float | None


@admin_operation(takes=ReplaySpec)
async def replay_request(request: AdminRequest) -> ReplayView:
    """Send a kept request again, and compare the answers.

    The key in `key` pays, and its models and limits apply. The request has a row of its own, with `replay_of`. Its
    bodies are not kept. A body that was redacted is sent only with `allow_redacted`, one that was cut never. Each call
    is in the audit log.
    """
    services, actor = request.services, request.actor
    spec = parse_spec(await read_fields(request), ReplaySpec)
    if spec.channel is not None and actor.scope is not None:
        raise Forbidden("Only administrators choose by channel", param="channel", should_retry=False)
    if spec.schema is not None:
        check_schema(spec.schema)
    payer = _find_payer(request, spec.key)
    row, _, parts = await read_kept_bodies(request)
    asked = next((part for part in parts if part.kind == "request"), None)
    if asked is None:
        raise NotFound("The body of this request is not kept")
    answered = next((part for part in parts if part.kind == "answer"), None)
    replay_body = build_replay(row, asked, spec.model or row.model, allows_redacted=spec.allow_redacted)
    replayed = ReplayedRequest(services, payer, replay_body, channel=spec.channel or "", low_priority=spec.low_priority)
    detail = {"request": replayed.context.id, "key": payer.key.id, "model": replay_body.model}
    audit_row = actor.build_audit_row(
        "bodies.replayed",
        row.id,
        int(services.clock() * 1000),
        account_id=row.account_id,
        detail=orjson.dumps(detail).decode(),
    )
    await services.admin.audit_log.add_audit(audit_row)
    answer = await replayed.replay()
    return await run_in_thread(partial(_compare, spec, actor), (row, answered), answer)


def _find_payer(request: AdminRequest, key_id: int | None) -> Caller:
    """Return the caller who pays.

    Raises ``Forbidden`` for a viewer, ``InvalidRequest`` if no key is named and no member is signed in, ``NotFound``
    for a key that is unknown or another account's, ``Conflict`` if no key of the member's account can be used, and the
    errors of a named key that cannot be used.
    """
    services, actor, user = request.services, request.actor, request.http.get(USER)
    api_keys, now_s = services.auth.api_keys, services.clock()
    if user is not None and user.member.role == "viewer":
        raise Forbidden("Viewers cannot send requests", should_retry=False)
    if key_id is not None:
        caller = api_keys.find_caller(key_id)
        if caller is None or not actor.may_see(caller.account.id):
            raise NotFound(f"No key has the id {key_id}", param="key")
        caller.check_usable(now_s)
        check_client_ip(request.http, caller)
        return caller
    if user is None:
        raise InvalidRequest("Name the API key that pays", param="key")
    for caller in api_keys.find_callers(user.account.name):
        with suppress(GatewayError):  # this key cannot be used, or not from here
            caller.check_usable(now_s)
            check_client_ip(request.http, caller)
            return caller
    raise Conflict(f"The account {user.account.name!r} has no key that can be used", param="key")


def _compare(
    spec: ReplaySpec, actor: Actor, first: tuple[RequestRecord, BodyPart | None], replayed: ReplayedAnswer
) -> ReplayView:
    row, answered = first
    old_texts = _Texts.read(b"", "") if answered is None else _Texts.read(answered.content, answered.media_type)
    new_texts = _Texts.read(replayed.body, replayed.media_type)
    first_run = _build_run(
        row, old_texts, spec, actor, is_whole=answered is not None and not (answered.cut or answered.redacted)
    )
    second_run = _build_run(replayed.row, new_texts, spec, actor, is_whole=not replayed.cut)
    are_comparable = all(run.is_whole and run.outcome == "completed" for run in (first_run, second_run))
    changes = compare_texts(old_texts.text, new_texts.text) if are_comparable else None
    return ReplayView(
        first=first_run,
        second=second_run,
        same_text=old_texts.text == new_texts.text if are_comparable else None,
        same_tools=old_texts.tools == new_texts.tools if are_comparable else None,
        changes=None if changes is None else [_build_change(change) for change in changes],
        cosine=compute_cosine(old_texts.vector, new_texts.vector) if are_comparable and old_texts.vector else None,
        retry_after_s=replayed.retry_after_s,
    )


@frozen
class _Texts:
    """The text of an answer, its calls of tools, and the first vector of its embeddings."""

    text: str
    tools: Sequence[str]
    vector: Sequence[float]

    @classmethod
    def read(cls, content: bytes, media_type: str) -> "_Texts":
        is_stream = media_type.startswith(EVENT_STREAM)
        try:
            data = [parse_event(raw).data for raw in split_events(content)] if is_stream else exact_json.loads(content)
        except orjson.JSONDecodeError:  # of an answer that was cut
            return cls(content.decode(errors="replace"), (), ())
        answers: ShownAnswers = read_answers(data if is_stream else [data])
        vector = () if is_stream else find_vector(data)
        text = join_texts(answers) if answers.answers else content.decode(errors="replace")
        return cls(text, list_tools(answers), vector)


def _build_run(row: RequestRecord, texts: _Texts, spec: ReplaySpec, actor: Actor, *, is_whole: bool) -> ReplayRunView:
    shows_channels = actor.scope is None
    return ReplayRunView(
        id=row.id,
        model=row.model,
        served_model=row.served_model if shows_channels else "",
        channel=row.channel if shows_channels else None,
        outcome=row.outcome,
        status=row.status,
        error=row.error,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cost_usd=row.cost_nanos / NANOS_PER_USD,
        first_byte_ms=row.first_byte_ms,
        total_ms=row.total_ms,
        text=texts.text,
        tools=texts.tools,
        problems=_list_problems(row, texts, spec, is_whole=is_whole),
        is_whole=is_whole,
    )


def _list_problems(row: RequestRecord, texts: _Texts, spec: ReplaySpec, *, is_whole: bool) -> list[str]:
    if row.outcome != "completed":
        return [f"the request did not complete: {row.outcome}"]
    if not is_whole and (spec.expect or spec.schema is not None):
        return ["a part of the answer is missing or was replaced"]
    return list_problems(texts.text, spec.expect, spec.schema)


def _build_change(change: TextChange) -> TextChangeView:
    return TextChangeView(kind=change.kind, text=change.text)
