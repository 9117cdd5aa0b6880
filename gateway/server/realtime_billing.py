"""Billing of a realtime session: each response is one request, with a reservation, a charge and a record.

The cost is reserved when the client requests a response, or when the provider reports that it has begun one itself
(server VAD). A response is settled with the usage in ``response.done`` before the client gets that event.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain

import attrs

from gateway.domain.account import Caller
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.model_limits import find_limits
from gateway.domain.request_log import NON_FAILURES, Outcome
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import GatewayError, ProviderBadResponse, QuotaExceeded, RateLimited
from gateway.formats.realtime import events as wire
from gateway.request_context import RequestContext, make_request_id
from gateway.routing.target import Attempt, Target
from gateway.server.active_inference import ActiveInference

MAX_WAITING_RESPONSES = 16
"""Maximum number of requested responses that have not begun, for each session."""
REFUSED_S = 2.0
"""Time that a reservation is kept after an error event, which may concern another event of the client."""
SPARE_TRANSCRIPT_TOKENS = 512
"""Tokens that a transcript may use beyond those of the audio sent, for its prompt and for errors of the estimate."""
_MAX_ENDED = 64
"""Number of ended responses whose ids a session remembers, to charge an end that is reported twice only once."""


@attrs.define(eq=False)
class RealtimeResponse:
    """One response of a session.

    Attributes:
        cause: the client's ``event_id``; None if the event has none, or if the provider began the response itself.
        longest_inference: an inference request with the maximum number of tokens, for the reservation.
        refused_at: the event loop's time at which the provider sent an error that probably concerns this response.
    """

    context: RequestContext
    cause: object
    mark: wire.PromptMark
    longest_inference: InferenceRequest | None = None
    output: wire.OutputMeter = attrs.Factory(wire.OutputMeter)
    refused_at: float | None = None


class RealtimeBilling:
    """Reserves and settles the cost of one session's responses and transcripts."""

    def __init__(self, active: ActiveInference, attempt: Attempt, inference: InferenceRequest) -> None:
        self.conversation = wire.RealtimeConversation()
        self._session = active.context
        self._exchange = active.exchange
        self._services = active.services
        self._loop = active.loop
        self._attempt = attempt
        self._inference = inference
        self._waiting_responses: deque[RealtimeResponse] = deque()
        self._running_responses: dict[str, RealtimeResponse] = {}
        self._ended_ids: deque[str] = deque(maxlen=_MAX_ENDED)
        self._transcript: RequestContext | None = None
        self._covered_tokens = -1

    @property
    def busy(self) -> bool:
        """Whether a response is requested or in progress; responses probably refused do not count."""
        return bool(self._running_responses) or any(response.refused_at is None for response in self._waiting_responses)

    @property
    def running(self) -> Iterator[str]:
        return iter(tuple(self._running_responses))

    async def reserve_response(self, event: wire.Event) -> None:
        if len(self._waiting_responses) >= MAX_WAITING_RESPONSES:
            raise RateLimited(f"The session waits for {MAX_WAITING_RESPONSES} responses already", retry_after_s=1)
        response = self._make_response(event.get("event_id"), event)
        await self._admit(response)
        self._waiting_responses.append(response)

    @property
    def covers_transcript(self) -> bool:
        """Whether the reservation covers the transcript of all audio that the client has sent."""
        return self.conversation.untranscribed <= self._covered_tokens

    async def reserve_transcript(self) -> None:
        """Reserve the cost of the next transcript: the provider may create one without a request.

        If less is left of a limit than the transcript may cost, only the rest is reserved, and this transcript may
        exceed the limit. Raises the errors of ``reserve_up_to``: ``QuotaExceeded`` if nothing is left.
        """
        self._release_transcript()
        model, target = self._find_transcriber()
        transcript_tokens = self.conversation.untranscribed
        context = self._make_context()
        context.caller = self._services.auth.api_keys.refresh(context.caller)
        tokens = transcript_tokens + SPARE_TRANSCRIPT_TOKENS
        context.inference = wire.build_response_inference(model, tokens, tokens)
        maximum = target.find_most(wire.bound_transcript(tokens))
        await self._services.billing.quota.reserve_up_to(context, maximum)
        self._release_transcript()  # an event from the other side may have made a reservation meanwhile
        self._transcript, self._covered_tokens = context, transcript_tokens + SPARE_TRANSCRIPT_TOKENS // 2

    def _release_transcript(self) -> None:
        context, self._transcript, self._covered_tokens = self._transcript, None, -1
        if context is not None:
            self._services.billing.quota.release(context)

    def _find_transcriber(self) -> tuple[str, Target]:
        target = self._attempt.target
        own_model = self._inference.model if target.place is None else target.place.model  # a route has no price
        model = self.conversation.transcriber or own_model
        price = self._services.routing.router.pricing.find_price(model, model, target.channel.provider)
        limits = find_limits(model)
        return model, attrs.evolve(target, price=price, unpriced=price is None, model=model, limits=limits)

    async def process_event(self, event: wire.Event) -> GatewayError | None:
        """Process a provider event. Return the error that must end the session; None if it may continue."""
        refusal = None
        match event.get("type"):
            case wire.RESPONSE_CREATED:
                refusal = await self._begin_response(wire.find_response_id(event))
            case wire.RESPONSE_DONE:
                refusal = await self._end_response(wire.parse_response_end(event))
            case wire.TRANSCRIBED_EVENT:
                refusal = await self._charge_transcript(event)
            case wire.ERROR:
                self._mark_refused_response(wire.find_cause(event))
            case _:
                response = self._running_responses.get(wire.find_response_id(event))
                if response is not None:
                    self.conversation.note_output(event, response.output)
                    return None
        self.conversation.note_provider(event)
        if event.get("type") == wire.SESSION_UPDATED and self._transcript is not None:
            refusal = await self._follow_transcriber(self._transcript)
        return refusal

    def settle_rest(self, outcome: Outcome, error: GatewayError | None) -> None:
        """Settle every unfinished response, with its usage estimated from the output received so far.

        The usage is 0 instead if the setting ``billing.abandoned`` makes abandoned requests free.
        """
        self._release_transcript()
        is_free = self._services.billing.settlement.find_abandoned() == "free"
        self.drop_refused_responses(self._loop.time())
        for response in chain(self._running_responses.values(), self._waiting_responses):
            prompt = response.context.inference.prompt_chars // 4
            response.context.attempts[-1].pending = True
            self._settle(
                response, outcome, error, NO_USAGE if is_free else wire.estimate_output(response.output, prompt)
            )
        self._running_responses.clear()
        self._waiting_responses.clear()

    def _make_response(self, cause: object, event: wire.Event | None) -> RealtimeResponse:
        context = self._make_context()
        prompt, output = self.conversation.estimate_prompt(event), self.conversation.find_output_limit(event)
        context.inference = wire.build_response_inference(self._inference.model, prompt, output)
        maximum, window = self.conversation.bound_prompt(event), self._find_window()
        maximum = window if self.conversation.may_read_more(event) else max(prompt, min(maximum, window))
        longest_response = wire.build_response_inference(
            self._inference.model, maximum, self.conversation.find_longest_output(event)
        )
        return RealtimeResponse(context, cause, self.conversation.mark_prompt(event), longest_response)

    def _make_context(self) -> RequestContext:
        context = RequestContext(make_request_id())
        context.operation = "realtime"
        context.attribution = self._session.attribution
        context.caller = self._session.caller
        context.target_list = self._session.target_list
        context.started_ms = int(self._services.clock() * 1000)
        context.started_at = self._loop.time()
        context.client_request_id = self._session.id
        if (budgets := self._services.billing.limits.budgets) is not None:
            budgets.share_own(self._session, context)
        return context

    def _find_window(self) -> int:
        return self._attempt.target.limits.context_window or wire.MAX_CONTEXT_TOKENS

    async def _admit(self, response: RealtimeResponse) -> None:
        context, services = response.context, self._services
        inference = context.inference
        context.caller = caller = services.auth.api_keys.refresh(context.caller)
        target = self._find_target(caller, inference)
        context.attempts.append(attrs.evolve(self._attempt, target=target))
        await services.billing.quota.admit_part(context, target, response.longest_inference or inference)
        self._raise_limits(response, inference)

    def _find_target(self, caller: Caller, inference: InferenceRequest) -> Target:
        """Return the session's target at the current price. On a route, that is the one of the session's step."""
        router, own_target = self._services.routing.router, self._attempt.target
        if own_target.place is None:
            targets = router.route(caller, inference).targets
            return next((target for target in targets if target.channel.name == own_target.channel.name), own_target)
        caller.check_group()
        caller.check_model(inference.model)
        model, operation = own_target.place.model, inference.operation
        options = router.keep_priced_targets(router.list_options(caller, model, operation), caller, model, operation)
        same_channel_targets = (target for target in options if target.channel.name == own_target.channel.name)
        return next((attrs.evolve(target, place=own_target.place) for target in same_channel_targets), own_target)

    def _raise_limits(self, response: RealtimeResponse, inference: InferenceRequest) -> None:
        """Raise the token limits to the model's maximum, because the conversation's size is only an estimate."""
        response.context.inference = attrs.evolve(
            inference, max_prompt_tokens=self._find_window(), max_output_tokens=wire.MAX_RESPONSE_TOKENS
        )

    async def _begin_response(self, response_id: str) -> GatewayError | None:
        """Record that the provider has begun a response.

        Return the error if the checks refuse a response that the client did not request, and otherwise None.
        """
        refusal = None
        if response_id in self._running_responses:  # the provider reported the begin twice
            return None
        if self._waiting_responses:
            response = min(
                self._waiting_responses, key=lambda waiting_response: waiting_response.refused_at is not None
            )
            self._waiting_responses.remove(response)
        else:
            response = self._make_response(None, None)
            try:
                await self._admit(response)
            except GatewayError as error:
                refusal = error
                self._admit_begun(response)
        response.context.attempts[-1].pending = True
        response.context.first_byte_at = self._loop.time()
        self._running_responses[response_id] = response
        return refusal

    def _admit_begun(self, response: RealtimeResponse) -> None:
        """Admit a refused response for charging: the provider is already generating it."""
        context = response.context
        if not context.attempts:
            context.attempts.append(attrs.evolve(self._attempt))
        self._services.billing.quota.admit_begun(context, self._attempt.channel.name)
        self._raise_limits(response, context.inference)

    async def _end_response(self, end: wire.ResponseEnd) -> GatewayError | None:
        """Settle a response that has ended at the provider, even if the provider did not report its beginning.

        Return the error that ends the session, or None.
        """
        refusal = None
        if end.id not in self._running_responses:
            if end.id in self._ended_ids:
                return None
            refusal = await self._begin_response(end.id)
        response = self._running_responses.pop(end.id)
        if end.id:
            self._ended_ids.append(end.id)
        usage = end.usage
        if usage is None:
            usage = wire.estimate_output(response.output, response.context.inference.prompt_chars // 4)
        self.conversation.note_end(response.mark, end, usage)
        response.context.attempts[-1].pending = False
        if end.status == "failed":
            reported_usage = end.usage or NO_USAGE
            self._settle(response, "failed", ProviderBadResponse(f"The response failed: {end.failure}"), reported_usage)
        else:
            self._settle(response, "cancelled" if end.status == "cancelled" else "completed", None, usage)
        return refusal

    def _mark_refused_response(self, cause: str | None) -> None:
        """Mark the response that the provider has probably refused; without ``cause``, the one requested last.

        The response may still begin, because the error may concern another event without an id or with the same id.
        """
        for response in reversed(self._waiting_responses):
            if response.refused_at is None and (cause is None or response.cause == cause):
                response.refused_at = self._loop.time()
                return

    def drop_refused_responses(self, refused_before_s: float) -> None:
        """Settle, as refused, responses that never began and were refused until ``refused_before_s`` (loop time)."""
        for response in tuple(self._waiting_responses):
            if response.refused_at is not None and response.refused_at <= refused_before_s:
                self._waiting_responses.remove(response)
                self._settle(response, "refused", ProviderBadResponse("The provider refused the response"), NO_USAGE)

    async def _charge_transcript(self, event: wire.Event) -> GatewayError | None:
        """Charge a transcript of the user's audio, which a separate model creates.

        Return ``QuotaExceeded`` if the caller has no money left: the session has to end, because the provider
        transcribes further audio without a request. Otherwise return None. A transcript that could not be reserved for
        lack of money is not charged.
        """
        transcript_tokens, usage = self.conversation.take_transcribed(), wire.parse_realtime_usage(event.get("usage"))
        if self.conversation.transcriber is None and usage is None:
            return None
        usage = usage or wire.estimate_transcript(event, transcript_tokens)
        try:
            if self._transcript is None:
                await self.reserve_transcript()
        except QuotaExceeded as error:
            return error
        except GatewayError:  # the provider has already created the transcript: charge it
            pass
        context = self._settle_transcript(usage)
        try:
            router, caller = self._services.routing.router, self._session.caller
            await self._services.billing.quota.precheck(caller, partial(router.may_be_free, caller), context)
            if self.conversation.untranscribed > 0:
                await self.reserve_transcript()
        except QuotaExceeded as error:
            return error
        except GatewayError:  # other errors, such as a rate limit, are reported when a response is requested
            pass
        return None

    def _settle_transcript(self, usage: Usage) -> RequestContext:
        """Charge a transcript, and return the context of its request."""
        response, (model, target) = self._make_response(None, None), self._find_transcriber()
        context, transcript = response.context, self._transcript
        self._transcript, self._covered_tokens = None, -1
        tokens = self.conversation.untranscribed + SPARE_TRANSCRIPT_TOKENS
        if transcript is not None:
            context.reservation, tokens = transcript.reservation, transcript.inference.max_prompt_tokens
        context.inference = wire.build_response_inference(model, tokens, tokens)
        context.attempts.append(attrs.evolve(self._attempt, target=target))
        context.first_byte_at = self._loop.time()
        self._services.billing.quota.admit_begun(context, self._attempt.channel.name)
        usage = wire.limit_transcript(usage, tokens)
        self.conversation.note_transcribed(usage)
        self._settle(response, "completed", None, usage)
        return context

    async def _follow_transcriber(self, transcript: RequestContext) -> GatewayError | None:
        """Renew the transcript's reservation if the provider has confirmed a different transcription model.

        Return the error if that is not possible, and otherwise None.
        """
        if transcript.inference.model == self._find_transcriber()[0]:
            return None
        try:
            await self.reserve_transcript()
        except GatewayError as error:
            return error
        return None

    def _settle(self, response: RealtimeResponse, outcome: Outcome, error: GatewayError | None, usage: Usage) -> None:
        context = response.context
        context.usage, context.attribution = usage, self._session.attribution  # the user may be forgotten since
        now, now_ms = self._loop.time(), int(self._services.clock() * 1000)
        self._services.billing.settlement.settle(context, outcome, error, now_s=now, now_ms=now_ms)
        if self._exchange is not None and outcome not in NON_FAILURES:
            self._exchange.has_failure = True
