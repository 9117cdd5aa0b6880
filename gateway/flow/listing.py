"""Asks a provider for its models."""

import asyncio

from gateway.dialects.openai_error import read_fault
from gateway.dialects.openai_models import read_models
from gateway.domain.catalog import Listed
from gateway.domain.channel import Channel
from gateway.domain.fault import UpstreamTimeout
from gateway.providers.registry import PROVIDERS
from gateway.upstream.port import Upstream

LISTING_TIMEOUT_S = 30.0
MAX_LISTING_BYTES = 16 * 1024 * 1024


async def fetch_models(
    upstream: Upstream,
    channel: Channel,
    *,
    now_s: int,
    timeout_s: float = LISTING_TIMEOUT_S,
) -> list[Listed]:
    """A channel's own list of models, under the names callers use. Raises ``UpstreamFault``."""
    provider = PROVIDERS[channel.provider]
    key = channel.api_keys[0] if channel.api_keys else ""
    try:
        async with asyncio.timeout(timeout_s):
            reply = await upstream.send(provider.plan_models(channel, key))
            try:
                raw = await reply.read(MAX_LISTING_BYTES)
            finally:
                reply.close()
    except TimeoutError:
        raise UpstreamTimeout("The provider took too long to list its models") from None
    if reply.status != 200:  # noqa: PLR2004
        raise read_fault(reply.status, None, raw, channel.secrets)
    listing = read_models(raw, owned_by=channel.provider, now_s=now_s)
    return [Listed(provider.read_model_id(listed.id), listed.created_s, listed.owned_by) for listed in listing]
