"""The money of a realtime session: each response is one request, with a reservation, a charge and a record.

A response is reserved when the client asks for it, or when the provider says that it has begun one by itself (server
VAD). It is settled by the usage that ``response.done`` reports, before the client sees that event.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain

import attrs

from gateway.domain.context_windows import find_context_window
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.request_log import Outcome
from gateway.domain.usage import NO_USAGE, Usage
from gateway.errors import GatewayError, ProviderBadResponse, RateLimited
from gateway.formats.openai import realtime as wire
from gateway.request_context import RequestContext, make_request_id
from gateway.routing.target import Attempt
from gateway.server.active_inference import ActiveInference

MAX_WAITING = 16
"""Responses that one session may have reserved at a time."""


@attrs.define(eq=False)
class RealtimeResponse:
    """One response of a session.

    Attributes:
        context: the request that it is.
        cause: the ``event_id`` of the client's event; None if it had none, or if the provider began by itself.
        output: what has come of it.
        longest: the request with the most tokens that it may take; None: of a transcript.
    """

    context: RequestContext
    cause: object
    longest: InferenceRequest | None = None
    output: wire.OutputMeter = attrs.Factory(wire.OutputMeter)


class RealtimeBilling:
    """Reserves and settles the responses of one session.

    Args:
        active: the session as a request; its caller and its channel pay and serve.
        attempt: the connection to the provider.
        call: the session's request.
    """

    def __init__(self, active: ActiveInference, attempt: Attempt, call: InferenceRequest) -> None:
        self.conversation = wire.Conversation()
        self._session = active.context
        self._services = active.services
        self._loop = active.loop
        self._attempt = attempt
        self._call = call
        self._waiting: deque[RealtimeResponse] = deque()
        self._running: dict[str, RealtimeResponse] = {}

    @property
    def busy(self) -> bool:
        """Whether a response was asked for, or runs."""
        return bool(self._waiting or self._running)

    @property
    def running(self) -> Iterator[str]:
        """The ids of the responses that the provider is making."""
        return iter(tuple(self._running))

    async def reserve(self, event: wire.Event) -> None:
        """Check and reserve the response that a ``response.create`` asks for. Raises ``GatewayError``."""
        if len(self._waiting) >= MAX_WAITING:
            raise RateLimited(f"The session waits for {MAX_WAITING} responses already", retry_after_s=1)
        response = self._make(event.get("event_id"), event)
        await self._admit(response)
        self._waiting.append(response)

    async def note(self, event: wire.Event) -> GatewayError | None:
        """Handle an event of the provider. Returns why a response that it began by itself is not allowed."""
        refused = None
        match event.get("type"):
            case wire.RESPONSE_CREATED:
                refused = await self._begin(wire.find_response_id(event))
            case wire.RESPONSE_DONE:
                self._end(wire.parse_response_end(event))
            case wire.TRANSCRIBED:
                self._charge_transcript(wire.parse_realtime_usage(event.get("usage")))
            case wire.ERROR:
                self._give_up(wire.find_cause(event))
            case _:
                response = self._running.get(wire.find_response_id(event))
                if response is not None:
                    self.conversation.note_output(event, response.output)
                    return None
        self.conversation.note_provider(event)
        return refused

    def settle_rest(self, outcome: Outcome, fault: GatewayError | None) -> None:
        """Settle every response that has not ended, by what is known of it."""
        free = self._services.billing.settlement.find_abandoned() == "free"
        for response in chain(self._running.values(), self._waiting):
            call = response.context.call
            prompt = 0 if call is None else call.prompt_chars // 4
            response.context.attempts[-1].pending = True
            self._settle(response, outcome, fault, NO_USAGE if free else wire.estimate_output(response.output, prompt))
        self._running.clear()
        self._waiting.clear()

    def _make(self, cause: object, event: wire.Event | None) -> RealtimeResponse:
        """Return a response that is not reserved yet. Raises the error of a key that cannot be used any more."""
        context = RequestContext(make_request_id())
        context.operation = "realtime"
        context.caller = self._session.caller
        context.started_ms = int(self._services.clock() * 1000)
        context.started_at = self._loop.time()
        context.client_request_id = self._session.id
        prompt, output = self.conversation.estimate_prompt(event), self.conversation.find_output_limit(event)
        context.call = wire.build_response_call(self._call.model, prompt, output)
        if self.conversation.may_read_more(event):
            prompt = max(prompt, self._find_window())
        longest = wire.build_response_call(self._call.model, prompt, self.conversation.find_longest_output(event))
        return RealtimeResponse(context, cause, longest)

    def _find_window(self) -> int:
        return find_context_window(self._attempt.target.model) or wire.MAX_CONTEXT

    async def _admit(self, response: RealtimeResponse) -> None:
        """Make every check of a request, and reserve the money. Raises ``GatewayError``; then nothing is reserved."""
        context, services = response.context, self._services
        call = context.call
        assert call is not None  # noqa: S101 - it was made with one
        context.caller = caller = services.auth.api_keys.refresh(context.caller)
        options = services.routing.router.route(caller, call).options
        own = self._attempt.channel.name
        target = next((one for one in options if one.channel.name == own), self._attempt.target)
        context.attempts.append(attrs.evolve(self._attempt, target=target))
        await services.billing.quota.admit_part(context, target, response.longest or call)
        self._widen(response, call)

    def _widen(self, response: RealtimeResponse, call: InferenceRequest) -> None:
        """From now on bound the usage by what is possible: the estimate of the conversation is none."""
        response.context.call = attrs.evolve(
            call, max_prompt_tokens=self._find_window(), max_output_tokens=wire.MAX_ANSWER
        )

    async def _begin(self, response_id: str) -> GatewayError | None:
        """Note that the provider has begun a response. Returns why it may not, if the client had not asked for it."""
        refused = None
        if self._waiting:
            response = self._waiting.popleft()
        else:
            response = self._make(None, None)
            try:
                await self._admit(response)
            except GatewayError as error:
                refused = error
                self._admit_begun(response)
        response.context.attempts[-1].pending = True
        response.context.first_byte_at = self._loop.time()
        self._running[response_id] = response
        return refused

    def _admit_begun(self, response: RealtimeResponse) -> None:
        """Charge a response that no check has allowed: the provider works on it."""
        context = response.context
        if not context.attempts:
            context.attempts.append(attrs.evolve(self._attempt))
        self._services.billing.quota.admit_begun(context, self._attempt.channel.name)
        if context.call is not None:
            self._widen(response, context.call)

    def _end(self, end: wire.ResponseEnd) -> None:
        """Settle a response that has ended at the provider."""
        response = self._running.pop(end.id, None)
        if response is None:
            return
        usage = end.usage
        if usage is None:
            call = response.context.call
            usage = wire.estimate_output(response.output, call.prompt_chars // 4 if call is not None else 0)
        response.context.attempts[-1].pending = False
        if end.status == "failed":
            reported = end.usage or NO_USAGE
            self._settle(response, "failed", ProviderBadResponse(f"The response failed: {end.failure}"), reported)
        else:
            self._settle(response, "cancelled" if end.status == "cancelled" else "completed", None, usage)

    def _give_up(self, cause: str | None) -> None:
        """Release the response that the provider has refused; without a cause the one that was asked for last."""
        for response in reversed(self._waiting):
            if cause is None or response.cause == cause:
                self._waiting.remove(response)
                self._settle(response, "refused", ProviderBadResponse("The provider refused the response"), NO_USAGE)
                return

    def _charge_transcript(self, usage: Usage | None) -> None:
        """Charge the transcript of the user's audio, which another model has made."""
        model = self.conversation.transcriber
        if usage is None or model is None:
            return
        target = self._attempt.target
        price = self._services.routing.router.tariff.find_price(model, model, target.channel.provider)
        response = self._make(None, None)
        context = response.context
        context.call = wire.build_response_call(model, 0, 0)
        target = attrs.evolve(target, price=price, unpriced=price is None, model=model)
        context.attempts.append(attrs.evolve(self._attempt, target=target))
        context.first_byte_at = self._loop.time()
        self._admit_begun(response)
        self._settle(response, "completed", None, usage)

    def _settle(self, response: RealtimeResponse, outcome: Outcome, fault: GatewayError | None, usage: Usage) -> None:
        context = response.context
        context.usage = usage
        now, now_ms = self._loop.time(), int(self._services.clock() * 1000)
        self._services.billing.settlement.settle(context, outcome, fault, now=now, now_ms=now_ms)
