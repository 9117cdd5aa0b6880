"""Forwarding of one request to a provider: a whole answer is read and checked, a stream is passed on as it arrives."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import attrs

from gateway.domain.frozen import frozen
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, estimate_tokens
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.anthropic.response import build_count_answer
from gateway.formats.json_or_stream import JsonOrStream
from gateway.formats.openai.errors import Secrets
from gateway.formats.openai.responses import find_response_id
from gateway.formats.sse import KEEPALIVE
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import PLAIN, ResponseMode, Translator
from gateway.large_work import work_aside
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.failover import Proxy
from gateway.proxy.open_response import open_response
from gateway.proxy.stream import StreamRelay
from gateway.proxy.stream_timeouts import StreamTimeouts
from gateway.request_context import Grant
from gateway.routing.route import Route
from gateway.routing.target import Attempt, find_answered
from gateway.upstream.interface import HttpResponse

MAX_ANSWER_BYTES = 64 * 1024 * 1024
LARGE_ANSWER_BYTES = 1024 * 1024
MAX_CONTAINERS = 200_000
MAX_VALUES = 6_000_000
"""Limits for an answer over ``LARGE_ANSWER_BYTES``: objects and arrays; commas, also those in strings. 64 MiB of empty
objects would take gigabytes of memory. The largest batch of embeddings has some millions of numbers."""

OpenedStream = tuple[HttpResponse, StreamTransform, Callable[[], StreamTransform] | None]
"""The provider's response, its transform, and what makes the transform if the provider sends one JSON answer instead
of a stream (None if it cannot)."""
OpenStream = Callable[[Proxy, Attempt, InferenceRequest], Awaitable[OpenedStream]]


@frozen
class ProviderAnswer:
    """A whole answer for the client."""

    body: bytes = attrs.field(repr=False)
    media_type: str = PLAIN.media_type


def fetch(proxy: Proxy, grant: Grant, route: Route, request_id: str) -> Coroutine[Any, Any, ProviderAnswer]:
    """Return a whole answer. Raises as ``Proxy.with_failover`` does."""
    if not route.options:  # a request to count tokens, for a model that no channel can count for
        return _estimate(grant.call)
    return proxy.with_failover(grant.delivery, route, request_id, partial(_read, proxy, grant))


async def _read(proxy: Proxy, grant: Grant, attempt: Attempt) -> ProviderAnswer:
    call, exchange = grant.call, attempt.exchange
    reply = await open_response(proxy, attempt, call)
    raw = await reply.read(MAX_ANSWER_BYTES)
    if len(raw) > LARGE_ANSWER_BYTES:
        body, grant.delivery.usage = await work_aside(_parse_large, exchange, raw, attempt.channel.secrets)
        attempt.check()
    else:
        body, grant.delivery.usage = exchange.parse_answer(raw, attempt.channel.secrets)
    if attempt.option.find_price is not None:
        grant.delivery.answered = find_answered(body)
    if call.operation == "responses":
        grant.delivery.response_id = find_response_id(body)
    proxy.record_success(attempt)
    return ProviderAnswer(body, exchange.manner.media_type)


async def open_provider_stream(proxy: Proxy, attempt: Attempt, call: InferenceRequest) -> OpenedStream:
    """Send the request, and return the provider's stream at its headers. Raises ``ProviderError``."""
    reply = await open_response(proxy, attempt, call)
    exchange, secrets = attempt.exchange, attempt.channel.secrets
    gate = exchange.open_gate(secrets)
    if exchange.manner.binary:
        return reply, gate, None
    return reply, gate, lambda: JsonOrStream(lambda raw: exchange.build_whole(raw, secrets))


async def stream(
    proxy: Proxy,
    grant: Grant,
    route: Route,
    client_stream: ClientStream,
    request_id: str,
    *,
    settle: Callable[[ProviderError | None], None],
    open_stream: OpenStream = open_provider_stream,
) -> ProviderError | None:
    """Stream an answer to the client.

    ``settle`` is called with the error, if any, before the end mark is sent. Returns the error that ended the stream
    after its first byte. Raises ``ClientDisconnected``, and as ``with_failover`` while nothing has been sent.
    """

    async def send(attempt: Attempt) -> ProviderError | None:
        call, manner, timeouts = grant.call, attempt.exchange.manner, attempt.timeouts
        if call.files or call.image is not None:  # the first byte comes when the upload or the image is complete
            timeouts = attrs.evolve(timeouts, first_byte_s=timeouts.total_s)
        attempt.attach_client(client_stream)
        keep_alive = partial(client_stream.write, b"" if manner.binary else KEEPALIVE)
        watch = StreamTimeouts(timeouts, proxy.timer, give_up=attempt.abort, keep_alive=keep_alive)
        try:
            reply, gate, open_whole = await open_stream(proxy, attempt, call)
            relay = StreamRelay(
                reply,
                gate,
                grant,
                client_stream,
                timeouts=watch,
                sound_type=_find_type(reply, manner) if manner.binary else None,
                answered=partial(_record_first_event, proxy, grant, attempt),
                open_whole=open_whole,
            )
            return await relay.run(request_id, partial(_end, proxy, attempt, settle))
        finally:
            watch.stop()

    return await proxy.with_failover(grant.delivery, route, request_id, send)


def _record_first_event(proxy: Proxy, grant: Grant, attempt: Attempt, received: Iterable[bytes]) -> None:
    """Record the success of an attempt, and what its first event, which ends ``received``, says about the answer."""
    proxy.record_success(attempt)
    if attempt.option.find_price is not None:
        grant.delivery.answered = find_answered(b"".join(received))
    if grant.call.operation == "responses":
        grant.delivery.response_id = find_response_id(b"".join(received))


def _end(
    proxy: Proxy, attempt: Attempt, settle: Callable[[ProviderError | None], None], error: ProviderError | None
) -> None:
    """Record the end of a stream of which something has been sent, before the client sees its end."""
    if error is None:
        attempt.pending = False
    else:
        proxy.record_failure(attempt, error)
    settle(error)


async def _estimate(call: InferenceRequest) -> ProviderAnswer:
    """Return the gateway's own estimate of the tokens of a prompt."""
    return ProviderAnswer(build_count_answer(estimate_tokens(call.prompt_chars)))


def _parse_large(exchange: Translator, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
    """Parse a large answer like ``Translator.parse_answer``, unless it has more values than any answer needs."""
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS or raw.count(b",") > MAX_VALUES:
        raise ProviderBadResponse("The provider's answer has too many parts")
    return exchange.parse_answer(raw, secrets)


def _find_type(reply: HttpResponse, manner: ResponseMode) -> str:
    """Return the media type of an audio stream: the provider's if it names an audio type."""
    named = reply.headers.get("Content-Type", "").strip().lower()
    return named if named.startswith("audio/") and named.isascii() and named.isprintable() else manner.media_type
