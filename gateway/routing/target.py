"""A channel that may serve a request, and one attempt on it."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

import attrs
import orjson

from gateway.deadlines import DeadlineTimer, Timeout
from gateway.domain.capability import UNKNOWN_CAPABILITY, Capability
from gateway.domain.channel import Channel, Timeouts
from gateway.domain.circuits import EndpointKey
from gateway.domain.http_request import HttpRequest, RequestTemplate
from gateway.domain.inference_request import OUTPUT_LIMITS, InferenceRequest
from gateway.domain.model_limits import ModelLimits, find_limits
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import ONE_PPM, Price, compute_cost_nanos, multiply_ppm
from gateway.domain.request_log import FailedAttempt
from gateway.domain.route import StepPlace
from gateway.domain.upload import Content
from gateway.domain.usage import Usage, without_cache
from gateway.errors import InvalidRequest, ProviderError, ProviderTimeout, RequestCancelled, UnsupportedByProvider
from gateway.formats.errors.output_limit import lower_limits
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.translator import ResponseIdentity, Translator
from gateway.formats.usage.detail_bounds import bound_details
from gateway.formats.wire.request_body import JSON, Form, Payload, RawFile, build_payload
from gateway.frozen import frozen
from gateway.large_work import run_in_thread
from gateway.providers.base import Endpoint, EndpointRequest
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_state import ChannelSlot, ChannelState
from gateway.upstream.interface import HttpResponse

if TYPE_CHECKING:  # imported by gateways that balance by measurement
    from gateway.routing.performance import Performance

_MAX_COST_FACTOR = 4
UNKNOWN_SECONDS = 10
"""Assumed length of a video if neither the request nor the configuration of the model names one."""
Packed = tuple[bytes | Content, str]
"""A finished request body, and its Content-Type."""
NO_BODY = EndpointRequest(None)


_DATE_SUFFIX_PATTERN = re.compile(r"(?:[-@]\d{4,8}(?:-\d\d){0,2})?(?::[a-z]+)?")
_MODEL_PATTERN = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.){1,256}")')
NO_NAMED_PRICES: Mapping[str, Price | None] = {}


@frozen
class Target:
    """A channel that may serve a request, with the provider's name of the model and the price for the caller.

    The price is the one at the time of routing. ``is_certain`` is False while the channel's model list is unknown.

    Attributes:
        unpriced: the model has no price, or none for the unit that the request buys.
        named: prices of other models that the request allows, by the provider's names.
        left_out_tools: those to remove from the request, as ``tools.web_search``: the channel does not allow them.
        find_price: returns the price of the model named in the provider's answer; None if that is always ``model``.
        losses: how much of the request the channel leaves out; channels with the lowest number are preferred.
        place: the place in a route; None: the request names a model.
        limits: the limits of ``model``; those of the gateway's tables, unless the router knows configured ones.
        reports_cost: the cost reported by the provider is charged, unless the operator has set ``price``.
    """

    state: ChannelState
    endpoint: Endpoint
    model: str
    price: Price | None = None
    multiplier_ppm: int = ONE_PPM
    is_certain: bool = True
    capability: Capability = UNKNOWN_CAPABILITY
    unpriced: bool = False
    named: Mapping[str, Price | None] = NO_NAMED_PRICES
    find_price: Callable[[str], Price | None] | None = None
    left_out_tools: tuple[str, ...] = ()
    reports_cost: bool = False
    losses: int = 0
    place: StepPlace | None = None
    limits: ModelLimits = attrs.field(eq=False, repr=False)
    endpoint_key: EndpointKey = attrs.field(init=False, eq=False, repr=False)
    """The key of the target's circuit breakers: API format and model."""

    @limits.default
    def _find_limits(self) -> ModelLimits:
        return find_limits(self.model)

    @endpoint_key.default
    def _find_endpoint_key(self) -> EndpointKey:
        return self.endpoint.wire, self.model

    @property
    def channel(self) -> Channel:
        return self.state.channel

    def fans_out(self, inference: InferenceRequest) -> bool:
        """Return whether several provider requests are needed to make the choices of ``inference``."""
        return self.endpoint.one_choice and inference.choices > 1 and inference.operation == "chat"

    def bound(self, inference: InferenceRequest) -> Usage:
        """Return the maximum usage of a request on this channel: each of several provider requests bills the prompt."""
        need, max_images = inference.need, self.capability.max_n
        if self.fans_out(inference):
            return attrs.evolve(
                need,
                prompt_tokens=need.prompt_tokens * inference.choices,
                written_tokens=need.written_tokens * inference.choices,
                written_long_tokens=need.written_long_tokens * inference.choices,
            )
        if inference.video is not None:
            video = self.capability.fill(inference.video)
            seconds = video.seconds or UNKNOWN_SECONDS
            return attrs.evolve(need, duration_ms=seconds * 1_000, size=video.size or "")
        if inference.image is None or max_images is None or inference.image.count <= max_images:
            return need
        calls = -(-inference.image.count // max_images)
        return attrs.evolve(need, prompt_tokens=need.prompt_tokens * calls)

    def cost(self, usage: Usage) -> int:
        """Return the cost of ``usage``, in nano-USD."""
        return compute_cost_nanos(self.price, usage, self.multiplier_ppm)

    def find_reservation(self, inference: InferenceRequest) -> int:
        """Return the highest possible cost of ``inference`` on this channel, in nano-USD, to reserve it."""
        return self.find_most(bound_details(self.bound(inference), inference, self.price))

    def charge(self, answered: str, usage: Usage, inference: InferenceRequest) -> int:
        """Return the charge for ``usage``, in nano-USD: the result of ``find_cost``, or the cost the provider reports.

        A reported cost is limited to ``_MAX_COST_FACTOR`` times the highest cost at the listed price. It may exceed the
        listed price, because some hosts of a model charge more than the cheapest one, and a provider may bill content
        that it has read by itself.
        """
        reported_nanos = self._find_reported_nanos(usage)
        if reported_nanos is None:
            return self.find_cost(answered, usage)
        cost = multiply_ppm(reported_nanos, self.multiplier_ppm)
        return cost if self.price is None else min(cost, _MAX_COST_FACTOR * self.find_reservation(inference))

    def find_saved_nanos(self, answered: str, usage: Usage) -> int:
        """Return what the provider's prompt cache has saved, in nano-USD; see ``RequestRecord.saved_nanos``.

        0 if the provider reports the cost itself, because its price of an uncached prompt is unknown.
        """
        if self._find_reported_nanos(usage) is not None:
            return 0
        return self.find_cost(answered, without_cache(usage)) - self.find_cost(answered, usage)

    def _find_reported_nanos(self, usage: Usage) -> int | None:
        """Return the cost that the provider reports, in nano-USD. None if the listed price counts."""
        if usage.details is None or not self.reports_cost or not (self.price is None or self.price.built_in):
            return None
        return usage.details.cost_nanos

    def find_most(self, usage: Usage) -> int:
        """Return the cost of ``usage`` at the most expensive of the models that the request names, in nano-USD."""
        if not self.named:
            return self.cost(usage)
        return max(
            self.cost(usage), *(compute_cost_nanos(price, usage, self.multiplier_ppm) for price in self.named.values())
        )

    def find_cost(self, answered: str, usage: Usage) -> int:
        """Return the cost of ``usage``, in nano-USD, at the higher price of the requested and the ``answered`` model.

        A requested name with a date appended is the same model. If the provider named no model (``""``), the most
        expensive of the allowed ones counts.
        """
        if not answered:
            return self.find_most(usage)
        if self.find_price is None or _is_same(answered, self.model):
            return self.cost(usage)
        price = self.named.get(answered) or self.find_price(answered)
        return max(self.cost(usage), compute_cost_nanos(price, usage, self.multiplier_ppm))


T = TypeVar("T")


class AbortableStream(Protocol):
    """The part of a client's stream that an attempt uses; see ``proxy/client_stream.py``."""

    def wake(self) -> None:
        """Stop waiting for the client to read."""
        ...

    def discard_writes(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        """Discard all further writes, and call ``give_up`` once they exceed ``max_bytes``."""
        ...


@attrs.define(eq=False)
class Attempt:
    """One attempt to serve a request: over one channel, with one of its keys. ``abort`` ends it in any phase.

    ``channel`` is the channel's configuration when the attempt began, whatever has changed since.

    Attributes:
        once: the request uses a new connection and is never sent twice; see ``HttpRequest``.
        pending: the request was written, and the provider has neither rejected nor completely answered it. It may
            still be processed, or may have been processed before the attempt failed.
        images: how many images the attempt has begun to request so far.
        timeouts: the channel's timeouts, or shorter ones while another channel could serve the request.
        cancelled: the error if the request was cancelled, else None. It precedes any other error of the attempt.
        abort_error: the error passed to ``abort``; None before.
        began_at: the start of the attempt, in loop time.
        failure: the outcome for the request log; None unless the attempt failed before the first byte.
        answered: the model named in the provider's answer, if it may differ from the requested one; empty if none is
            named.
        response_id: the provider's id of the response, if the provider may have stored it.
        client: the client's stream while the attempt runs, so that ``abort`` can wake a writer that waits for the
            client to read; None if there is no stream.
        several: the client's request, if its choices take several provider requests; see ``proxy/fan_out.py``.
        affinity: where the request's conversation was answered before: nowhere (``new``), here (``kept``) or elsewhere
            (``moved``); empty without a conversation, or for a first message that was sent before.
        error_body: what the provider answered to a failed attempt; empty if nothing.
        output_limit: the maximum of output tokens that the provider or the configuration has named for the model; 0
            if there is none, or the request stays below.
        performance: the measurements to which the answer is added; None: it is not measured.
    """

    target: Target
    channel: Channel
    slot: ChannelSlot
    translator: Translator
    timeouts: Timeouts = attrs.field()
    once: bool = False
    pending: bool = False
    images: int = 0
    cancelled: RequestCancelled | None = None
    response: HttpResponse | None = None
    began_at: float = 0.0
    failure: FailedAttempt | None = None
    answered: str = ""
    response_id: str = ""
    _timeout: Timeout | None = None
    abort_error: ProviderError | None = None
    client: AbortableStream | None = None
    several: InferenceRequest | None = None
    error_body: bytes = attrs.field(default=b"", repr=False)
    output_limit: int = 0
    affinity: Literal["", "new", "kept", "moved"] = ""
    performance: "Performance | None" = None

    @timeouts.default
    def _find_timeouts(self) -> Timeouts:
        return self.channel.timeouts

    @property
    def requests(self) -> int:
        return 1 if self.several is None else self.several.choices

    @property
    def identity(self) -> ResponseIdentity:
        """The id, model and time of the answer."""
        return self.translator.identity

    async def wait_for(self, work: Awaitable[T], timeout_s: float, timer: DeadlineTimer) -> T:
        """Await ``work`` until ``timeout_s`` passes (``ProviderTimeout``) or ``abort`` is called with an error."""
        self._timeout = Timeout(timer, timeout_s)
        try:
            with self._timeout:
                return await work
        except TimeoutError:
            timeout = ProviderTimeout("The provider took too long to answer", phase="headers")
            raise self.cancelled or self.abort_error or timeout from None
        finally:
            self._timeout = None

    def check(self) -> None:
        """Raise the error passed to ``abort``, if any: work that finished at the same moment was not interrupted."""
        if self.abort_error is not None:
            raise self.cancelled or self.abort_error

    def cancel(self, error: RequestCancelled) -> None:
        """End the attempt with ``error``; no other attempt follows."""
        self.cancelled = error
        self.abort(error)

    def abort(self, error: ProviderError) -> None:
        """End the attempt with ``error``, whatever it is waiting for."""
        self.abort_error = error
        if self._timeout is not None:
            self._timeout.end()
        elif self.response is not None:
            self.response.abort(error)
        if self.client is not None:
            self.client.wake()

    def drain(self, max_bytes: int, give_up: Callable[[], None]) -> None:
        """Continue without the client. Call ``give_up`` if the stream has more than ``max_bytes`` left."""
        if self.client is not None:
            self.client.discard_writes(max_bytes, give_up)

    def note_written(self) -> None:
        """Record that the request was written to the provider."""
        self.pending = True

    @property
    def build_body(self) -> Callable[[], Payload]:
        """The function that builds the body in the provider's format, its output limit lowered if necessary."""
        return self._build_limited_body if self.output_limit else self.translator.write_body

    def _build_limited_body(self) -> Payload:
        body, translator = self.translator.write_body(), self.translator
        if isinstance(body, dict) and lower_limits(body, self.output_limit):
            name = min(OUTPUT_LIMITS & translator.inference.settings.keys(), default="max_tokens")
            translator.adapted = tuple(dict.fromkeys((*translator.adapted, name)))
        else:
            self.output_limit = 0
        return body

    def build_request(self, inference: InferenceRequest, packed: Packed | None = None) -> HttpRequest:
        """Build the request to the provider; ``packed`` comes from ``pack_aside``.

        Raises ``UnsupportedByProvider``, and ``ProviderAuthError`` for an unusable key.
        """
        endpoint, translator = self.target.endpoint, self.translator
        build = (
            self._build_limited_body if self.output_limit else translator.write_body
        )  # ``build_body``, without its call
        body, media_type = packed or pack(build, endpoint, self.target.model, translator.identity.id, translator)
        once = self.once or bool(OPERATIONS[inference.operation].media)
        mode = translator.mode
        accept = mode.stream_type if inference.stream and not mode.binary else mode.accept
        headers = _build_anthropic_headers(inference) if endpoint.wire.startswith("anthropic") else ()
        kind = (endpoint.wire, self.target.model, inference.stream, accept, media_type, headers)
        template = self.slot.key.templates.get(kind)
        if template is None or template.channel is not self.channel:
            path = translator.path
            endpoint_request = EndpointRequest(
                body, media_type, stream=inference.stream, accept=accept, path=path, headers=headers
            )
            http_request = self.access.address(endpoint_request, translator.identity.now_s)
            is_cacheable = media_type == JSON and http_request.grant is None and path is None
            if is_cacheable and PROVIDERS[self.channel.provider].has_static_signature:
                self.slot.key.store_template(
                    kind, RequestTemplate(self.channel, http_request.url, http_request.headers)
                )
            return attrs.evolve(http_request, once=once, on_written=self.note_written)
        url, shared_headers, channel, on_written = template.url, template.headers, self.channel, self.note_written
        return HttpRequest(
            "POST", url, shared_headers, body, channel.timeouts, channel.proxy, once, on_written, template
        )

    async def pack_aside(self) -> Packed:
        """Build the body of a large request in a thread. Raises ``UnsupportedByProvider``."""
        target, translator = self.target, self.translator
        return await run_in_thread(
            pack, self.build_body, target.endpoint, target.model, translator.identity.id, translator
        )

    def build_provider_request(self, provider_request: ProviderRequest) -> HttpRequest:
        """Build one of the requests for images or a video. Raises ``UnsupportedByProvider``, ``ProviderAuthError``."""
        http_request = self.access.build_request(
            provider_request,
            self.identity.now_s,
            once=provider_request.method == "POST" and not provider_request.repeatable,
        )
        return attrs.evolve(http_request, on_written=self.note_written)

    @property
    def access(self) -> "ProviderAccess":
        """The address and credentials for the attempt's requests."""
        return ProviderAccess(
            self.channel, self.target.endpoint, self.target.model, self.slot.key.key, self.identity.id
        )


@frozen
class ProviderAccess:
    """The address and credentials for a channel's requests.

    ``mark`` goes into the boundary of a form, and must be unguessable if there may be one.
    """

    channel: Channel
    endpoint: Endpoint
    model: str
    key: str = attrs.field(repr=False)
    mark: str

    def build_request(self, provider_request: ProviderRequest, now_s: int, *, once: bool = False) -> HttpRequest:
        """Build a request at ``now_s`` (Unix s). If ``once`` is true, it is sent at most once.

        Raises ``UnsupportedByProvider``, ``ProviderAuthError``.
        """
        endpoint_request = NO_BODY
        if (body := provider_request.body) is not None:
            endpoint_request = EndpointRequest(*pack(lambda: body, self.endpoint, self.model, self.mark))
        endpoint_request = attrs.evolve(
            endpoint_request,
            method=provider_request.method,
            path=provider_request.path,
            headers=provider_request.headers,
        )
        return attrs.evolve(self._toward(provider_request.host).address(endpoint_request, now_s), once=once)

    def _toward(self, host: str | None) -> "ProviderAccess":
        """Return the access for another host of the vendor's domain. For other domains it is unchanged."""
        own_url = urlsplit(self.channel.base_url)
        if host is None or own_url.scheme != "https" or find_domain(own_url.hostname or "") != find_domain(host):
            return self
        return attrs.evolve(self, channel=attrs.evolve(self.channel, base_url=own_url._replace(netloc=host).geturl()))

    def address(self, endpoint_request: EndpointRequest, now_s: int) -> HttpRequest:
        provider = PROVIDERS[self.channel.provider]
        return provider.build_request(
            self.channel, self.endpoint, endpoint_request, model=self.model, key=self.key, now_s=now_s
        )


def find_domain(host: str) -> str:
    """Return the last two labels of a host name."""
    return ".".join(host.split(".")[-2:])


def find_answering_model(received: bytes) -> str:
    """Return the first model name in an answer; "" without one. In generated text, the quotation marks are escaped."""
    start = received.find(b'"model"')  # ten times as fast as the regular expression on megabytes of image data
    match = _MODEL_PATTERN.search(received, start) if start >= 0 else None
    try:
        return str(orjson.loads(match[1])) if match else ""
    except orjson.JSONDecodeError:
        return ""


def _is_same(answered: str, requested: str) -> bool:
    """Return whether both names mean the same model: a provider may append a date."""
    requested = requested.partition(":")[0]
    return answered.startswith(requested) and _DATE_SUFFIX_PATTERN.fullmatch(answered, len(requested)) is not None


def pack(
    build: Callable[[], Payload], endpoint: Endpoint, model: str, mark: str, translator: Translator | None = None
) -> Packed:
    """Serialize the body that ``build`` returns, after the vendor's quirks were applied.

    ``translator`` records the fields that they changed. Raises ``UnsupportedByProvider``.
    """
    try:
        body = build()
        if endpoint.quirks and not isinstance(body, RawFile):
            changed_fields = endpoint.apply_quirks(body.fields if isinstance(body, Form) else body, model)
            if changed_fields and translator is not None:
                translator.adapted = tuple(dict.fromkeys((*translator.adapted, *changed_fields)))
        return build_payload(body, mark)
    except InvalidRequest as refused:
        raise UnsupportedByProvider(refused.message, param=refused.param) from None


def _build_anthropic_headers(inference: InferenceRequest) -> tuple[tuple[str, str], ...]:
    """Return the client's Anthropic headers, without which the body may be misread."""
    headers = (("anthropic-version", inference.version), ("anthropic-beta", inference.features))
    return tuple((name, value) for name, value in headers if value)
