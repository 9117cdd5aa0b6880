"""The first half of an attempt: the request is sent, and the provider's status and headers are checked."""

from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError
from gateway.formats.content_filter import parse_image_fault
from gateway.formats.openai.errors import parse_error, parse_fault, parse_retry_after
from gateway.formats.openai.speech import is_sound_type
from gateway.proxy.failover import Proxy
from gateway.routing.target import Attempt
from gateway.upstream.interface import HttpResponse

MAX_ERROR_BYTES = 64 * 1024
OK = range(200, 300)


async def open_response(proxy: Proxy, attempt: Attempt, call: InferenceRequest) -> HttpResponse:
    """Send the request and return the response at its headers. Raises ``ProviderError`` unless it is a good answer."""
    timeouts = attempt.timeouts
    # The upload of files may take longer than the provider's first event, and so may an image.
    waits_for_event = call.stream and not call.files and call.image is None
    timeout_s = min(timeouts.first_byte_s, timeouts.total_s) if waits_for_event else timeouts.total_s
    reply = await attempt.wait_for(_send(proxy, attempt, call), timeout_s, proxy.timer)
    attempt.check()
    return reply


async def _send(proxy: Proxy, attempt: Attempt, call: InferenceRequest) -> HttpResponse:
    request = attempt.plan(call, await attempt.pack_aside()) if call.large else attempt.plan(call)
    reply = attempt.response = await proxy.client.send(request)
    if reply.status not in OK:
        attempt.pending = False
        raise await _parse_error_response(proxy, reply, attempt, call)
    if call.stream and attempt.exchange.manner.binary:
        await _check_audio(reply, attempt)
    return reply


async def _parse_error_response(
    proxy: Proxy, reply: HttpResponse, attempt: Attempt, call: InferenceRequest
) -> ProviderError:
    raw = await reply.read(MAX_ERROR_BYTES)
    retry_after_s = parse_retry_after(reply.headers.get("Retry-After"), proxy.clock())
    parse = parse_fault if call.image is None else parse_image_fault
    path = attempt.option.endpoint.path.replace("{model}", attempt.option.model)
    return parse(reply.status, raw, attempt.channel.secrets, provider_retry_after_s=retry_after_s, path=path)


async def _check_audio(reply: HttpResponse, attempt: Attempt) -> None:
    """Raise ``ProviderBadResponse`` if the provider did not answer with audio.

    Whether an answer is a stream of events, its beginning says; see ``proxy/stream.py``.
    """
    if is_sound_type(reply.headers.get("Content-Type", "").lower()):
        return
    error = parse_error(await reply.read(MAX_ERROR_BYTES), attempt.channel.secrets)
    if error is not None:
        raise ProviderBadResponse(f"The provider reported an error: {error.message}")
    raise ProviderBadResponse("The provider did not answer with sound")
