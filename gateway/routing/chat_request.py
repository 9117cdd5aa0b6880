"""A real chat request of one token, to test whether a channel's key, model and endpoint work together."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from gateway.domain.channel import Channel
from gateway.domain.model_name import is_glob
from gateway.domain.operation import OPERATIONS
from gateway.errors import InvalidRequest, ProviderTimeout
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.errors.vendor import parse_worded_error
from gateway.formats.registry import make_translator
from gateway.formats.stream import check_parts
from gateway.formats.translator import ResponseIdentity
from gateway.providers.base import EndpointRequest
from gateway.providers.registry import PROVIDERS
from gateway.routing.target import ProviderAccess, pack
from gateway.upstream.interface import HttpClient

SendChat = Callable[[Channel, str], Awaitable[int]]
"""Sends one request to a channel for a model, as ``send_chat`` does."""
REQUEST_TIMEOUT_S = 30.0
MAX_BYTES = 1024 * 1024
_OK = range(200, 300)


async def send_chat(upstream: HttpClient, channel: Channel, model: str, *, now_s: int) -> int:
    """Send a chat request of one token with the channel's first key, and return the response time in milliseconds.

    Raises ``InvalidRequest`` if the channel's provider has no chat for ``model``, ``ProviderError`` if it refuses or
    does not answer.
    """
    provider, upstream_model = PROVIDERS[channel.provider], channel.upstream_model(model)
    endpoint = provider.find_endpoint(OPERATIONS["chat"].formats, upstream_model)
    if endpoint is None:
        raise InvalidRequest(f"The provider {channel.provider!r} has no chat for the model {model!r}", param="model")
    inference = parse_chat_inference({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
    translator = make_translator(inference, endpoint.wire, ResponseIdentity("test", upstream_model, now_s))
    body, media_type = pack(translator.write_body, endpoint, upstream_model, "test")
    access = ProviderAccess(channel, endpoint, upstream_model, next(iter(channel.usable_keys), ""), "test")
    request = access.address(EndpointRequest(body, media_type, accept=translator.mode.accept), now_s)
    began = time.perf_counter()
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            response = await upstream.send(request)
            try:
                raw = await response.read(MAX_BYTES)
                check_parts(raw)
            finally:
                response.close()
    except TimeoutError:
        raise ProviderTimeout("The provider took too long to answer") from None
    if response.status not in _OK:
        raise parse_worded_error(
            response.status, raw, channel.secrets, path=endpoint.path.replace("{model}", upstream_model)
        )
    translator.parse_answer(raw, channel.secrets)
    return round((time.perf_counter() - began) * 1000)


def find_chat_model(channel: Channel, listed_models: list[str]) -> str | None:
    """Return the first chat model that the operator named, else of ``listed_models``; None without one."""
    model_names = [alias for alias, _ in channel.model_map] + [model for model in channel.models if not is_glob(model)]
    provider = PROVIDERS[channel.provider]
    for model in (*model_names, *listed_models):
        if provider.find_endpoint(OPERATIONS["chat"].formats, channel.upstream_model(model)) is not None:
            return model
    return None
