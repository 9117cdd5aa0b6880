"""A real chat request of one token to a channel: it shows whether key, model and endpoint work together."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from gateway.domain.api_format import WIRES
from gateway.domain.channel import Channel, is_glob
from gateway.errors import InvalidRequest, ProviderTimeout
from gateway.formats.json_or_stream import check_parts
from gateway.formats.openai.chat import parse_chat_call
from gateway.formats.registry import make_exchange
from gateway.formats.translator import ResponseIdentity
from gateway.formats.vendor_errors import parse_worded_fault
from gateway.providers.base import EndpointRequest
from gateway.providers.registry import PROVIDERS
from gateway.routing.target import Way, pack
from gateway.upstream.interface import HttpClient

SendChat = Callable[[Channel, str], Awaitable[int]]
"""Sends one request to a channel for a model, as ``send_chat`` does."""
REQUEST_TIMEOUT_S = 30.0
MAX_BYTES = 1024 * 1024
_OK = range(200, 300)


async def send_chat(upstream: HttpClient, channel: Channel, model: str, *, now_s: int) -> int:
    """Send one chat request of one token with the channel's first key, and return the milliseconds of the answer.

    Raises:
        InvalidRequest: the channel's provider has no chat for ``model``.
        ProviderError: it refused the request, or did not answer it.
    """
    provider, theirs = PROVIDERS[channel.provider], channel.upstream_model(model)
    endpoint = provider.find_endpoint(WIRES["chat"], theirs)
    if endpoint is None:
        raise InvalidRequest(f"The provider {channel.provider!r} has no chat for the model {model!r}", param="model")
    call = parse_chat_call({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
    exchange = make_exchange(call, endpoint.wire, ResponseIdentity("test", theirs, now_s))
    body, media_type = pack(exchange.write_body, endpoint, theirs, "test")
    way = Way(channel, endpoint, theirs, next(iter(channel.api_keys), ""), "test")
    request = way.address(EndpointRequest(body, media_type, accept=exchange.mode.accept), now_s)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            reply = await upstream.send(request)
            try:
                raw = await reply.read(MAX_BYTES)
                check_parts(raw)
            finally:
                reply.close()
    except TimeoutError:
        raise ProviderTimeout("The provider took too long to answer") from None
    if reply.status not in _OK:
        raise parse_worded_fault(reply.status, raw, channel.secrets, path=endpoint.path.replace("{model}", theirs))
    exchange.parse_answer(raw, channel.secrets)
    return round((time.perf_counter() - began) * 1000)


def find_chat_model(channel: Channel, listed: list[str]) -> str | None:
    """Return a model of a channel for the request: one that an operator names, else the first with a chat endpoint."""
    named = [ours for ours, _ in channel.model_map] + [model for model in channel.models if not is_glob(model)]
    provider = PROVIDERS[channel.provider]
    for model in (*named, *listed):
        if provider.find_endpoint(WIRES["chat"], channel.upstream_model(model)) is not None:
            return model
    return None
