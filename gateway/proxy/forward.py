"""Forwards one request to a provider: reads and checks a complete answer, or relays a stream as it arrives."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import attrs

from gateway.deferred import defer_function
from gateway.domain.api_format import OPTIONAL_WIRES, Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.usage import Usage, estimate_tokens
from gateway.errors import EndpointMissing, GatewayError, ProviderBadResponse, ProviderError, ProviderRejected
from gateway.formats.audio.speech import is_sound_type
from gateway.formats.chat.fan_out import MergedStream
from gateway.formats.chat.responses.responses import find_response_id
from gateway.formats.errors.content_filter import parse_image_error
from gateway.formats.errors.openai import Secrets, parse_error, parse_retry_after
from gateway.formats.errors.vendor import parse_worded_error
from gateway.formats.stream import LARGE_ANSWER_BYTES, JsonOrStream, StreamTransform, check_parts
from gateway.formats.translator import EVENT_STREAM, PLAIN_MODE, ResponseMode, Translator
from gateway.formats.wire.sse import KEEPALIVE
from gateway.frozen import quick_frozen
from gateway.large_work import run_by_size, run_in_thread
from gateway.providers.registry import PROVIDERS
from gateway.proxy import fan_out
from gateway.proxy.client_stream import ClientStream
from gateway.proxy.failover import Proxy
from gateway.proxy.stream import MAX_HELD_BYTES, OpenStream, ProviderStream, StreamTimeouts, end_open_stream
from gateway.request_context import RequestContext
from gateway.routing.target import Attempt, Packed, Target, find_answering_model
from gateway.upstream.interface import HttpResponse

MAX_ERROR_BYTES = 64 * 1024
OK_STATUSES = range(200, 300)
_NOT_FOUND, _NOT_ALLOWED = 404, 405
_CHAT_WIRES: tuple[Wire, ...] = ("openai_chat",)
_NO_COUNT_STATUSES = frozenset({404, 405, 501})
"""HTTP statuses that mean that a server cannot count tokens."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024

OpenedStream = tuple[HttpResponse, StreamTransform, Callable[[], StreamTransform] | None]
"""The provider's response, its transform, and the factory of the transform for one JSON answer instead of a stream
(None if that is impossible)."""
StreamOpener = Callable[[Proxy, Attempt], Awaitable[OpenedStream]]


@quick_frozen
class ProviderAnswer:
    """A complete answer for the client."""

    body: bytes = attrs.field(repr=False)
    media_type: str = PLAIN_MODE.media_type


async def open_response(proxy: Proxy, attempt: Attempt) -> HttpResponse:
    """Send the request, and return the response once its headers have arrived.

    Raises ``ProviderError``, also if a stream of audio was requested and the answer has another media type.
    """
    inference, timeouts = attempt.translator.inference, attempt.timeouts
    # The upload of files may take longer than the provider's first event, and so may an image.
    waits_for_event = inference.stream and not inference.files and inference.image is None
    timeout_s = min(timeouts.first_byte_s, timeouts.total_s) if waits_for_event else timeouts.total_s
    response = await attempt.wait_for(_send(proxy, attempt), timeout_s, proxy.timer)
    if attempt.abort_error is not None:
        attempt.check()
    return response


async def _send(proxy: Proxy, attempt: Attempt) -> HttpResponse:
    inference = attempt.translator.inference
    request = (
        attempt.build_request(inference, await attempt.pack_aside())
        if inference.large
        else attempt.build_request(inference)
    )
    response = attempt.response = await proxy.client.send(request)
    if response.status not in OK_STATUSES:
        attempt.pending = False
        raise await _parse_error_response(proxy, response, attempt)
    if inference.stream and attempt.translator.mode.binary:
        await _check_audio(response, attempt)
    return response


async def _parse_error_response(proxy: Proxy, response: HttpResponse, attempt: Attempt) -> ProviderError:
    raw = attempt.error_body = await response.read(MAX_ERROR_BYTES)
    if _is_optional(attempt.target) and _is_path_missing(response.status, raw, attempt):
        proxy.load_balancer.note_missing(attempt.target.state, attempt.target.endpoint.wire)
        return EndpointMissing(f"The provider has no endpoint {attempt.target.endpoint.path}")
    retry_after_s = parse_retry_after(response.headers.get("Retry-After"), proxy.clock())
    parse = parse_worded_error if attempt.translator.inference.image is None else parse_image_error
    path = attempt.target.endpoint.path.replace("{model}", attempt.target.model)
    return parse(response.status, raw, attempt.channel.secrets, provider_retry_after_s=retry_after_s, path=path)


def _is_optional(target: Target) -> bool:
    """Return whether the endpoint is optional: the provider's chat endpoint serves the same requests."""
    provider = PROVIDERS[target.channel.provider]
    return target.endpoint.wire in OPTIONAL_WIRES and provider.find_endpoint(_CHAT_WIRES, target.model) is not None


def _is_path_missing(status: int, raw: bytes, attempt: Attempt) -> bool:
    """Return whether the error means that the server lacks the path, and not the model or an object in the request."""
    if status == _NOT_ALLOWED:
        return True
    error = parse_error(raw, attempt.channel.secrets) if status == _NOT_FOUND else None
    names_model = error is not None and (attempt.target.model in error.message or bool(error.param))
    return status == _NOT_FOUND and not names_model and "previous_response_id" not in attempt.translator.inference.body


async def _check_audio(response: HttpResponse, attempt: Attempt) -> None:
    """Raise ``ProviderBadResponse`` unless the answer is audio. Event streams are recognized later, by their bytes."""
    if is_sound_type(response.headers.get("Content-Type", "").lower()):
        return
    error = parse_error(await response.read(MAX_ERROR_BYTES), attempt.channel.secrets)
    if error is not None:
        raise ProviderBadResponse(f"The provider reported an error: {error.message}")
    raise ProviderBadResponse("The provider's answer is not audio")


def fetch(proxy: Proxy, ctx: RequestContext) -> Coroutine[Any, Any, ProviderAnswer]:
    """Return a complete answer. Raises the errors of ``Proxy.with_failover``.

    If tokens are to be counted and no provider can do it, the answer is the gateway's estimate.
    """
    if not ctx.target_list.targets:
        return _estimate(ctx.inference)  # no channel can count this model's tokens
    answer = proxy.with_failover(ctx, partial(_read, proxy, ctx))
    return _count_or_estimate(answer, ctx.inference) if OPERATIONS[ctx.inference.operation].counts_only else answer


async def _count_or_estimate(answer: Awaitable[ProviderAnswer], inference: InferenceRequest) -> ProviderAnswer:
    """Return the provider's token count, or the gateway's estimate if the provider cannot count."""
    try:
        return await answer
    except ProviderRejected as error:
        if error.status not in _NO_COUNT_STATUSES:
            raise
    return await _estimate(inference)


async def _read(proxy: Proxy, ctx: RequestContext, attempt: Attempt) -> ProviderAnswer:
    translator = attempt.translator
    if attempt.several is not None:
        merging = fan_out.fetch_merged_answer(attempt, partial(_send_one, proxy, attempt), MAX_ANSWER_BYTES)
        body, ctx.usage = await attempt.wait_for(merging, attempt.timeouts.total_s, proxy.timer)
    else:
        response = await open_response(proxy, attempt)
        raw = await response.read(MAX_ANSWER_BYTES)
        if len(raw) > LARGE_ANSWER_BYTES:
            body, ctx.usage = await run_in_thread(_parse_large, translator, raw, attempt.channel.secrets)
            attempt.check()
        else:
            body, ctx.usage = translator.parse_answer(raw, attempt.channel.secrets)
    if attempt.target.find_price is not None:
        attempt.answered = find_answering_model(body)
    if attempt.target.endpoint.wire == "openai_responses":
        attempt.response_id = await run_by_size(len(body), find_response_id, body)
    proxy.load_balancer.record_success(attempt.slot)
    return ProviderAnswer(body, translator.mode.media_type)


async def open_provider_stream(proxy: Proxy, attempt: Attempt) -> OpenedStream:
    """Send the request, and return the stream once its headers have arrived. Raises ``ProviderError``."""
    if attempt.several is not None:
        return await _open_several(proxy, attempt, attempt.several)
    response = await open_response(proxy, attempt)
    translator, secrets = attempt.translator, attempt.channel.secrets
    transform = translator.open_transform(secrets)
    if translator.mode.binary or translator.mode.stream_type != EVENT_STREAM:
        return response, transform, None
    return response, transform, lambda: JsonOrStream(lambda raw: translator.build_whole(raw, secrets))


async def _open_several(proxy: Proxy, attempt: Attempt, inference: InferenceRequest) -> OpenedStream:
    timeouts = attempt.timeouts
    opening = fan_out.open_merged_response(attempt, partial(_send_one, proxy, attempt))
    response = await attempt.wait_for(opening, min(timeouts.first_byte_s, timeouts.total_s), proxy.timer)
    attempt.check()
    return response, MergedStream(inference, response.gates, attempt.channel.secrets), None


async def _send_one(proxy: Proxy, attempt: Attempt, packed: Packed) -> HttpResponse:
    response = await proxy.client.send(attempt.build_request(attempt.translator.inference, packed))
    if response.status not in OK_STATUSES:
        attempt.pending = False
        try:
            raise await _parse_error_response(proxy, response, attempt)
        finally:
            response.close()
    return response


async def stream(
    proxy: Proxy,
    ctx: RequestContext,
    client_stream: ClientStream,
    *,
    settle: Callable[[GatewayError | None], None],
    open_stream: StreamOpener = open_provider_stream,
) -> ProviderError | None:
    """Stream an answer to the client. Return the error that ended the stream after its first byte; None without one.

    ``settle`` is called before the end mark is sent: a client must not get a complete answer without being charged.
    Raises ``ClientDisconnected`` and, before the first byte, the errors of ``with_failover``.
    """

    async def send(attempt: Attempt) -> ProviderError | None:
        inference, mode, timeouts = attempt.translator.inference, attempt.translator.mode, attempt.timeouts
        if inference.files or inference.image is not None:  # the first byte takes as long as the upload or the image
            timeouts = attrs.evolve(timeouts, first_byte_s=timeouts.total_s)
        attempt.client = client_stream
        keep_alive = partial(client_stream.write, b"" if mode.binary else KEEPALIVE)
        watch = StreamTimeouts(timeouts, proxy.timer, give_up=attempt.abort, keep_alive=keep_alive)
        try:
            response, transform, open_whole = await open_stream(proxy, attempt)
            answered = partial(_record_first_event, proxy, attempt)
            provider = ProviderStream(response, transform, timeouts=watch, answered=answered, open_whole=open_whole)
            await provider.await_first_event(comments=not mode.binary)
            sound_type = _find_audio_type(response, mode) if mode.binary else None
            relay_stream = OpenStream(provider, ctx, client_stream, sound_type)
            return await relay_stream.run(partial(_end, proxy, attempt, settle))
        finally:
            watch.stop()
            attempt.client = None  # breaks a reference cycle with the request

    reader = client_stream if OPERATIONS[ctx.inference.operation].conversation else None  # sound has no comments
    try:
        return await proxy.with_failover(ctx, send, reader)
    except GatewayError as error:
        if not ctx.reported_place:
            raise
        return await end_open_stream(error, ctx, client_stream, settle)


def _record_first_event(proxy: Proxy, attempt: Attempt, received: Iterable[bytes]) -> None:
    """Record the success of an attempt, and the answer's model and id, if the pieces ``received`` so far name them."""
    proxy.load_balancer.record_success(attempt.slot)
    if attempt.target.find_price is not None:
        attempt.answered = find_answering_model(b"".join(filter(None, received)))
    if attempt.target.endpoint.wire == "openai_responses":
        attempt.response_id = find_response_id(b"".join(filter(None, received))[:MAX_HELD_BYTES])


def _end(
    proxy: Proxy, attempt: Attempt, settle: Callable[[ProviderError | None], None], error: ProviderError | None
) -> None:
    if error is None:
        attempt.pending = False
    else:
        proxy.record_failure(attempt, error)
    settle(error)


async def _estimate(inference: InferenceRequest) -> ProviderAnswer:
    is_google = OPERATIONS[inference.operation].api == "google"
    build = defer_function(
        f"formats.chat.{'gemini.token_counts' if is_google else 'anthropic.response'}:build_count_answer"
    )
    return ProviderAnswer(build(estimate_tokens(inference.prompt_chars)))


def _parse_large(translator: Translator, raw: bytes, secrets: Secrets) -> tuple[bytes, Usage]:
    """Parse a large answer. Raises ``ProviderBadResponse``, also for more JSON values than any answer needs."""
    check_parts(raw)
    return translator.parse_answer(raw, secrets)


def _find_audio_type(response: HttpResponse, mode: ResponseMode) -> str:
    """Return the media type of an audio stream: the provider's, if that is an audio type, else that of the mode."""
    media_type = response.headers.get("Content-Type", "").strip().lower()
    return (
        media_type
        if media_type.startswith("audio/") and media_type.isascii() and media_type.isprintable()
        else mode.media_type
    )
