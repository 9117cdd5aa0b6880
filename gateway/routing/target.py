"""A channel that may serve a call, and a call that is made over it."""

import re
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar

import attrs
import orjson

from gateway.deadlines import DeadlineTimer, Timeout
from gateway.domain.capability import UNKNOWN, Capability
from gateway.domain.channel import Channel, Timeouts
from gateway.domain.circuits import Place
from gateway.domain.http_request import HttpRequest, RequestTemplate
from gateway.domain.inference_request import MAKES_MEDIA, InferenceRequest
from gateway.domain.price import ONE_PPM, Price, cost_nanos
from gateway.domain.upload import Content
from gateway.domain.usage import Usage
from gateway.errors import InvalidRequest, ProviderError, ProviderTimeout, RequestCancelled, UnsupportedByProvider
from gateway.formats.image_backend import ProviderCall
from gateway.formats.request_body import JSON, Form, Payload, build_payload
from gateway.formats.translator import ResponseIdentity, Translator
from gateway.large_work import work_aside
from gateway.providers.base import Endpoint, EndpointRequest
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_state import ChannelState, Lease
from gateway.upstream.interface import HttpResponse

UNKNOWN_SECONDS = 10
"""Of a video of which nobody has said how long it is to be, by a model of which nobody has said how long it makes."""
Packed = tuple[bytes | Content, str]
"""A body as it is sent, and its Content-Type."""
EVENT_STREAM = "text/event-stream"
NOTHING_SAID = EndpointRequest(None)


_DATED = re.compile(r"(?:[-@]\d{4,8}(?:-\d\d){0,2})?(?::[a-z]+)?")
_MODEL = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.){1,256}")')
NONE_NAMED: Mapping[str, Price | None] = MappingProxyType({})


@attrs.frozen
class Target:
    """One channel that may serve a call, with the provider's own name of the model, and what it costs the caller.

    The price is that of the moment of routing: whatever is changed later is for later calls. ``sure`` is False where
    the channel's own list of models is not known yet.

    Attributes:
        named: models that the call lets the provider answer with instead, by the provider's names, and their prices.
        find_price: the price of whatever model the provider says has answered; None if none but ``model`` can.
    """

    line: ChannelState
    endpoint: Endpoint
    model: str
    price: Price | None = None
    multiplier_ppm: int = ONE_PPM
    sure: bool = True
    capability: Capability = UNKNOWN
    named: Mapping[str, Price | None] = NONE_NAMED
    find_price: Callable[[str], Price | None] | None = None
    place: Place = attrs.field(init=False, eq=False, repr=False)
    """Of its calls, among the circuits of the channel."""

    @place.default
    def _find_place(self) -> Place:
        return self.endpoint.wire, self.model

    @property
    def channel(self) -> Channel:
        """The channel."""
        return self.line.channel

    def bound(self, call: InferenceRequest) -> Usage:
        """What ``call`` may use here. Pictures that take several calls have their prompt read by each of them.

        A video is as long as the model makes it where its caller has not said how long.
        """
        need, most = call.need, self.capability.max_n
        if call.video is not None:
            video = self.capability.fill(call.video)
            seconds = video.seconds or UNKNOWN_SECONDS
            return attrs.evolve(need, duration_ms=seconds * 1_000, size=video.size or "")
        if call.image is None or most is None or call.image.count <= most:
            return need
        calls = -(-call.image.count // most)
        return attrs.evolve(need, prompt_tokens=need.prompt_tokens * calls)

    def cost(self, usage: Usage) -> int:
        """What ``usage`` costs, in nano-USD."""
        return cost_nanos(self.price, usage, self.multiplier_ppm)

    def find_most(self, usage: Usage) -> int:
        """What ``usage`` costs at most, whichever of the models answers that the call names."""
        if not self.named:
            return self.cost(usage)
        return max(self.cost(usage), *(cost_nanos(price, usage, self.multiplier_ppm) for price in self.named.values()))

    def cost_of(self, answered: str, usage: Usage) -> int:
        """What ``usage`` costs if the provider says that the model ``answered`` has answered: the dearer of the two.

        A dated name is that of the same model. If nothing is known (``""``), it is the dearest of those named.
        """
        if not answered:
            return self.find_most(usage)
        if self.find_price is None or _is_same(answered, self.model):
            return self.cost(usage)
        price = self.named.get(answered) or self.find_price(answered)
        return max(self.cost(usage), cost_nanos(price, usage, self.multiplier_ppm))


T = TypeVar("T")


class AbortableStream(Protocol):
    """The client's stream, as an attempt knows it; see ``proxy/client_stream.py``."""

    def wake(self) -> None:
        """Stop waiting for the client to read."""
        ...

    def leave(self, most_bytes: int, give_up: Callable[[], None]) -> None:
        """Drop what is written from now on, and call ``give_up`` after more than ``most_bytes``."""
        ...


@attrs.define(eq=False)
class Attempt:
    """One try of a request: over one channel with one of its keys. It can be ended at any time, in any phase.

    The channel is as it was when the attempt began, whatever has been changed since.

    Attributes:
        once: it takes a fresh connection, and no other attempt follows if that breaks; see ``plan.Plan``.
        pending: its request was written to the provider, which has neither refused it nor answered it to its end: the
            provider may be doing what was asked.
        images: how many have been asked for, of a call for images: those of parts that wait have not.
        timeouts: the channel's, or shorter ones while another channel could serve the call.
        cancelled: why the request was cancelled; None if it was not. It goes before any other error of the attempt.
        response: the provider's; None before its headers have come.
    """

    option: Target
    channel: Channel
    lease: Lease
    exchange: Translator
    timeouts: Timeouts = attrs.field()
    once: bool = False
    pending: bool = False
    images: int = 0
    cancelled: RequestCancelled | None = None
    response: HttpResponse | None = None
    _timeout: Timeout | None = None
    _abort_error: ProviderError | None = None
    _client: AbortableStream | None = None

    @timeouts.default
    def _find_timeouts(self) -> Timeouts:
        return self.channel.timeouts

    @property
    def naming(self) -> ResponseIdentity:
        """What its answer is called."""
        return self.exchange.naming

    async def wait_for(self, work: Awaitable[T], timeout_s: float, timer: DeadlineTimer) -> T:
        """Await ``work`` until it finishes, ``timeout_s`` passes, or ``abort`` is called.

        Raises:
            ProviderTimeout: the time is up.
            ProviderError: the error given to ``abort``.
        """
        self._timeout = Timeout(timer, timeout_s)
        try:
            with self._timeout:
                return await work
        except TimeoutError:
            timeout = ProviderTimeout("The provider took too long to answer", phase="headers")
            raise self.cancelled or self._abort_error or timeout from None
        finally:
            self._timeout = None

    def check(self) -> None:
        """Raise the error given to ``abort``: work that ended at that very moment has not been interrupted."""
        if self._abort_error is not None:
            raise self.cancelled or self._abort_error

    def attach_client(self, client: AbortableStream) -> None:
        """Register the client's stream, so that ``abort`` can wake a writer blocked on backpressure."""
        self._client = client

    def cancel(self, error: RequestCancelled) -> None:
        """End the attempt with ``error``; no other attempt follows."""
        self.cancelled = error
        self.abort(error)

    def abort(self, error: ProviderError) -> None:
        """End the attempt with ``error``, whatever it waits for."""
        self._abort_error = error
        if self._timeout is not None:
            self._timeout.end()
        elif self.response is not None:
            self.response.abort(error)
        if self._client is not None:
            self._client.wake()

    def drain(self, most_bytes: int, give_up: Callable[[], None]) -> None:
        """Go on without the client, and call ``give_up`` if a stream has more than ``most_bytes`` left."""
        if self._client is not None:
            self._client.leave(most_bytes, give_up)

    def close(self) -> None:
        """Release the provider's connection, which is closed unless the response has been read to its end."""
        if self.response is not None:
            self.response.close()

    def note_written(self) -> None:
        """Its request was written to the provider."""
        self.pending = True

    def plan(self, call: InferenceRequest, packed: Packed | None = None) -> HttpRequest:
        """The request to the provider, with what ``pack_aside`` has packed, if it has. Raises
        ``UnsupportedByProvider``.
        """
        endpoint, exchange = self.option.endpoint, self.exchange
        body, media_type = packed or pack(exchange.write_body, endpoint, self.option.model, exchange.naming.id)
        once = self.once or call.operation in MAKES_MEDIA
        manner = exchange.manner
        accept = EVENT_STREAM if call.stream and not manner.binary else manner.accept
        headers = _build_extra(call) if endpoint.wire.startswith("anthropic") else ()
        kind = (endpoint.wire, self.option.model, call.stream, accept, media_type, headers)
        template = self.lease.key.templates.get(kind)
        if template is None or template.channel is not self.channel:
            errand = EndpointRequest(body, media_type, stream=call.stream, accept=accept, headers=headers)
            plan = self.way.address(errand, exchange.naming.now_s)
            if media_type == JSON and PROVIDERS[self.channel.provider].sign_at is None:
                self.lease.key.keep(kind, RequestTemplate(self.channel, plan.url, plan.headers))
            return attrs.evolve(plan, once=once, on_written=self.note_written)
        url, headers_, channel, written = template.url, template.headers, self.channel, self.note_written
        return HttpRequest("POST", url, headers_, body, channel.timeouts, channel.proxy, once, written, template)

    async def pack_aside(self) -> Packed:
        """The body of a large call, translated and written by a thread. Raises ``UnsupportedByProvider``."""
        option, exchange = self.option, self.exchange
        return await work_aside(pack, exchange.write_body, option.endpoint, option.model, exchange.naming.id)

    def plan_ask(self, ask: ProviderCall) -> HttpRequest:
        """One request on the way to pictures, or to a video. Raises ``UnsupportedByProvider``."""
        plan = self.way.plan(ask, self.naming.now_s, once=ask.method == "POST" and not ask.passing)
        return attrs.evolve(plan, on_written=self.note_written)

    @property
    def way(self) -> "Way":
        """Where its requests go."""
        return Way(self.channel, self.option.endpoint, self.option.model, self.lease.key.key, self.naming.id)


@attrs.frozen
class Way:
    """A language of a channel, with the key and the model that are named in it.

    Attributes:
        model: the provider's own name of it.
        mark: a word that nobody could have put into what is said; see ``formats/request_body.py``.
    """

    channel: Channel
    endpoint: Endpoint
    model: str
    key: str = attrs.field(repr=False)
    mark: str

    def plan(self, ask: ProviderCall, now_s: int, *, once: bool = False) -> HttpRequest:
        """One request, at ``now_s``; ``once``: it must not be sent twice. Raises ``UnsupportedByProvider``."""
        errand = NOTHING_SAID
        if (said := ask.body) is not None:
            errand = EndpointRequest(*pack(lambda: said, self.endpoint, self.model, self.mark))
        errand = attrs.evolve(errand, method=ask.method, path=ask.path, headers=ask.headers)
        return attrs.evolve(self.address(errand, now_s), once=once)

    def address(self, errand: EndpointRequest, now_s: int) -> HttpRequest:
        """The request of an errand."""
        provider = PROVIDERS[self.channel.provider]
        return provider.plan(self.channel, self.endpoint, errand, model=self.model, key=self.key, now_s=now_s)


def find_answered(told: bytes) -> str:
    """The model that the beginning of an answer, or all of it, names first; empty if it names none.

    Within a string of JSON a quotation mark has a backslash before it: what a model says cannot be taken for its name.
    """
    found = _MODEL.search(told)
    try:
        return str(orjson.loads(found[1])) if found else ""
    except orjson.JSONDecodeError:
        return ""


def _is_same(answered: str, asked: str) -> bool:
    """Whether two names are of one model: the vendor that answers may put a date behind it."""
    asked = asked.partition(":")[0]
    return answered.startswith(asked) and _DATED.fullmatch(answered, len(asked)) is not None


def pack(say: Callable[[], Payload], endpoint: Endpoint, model: str, mark: str) -> Packed:
    """What ``say`` returns in bytes; for ``model``, the provider's own name. Raises ``UnsupportedByProvider``."""
    try:
        said = say()
        if endpoint.quirks:
            endpoint.apply_quirks(said.fields if isinstance(said, Form) else said, model)
        return build_payload(said, mark)
    except InvalidRequest as refused:
        raise UnsupportedByProvider(refused.message, param=refused.param) from None


def _build_extra(call: InferenceRequest) -> tuple[tuple[str, str], ...]:
    """The headers of Anthropic's language, which belong to a body that passes as its caller wrote it."""
    told = (("anthropic-version", call.version), ("anthropic-beta", call.features))
    return tuple((name, value) for name, value in told if value)
