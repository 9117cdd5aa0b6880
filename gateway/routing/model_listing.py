"""Lists a provider's models."""

import asyncio
from contextlib import suppress

import attrs

from gateway.deferred import defer_function
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderAuthError, ProviderBadResponse, ProviderTimeout
from gateway.formats.errors.vendor import parse_worded_error
from gateway.formats.model_lists import gemini as gemini_models
from gateway.formats.model_lists import openai as openai_models
from gateway.formats.stream import check_parts
from gateway.providers.registry import PROVIDERS
from gateway.upstream.interface import HttpClient

_add_details = defer_function("routing.model_details:add_details")
"""Imported when a list arrives: a gateway whose channels declare their models does not need the module."""
LISTING_TIMEOUT_S = 30.0
DETAILS_TIMEOUT_S = 10.0
MAX_LISTING_BYTES = 16 * 1024 * 1024


async def fetch_models(
    upstream: HttpClient,
    channel: Channel,
    *,
    now_s: int,
    timeout_s: float = LISTING_TIMEOUT_S,
    details_timeout_s: float = DETAILS_TIMEOUT_S,
) -> list[ModelInfo]:
    """Return a provider's models under the ids that clients use.

    If the provider rejects a key, the next one is tried. Servers that describe a model elsewhere are asked for that,
    too, for at most ``details_timeout_s``. Raises ``ProviderError``.
    """
    provider = PROVIDERS[channel.provider]
    if provider.models_path is None:
        raise ProviderBadResponse(f"The provider {channel.provider!r} has no list of models to ask for")
    *other_keys, last = channel.usable_keys or ("",)
    for key in other_keys:
        with suppress(ProviderAuthError):
            listing = await _ask(upstream, channel, key, now_s=now_s, timeout_s=timeout_s)
            return list(await _add_details(upstream, channel, key, listing, timeout_s=details_timeout_s))
    listing = await _ask(upstream, channel, last, now_s=now_s, timeout_s=timeout_s)
    return list(await _add_details(upstream, channel, last, listing, timeout_s=details_timeout_s))


async def _ask(upstream: HttpClient, channel: Channel, key: str, *, now_s: int, timeout_s: float) -> list[ModelInfo]:
    provider = PROVIDERS[channel.provider]
    try:
        async with asyncio.timeout(timeout_s):
            response = await upstream.send(provider.build_models_request(channel, key))
            try:
                raw = await response.read(MAX_LISTING_BYTES)
                check_parts(raw)
            finally:
                response.close()
    except TimeoutError:
        raise ProviderTimeout("The provider took too long to list its models") from None
    if response.status != 200:  # noqa: PLR2004
        raise parse_worded_error(response.status, raw, channel.secrets, path=provider.models_path)
    parse = gemini_models.parse_models if provider.list_format == "gemini" else openai_models.parse_models
    listing = parse(raw, owned_by=channel.owner, now_s=now_s)
    return [attrs.evolve(model_info, id=provider.parse_model_id(model_info.id)) for model_info in listing]
