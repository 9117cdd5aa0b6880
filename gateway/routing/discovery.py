"""Discovery of channels: provider keys in the environment, and model servers on the usual ports of this machine."""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelInfo
from gateway.errors import ProviderError
from gateway.providers.base import Provider, find_url_problem
from gateway.providers.registry import PROVIDERS
from gateway.routing.model_listing import fetch_models
from gateway.upstream.interface import HttpClient

log = structlog.stdlib.get_logger(__name__)

LOCAL_TIMEOUT_S = 0.5
"""A local server answers within this time, or there is none."""
LOCAL_DETAILS_TIMEOUT_S = 2.0
"""How long a start waits for the details of a local server's models, in seconds; a later listing waits longer."""


def find_keyed_channels(environ: Mapping[str, str]) -> list[Channel]:
    """Return a synchronized channel for each provider whose key variable is set, and whose address is usable."""
    return [
        Channel(provider.slug, provider.slug, base_url, (key,), sync=True, origin="environment")
        for provider in PROVIDERS.values()
        if provider.env_key
        and (key := environ.get(provider.env_key, "").strip())
        and (base_url := _find_address(provider, environ))
    ]


def _find_address(provider: Provider, environ: Mapping[str, str]) -> str | None:
    """Return the address for a key from the environment; None without one, or if the address variable is no usable URL.

    The key belongs to the server that the variable names: the provider's own address must not get it instead.
    """
    configured_url = environ.get(provider.env_base_url or "", "").strip().rstrip("/")
    if not configured_url:
        return provider.base_url
    problem = find_url_problem(configured_url)
    if problem is not None:
        log.warning("channel_ignored", channel=provider.slug, reason=f"{provider.env_base_url}: {problem}")
    return configured_url if problem is None else None


async def find_local_servers(
    upstream: HttpClient, *, own_port: int, now_s: int
) -> list[tuple[Channel, Sequence[ModelInfo]]]:
    """Return the model servers that answer on this machine, each with its models. Skips the gateway's own port."""

    async def ask(provider: Provider) -> tuple[Channel, Sequence[ModelInfo]] | None:
        channel = Channel(provider.slug, provider.slug, provider.base_url or "", sync=True, origin="local")
        try:
            return channel, await fetch_models(
                upstream, channel, now_s=now_s, timeout_s=LOCAL_TIMEOUT_S, details_timeout_s=LOCAL_DETAILS_TIMEOUT_S
            )
        except ProviderError:
            return None

    local_providers = [provider for provider in PROVIDERS.values() if provider.local_port not in {None, own_port}]
    answers = await asyncio.gather(*map(ask, local_providers))
    return [answer for answer in answers if answer is not None]
