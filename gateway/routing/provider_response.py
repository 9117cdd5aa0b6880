"""Requests about a response stored at a provider, sent to the channel that made the response."""

import asyncio
from typing import Literal
from urllib.parse import quote

from gateway.domain.channel import Channel
from gateway.errors import NotFound, ProviderTimeout
from gateway.formats.errors.vendor import parse_worded_error
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.stream import check_parts
from gateway.providers.registry import PROVIDERS
from gateway.routing.target import ProviderAccess
from gateway.upstream.interface import HttpClient

REQUEST_TIMEOUT_S = 60.0
MAX_BYTES = 64 * 1024 * 1024
_OK = range(200, 300)


async def ask_provider(
    upstream: HttpClient,
    channel: Channel,
    response_id: str,
    method: Literal["GET", "POST", "DELETE"] = "GET",
    *,
    path_suffix: str = "",
    now_s: int,
) -> bytes:
    """Send a request about a stored response, and return the provider's answer.

    ``path_suffix`` ends the path, such as ``/input_items``, with its query.

    Raises ``NotFound`` if the channel's provider keeps no responses, ``ProviderError`` if it refuses or does not
    answer.
    """
    endpoints = PROVIDERS[channel.provider].endpoints
    endpoint = next((candidate for candidate in endpoints if candidate.wire == "openai_responses"), None)
    if endpoint is None:
        raise NotFound(f"The channel of the response {response_id!r} does not keep responses any more")
    path = f"{endpoint.path}/{quote(response_id, safe='')}{path_suffix}"
    access = ProviderAccess(channel, endpoint, "", next(iter(channel.usable_keys), ""), "response")
    http_request = access.build_request(
        ProviderRequest({} if method == "POST" else None, method, path, repeatable=True), now_s
    )
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            response = await upstream.send(http_request)
            try:
                raw = await response.read(MAX_BYTES)
                check_parts(raw)
            finally:
                response.close()
    except TimeoutError:
        raise ProviderTimeout("The provider took too long to answer") from None
    if response.status not in _OK:
        raise parse_worded_error(response.status, raw, channel.secrets, path=path.partition("?")[0])
    return raw
