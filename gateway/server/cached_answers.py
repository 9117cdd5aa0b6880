"""Answers to equal requests: given from the cache, or from the answer to a request that is running.

All checks of a request come first: it is parsed, has its targets, its reservation and its permit. A kept answer is
given only to a request that could now go where the answer came from.
"""

from collections.abc import Sequence
from hashlib import sha256
from time import monotonic
from typing import Any
from urllib.parse import quote

import attrs
import orjson
from aiohttp import web

from gateway.billing.cache_use import CacheUse
from gateway.config.cache_schema import CacheSection
from gateway.domain import exact_json
from gateway.domain.account import Caller
from gateway.domain.attribution import FIELDS
from gateway.domain.cache_rules import CacheResult
from gateway.domain.cached_answer import (
    CACHE_HEADER,
    FORMS,
    JSON_FORM,
    NO_WISH,
    STREAM_FORM,
    USAGE_STREAM_FORM,
    CachedAnswer,
    CacheWish,
    find_ttl_s,
    parse_wish,
)
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.keep_rule import KEEP_HEADER
from gateway.domain.keep_wish import parse_keep_wish
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import usd
from gateway.domain.request_log import ID_PREFIX
from gateway.errors import NotCached
from gateway.formats.answer_forms import convert_answer
from gateway.formats.references.provider_reads import find_reads, searches
from gateway.formats.translator import PLAIN_MODE, ResponseIdentity
from gateway.large_work import run_by_size, run_in_thread
from gateway.proxy.answer_flights import CachedAnswers, Flight
from gateway.proxy.stream import EVENT_STREAM_TYPE
from gateway.request_context import RESUMABLE_HEADER, RequestContext
from gateway.routing.target import Target
from gateway.server.active_inference import CACHE_CONTROL, ActiveInference
from gateway.server.answer_recorder import AnswerRecorder, CachePlan, compute_source
from gateway.server.client_ip import check_client_ip
from gateway.server.recorded_stream import wants_resumable
from gateway.server.responses import EventStreamResponse, write_answer

_OPERATIONS = frozenset(
    {
        "chat", "completions", "messages", "generate_content", "responses", "embeddings", "embed_contents",
        "moderations", "rerank", "speech",
    }
)  # fmt: skip
_RESPONSES, _SPEECH = "responses", "speech"
_STREAM_FIELDS = frozenset({"stream", "stream_options"})
_TOOL_FIELDS = ("tools", "functions")
_STATE_FIELDS = ("previous_response_id", "conversation", "prompt", "background")
"""Fields of the Responses API with which a response depends on more than the request."""
_DIGEST_VERSION = 1
_NOT_RESUMABLE_WARNING = f"{RESUMABLE_HEADER}: not used here; an answer from the cache is sent at once"


async def answer_from_cache(
    request: web.Request, active: ActiveInference, open_stream: type[EventStreamResponse]
) -> web.StreamResponse | None:
    """Answer a request from the cache, or with the answer to an equal request that is running.

    Return None if a provider must be asked; then the answer is recorded if others may have it. Raises ``NotCached``,
    ``InvalidRequest`` for a malformed header, ``ClientDisconnected`` and, after a wait, the errors of a caller who may
    no longer send the request.
    """
    if active.names_resumable and active.context.inference.stream:
        wants_resumable(active)  # a malformed header is refused whether a provider is asked or not
    wish = parse_wish(request.headers.getall(CACHE_CONTROL)) if CACHE_CONTROL in request.headers else NO_WISH
    plan = await _make_plan(request, active, wish)
    if plan is None:
        if wish.must_hit:
            raise _make_not_cached_error()
        return None
    answers = active.services.open_answers()
    giver = _Giver(request, active, plan, open_stream)
    response = None if wish.wants_new else await giver.give_stored(answers)
    flight = answers.flights.find(plan.digest)
    if response is None and wish.must_hit:
        raise _make_not_cached_error()
    if response is None and flight is not None and not wish.wants_new:
        response = await giver.give_shared_answer(flight)
        flight = answers.flights.find(plan.digest)
    if response is not None:
        return response
    active.cache_use = CacheUse()
    answers.counts["miss"] += 1
    ctx = active.context
    _set_headers(ctx, {CACHE_HEADER: "miss"})
    own_flight = answers.flights.start(plan.digest) if flight is None else None
    active.recorder = AnswerRecorder(ctx, active.services, answers, plan, own_flight)
    return None


async def _make_plan(request: web.Request, active: ActiveInference, wish: CacheWish) -> CachePlan | None:
    """Return how a request uses the cache; None if it does not."""
    ctx, services = active.context, active.services
    rules, inference = services.live_config.config.cache, ctx.inference
    route = services.routing.router.routes.get(ctx.route) if ctx.route else None
    route_ttl_s = None if route is None else route.cache_ttl_s
    ttl_s = find_ttl_s(rules.ttl_s, rules.request_ttl_s, wish, ctx.caller.key.cache_ttl_s, route_ttl_s)
    is_refused = parse_keep_wish(request.headers.getall(KEEP_HEADER, ())) == "no"
    if not ttl_s or is_refused or not _is_stateless(inference) or ctx.batch.id is not None:
        return None
    if any(searches(target.model) for target in ctx.target_list.targets):
        return None  # the answer depends on what the provider finds
    if not rules.tools and any(inference.body.get(name) for name in _TOOL_FIELDS):
        return None
    if not inference.plain and not await _run(inference, _is_complete, inference):
        return None
    digest = await _run(inference, compute_digest, ctx, rules)
    max_age_s = ttl_s if wish.max_age_s is None else min(ttl_s, wish.max_age_s)
    return None if digest is None else CachePlan(digest, find_form(inference), ttl_s, max_age_s, rules)


async def _run(inference: InferenceRequest, work: Any, *args: Any) -> Any:
    return await run_in_thread(work, *args) if inference.large else work(*args)


def _is_stateless(inference: InferenceRequest) -> bool:
    """Return whether the answer depends on nothing but the request. The content of messages is not examined."""
    operation, body = inference.operation, inference.body
    if operation not in _OPERATIONS or (operation != _SPEECH and inference.makes_media):
        return False
    if inference.files or inference.channel or inference.foreign_objects or inference.continues or inference.compaction:
        return False
    if operation == _RESPONSES:
        is_stored = inference.keep is not None or body.get("store") is not False
        return not is_stored and not any(body.get(name) for name in _STATE_FIELDS)
    return operation != _SPEECH or isinstance(body.get("voice"), str)  # an object names a voice that may be changed


def _is_complete(inference: InferenceRequest) -> bool:
    """Return whether the body has all that the provider reads: no address, no id, no tool that the provider runs."""
    reads = find_reads(inference)
    has_addresses = reads.images > 0 and not OPERATIONS[inference.operation].prompt  # there they look like others
    return not (reads.unbounded or reads.tools or reads.earlier_tokens or has_addresses)


def find_form(inference: InferenceRequest) -> str:
    """Return the form of the answer that a request asks for."""
    if not inference.stream:
        return JSON_FORM
    return USAGE_STREAM_FORM if inference.include_usage else STREAM_FORM


def compute_digest(ctx: RequestContext, rules: CacheSection) -> str | None:
    """Return the digest of a request and of those who share its answer; None for a body that is nested too deeply.

    The end user, the session, tags and the form of the answer do not count. In the Responses API the first three do,
    because the answer repeats them.
    """
    inference, account, key = ctx.inference, ctx.caller.account, ctx.caller.key
    body, operation = inference.body, inference.operation
    uncounted = _STREAM_FIELDS if operation == _RESPONSES else _STREAM_FIELDS | FIELDS
    options = body.get("stream_options")
    other_options: Any = options
    if isinstance(options, dict):  # only some operations check it
        other_options = {name: value for name, value in options.items() if name != "include_usage"}
    # With the time of creation: after a database was restored, another account may get the same id.
    sharers = {"account": (account.id, account.created_ms), "key": (key.id, key.created_ms), "all": ()}[rules.scope]
    parts = (
        (_DIGEST_VERSION, rules.scope, sharers, operation, inference.model, inference.encoding),
        (inference.features, inference.version, ctx.target_list.preferred, other_options or None),
        {name: value for name, value in body.items() if name not in uncounted},
    )
    try:
        encoded = orjson.dumps(parts, default=exact_json.write_number, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return None
    return sha256(encoded).hexdigest()


class _Giver:
    """Answers one request from the cache, or with the answer to an equal request that is running."""

    def __init__(
        self, request: web.Request, active: ActiveInference, plan: CachePlan, open_stream: type[EventStreamResponse]
    ) -> None:
        self._request = request
        self._active = active
        self._plan = plan
        self._open_stream = open_stream
        self._waited_s = 0.0

    async def give_stored(self, answers: CachedAnswers) -> web.StreamResponse | None:
        """Answer from the cache. Return None if the cache has nothing for this request.

        Raises the errors of a caller who may no longer send the request.
        """
        store, digest = answers.store, self._plan.digest
        response = await self._give_best(store.find_in_memory(digest), "hit")
        if response is None:
            # An equal request may have got its answer while the read was waiting for the thread.
            stored_answers = await store.find(digest) or store.find_in_memory(digest)
            if stored_answers:
                response = await self._give_best(stored_answers, "hit", waited=True)
        return response

    async def give_shared_answer(self, flight: Flight) -> web.StreamResponse | None:
        """Answer with the answer to an equal request. Return None if there is none that this request may have.

        Raises the errors of a caller who may no longer send the request.
        """
        started_at = monotonic()
        answer = await flight.wait()
        self._waited_s = monotonic() - started_at
        if answer is None:
            self._refresh_caller()
            return None
        return await self._give_best([answer], "joined", waited=True)

    async def _give_best(
        self, answers: Sequence[CachedAnswer], result: CacheResult, *, waited: bool = False
    ) -> web.StreamResponse | None:
        """Give the answer whose form fits best. Return None if this request may have none of them.

        ``waited``: the caller and the targets may have changed meanwhile. Then the errors of a caller who may no longer
        send the request are raised.
        """
        form = self._plan.form
        for answer in sorted(answers, key=lambda answer: (answer.form != form, FORMS.index(answer.form))):
            target = self._find_target(answer, waited=waited)
            if target is None:
                continue
            given_answer = answer if answer.form == form else await self._convert(answer, target)
            if given_answer is not None:
                return await self._give(given_answer, target, result)
        return None

    def _find_target(self, answer: CachedAnswer, *, waited: bool) -> Target | None:
        """Return the target of this request from which ``answer`` came; None if the request may not have the answer.

        If ``waited``, this raises the errors of a caller who may no longer send the request.
        """
        ctx, services = self._active.context, self._active.services
        if not services.auth.api_keys.has_account(answer.account_id) or self._find_age_s(answer) > self._plan.max_age_s:
            return None
        targets = [target for target in ctx.target_list.targets if compute_source(target) == answer.source]
        if targets and waited:
            caller = self._refresh_caller()
            present_targets = services.routing.router.route(caller, ctx.inference).targets
            if all(compute_source(target) != answer.source for target in present_targets):
                return None
        return targets[0] if targets else None

    def _refresh_caller(self) -> Caller:
        """Return the caller as it is now. Raises the errors of a caller who may no longer send the request."""
        active = self._active
        earlier_caller = active.context.caller
        caller = active.services.auth.api_keys.refresh(earlier_caller)
        if caller is not earlier_caller:
            caller.check_group()
            check_client_ip(self._request, caller)
        return caller

    def _find_age_s(self, answer: CachedAnswer) -> int:
        return max(0, int(self._active.services.clock() * 1000) - answer.stored_ms) // 1000

    async def _convert(self, answer: CachedAnswer, target: Target) -> CachedAnswer | None:
        """Return the answer in the form that the request asks for; None if that is impossible."""
        ctx, form = self._active.context, self._plan.form
        identity = ResponseIdentity(ctx.id.removeprefix(ID_PREFIX), target.model, ctx.started_ms // 1000)
        arguments = answer.body, answer.form, answer.usage, ctx.inference, identity
        body = await run_by_size(len(answer.body), convert_answer, *arguments)
        media_type = PLAIN_MODE.media_type if form == JSON_FORM else EVENT_STREAM_TYPE
        return None if body is None else attrs.evolve(answer, form=form, media_type=media_type, body=body)

    async def _give(self, answer: CachedAnswer, target: Target, result: CacheResult) -> web.StreamResponse:
        active, request = self._active, self._request
        ctx, services = active.context, active.services
        active.cache_use = CacheUse(result, target, answer.answered, self._plan.rules.hit_price_ppm)
        services.open_answers().counts[result] += 1
        headers = {CACHE_HEADER: result, "Age": str(self._find_age_s(answer))}
        if answer.adapted:
            headers["x-gateway-adapted"] = answer.adapted
        if target.place is not None:
            headers |= {"x-gateway-route": quote(target.place.route.name), "x-gateway-step": str(target.place.step + 1)}
        _set_headers(ctx, headers)
        ctx.usage = answer.usage
        ctx.first_byte_at = active.loop.time()
        active.settle("completed")  # before anything is sent, as for a provider's answer
        if ctx.inference.stream:
            return await self._send_stream(answer.media_type, answer.body)
        if active.exchange is not None:
            active.exchange.note_answer(answer.body, answer.media_type)
        if active.idempotency_key.is_named:
            await active.idempotency_key.keep(answer.body, answer.media_type)
        overhead_s = monotonic() - ctx.read_at - self._waited_s
        services.metrics.overheads.append(overhead_s)
        answer_headers = {"x-gateway-overhead-ms": f"{overhead_s * 1000:.2f}", "Content-Type": answer.media_type}
        if ctx.record is not None:
            answer_headers["x-gateway-cost-usd"] = usd(ctx.record.cost_nanos)
        return write_answer(request, answer.body, answer_headers)

    async def _send_stream(self, media_type: str, body: bytes) -> web.StreamResponse:
        active = self._active
        if active.names_resumable or active.context.caller.key.resumable:
            active.context.warn(_NOT_RESUMABLE_WARNING)
        client_stream = self._open_stream(self._request)
        exchange = active.exchange
        sent_stream = client_stream if exchange is None else exchange.wrap(client_stream)
        sent_stream.open(media_type, b"")
        await sent_stream.finish(body)
        return client_stream.response


def _set_headers(ctx: RequestContext, headers: dict[str, str]) -> None:
    ctx.headers = {**(ctx.headers or {}), **headers}


def _make_not_cached_error() -> NotCached:
    return NotCached("There is no kept answer to this request ('only-if-cached')", should_retry=False)
