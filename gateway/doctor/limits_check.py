"""The check of the server that counts rate limits for several gateways."""

import asyncio
from collections.abc import Iterator

from gateway.config.schema import Config
from gateway.doctor.finding import Finding
from gateway.domain.limit_server import LimitServerState
from gateway.errors import StoreUnavailable

SLOW_MS = 10.0
"""The answer time in milliseconds above which the server counts as slow. A request waits at most 50 ms for it."""


def check_limits(config: Config) -> Iterator[Finding]:
    """Check that the server answers fast enough, and does not evict data.

    Without a server, only warn if a cluster counts its rate limits in memory.
    """
    store = config.limits_store
    if store == "memory":
        if config.cluster.enabled:
            text = "rate_limits.store is memory: each node of the cluster admits the whole of each limit"
            yield Finding("limits", "warning", text, "Remove rate_limits.store, or set rate_limits.url")
        return
    try:
        state = asyncio.run(_inspect(config))
    except ModuleNotFoundError:
        yield Finding("limits", "skipped", f"The server of rate limits was not asked: no client for {store}")
    except (StoreUnavailable, TimeoutError) as error:
        text = f"Rate limits are not shared: {str(error) or 'no answer in time'}"
        yield Finding("limits", "problem", text, "Start the server, or correct rate_limits.url")
    else:
        yield from _describe_state(state)


async def _inspect(config: Config) -> LimitServerState:
    if config.limits_store == "valkey":
        from gateway.storage.valkey.inspection import inspect_server  # noqa: PLC0415 - its driver is an extra

        return await inspect_server(config.rate_limits.url)
    from gateway.cluster.limits.postgres import inspect_database  # noqa: PLC0415 - its driver is an extra

    return await inspect_database(config.rate_limits.url or config.store.url)


def _describe_state(state: LimitServerState) -> Iterator[Finding]:
    speed_text = f"{state.name} ({state.version}) counts rate limits and answers in {state.latency_ms:.1f} ms"
    if state.eviction:
        text = f"{state.name} removes keys when its memory is full (maxmemory-policy {state.eviction})"
        fix = "Set maxmemory-policy noeviction: a limit that is forgotten begins anew"
        yield Finding("limits", "warning", text, fix)
    if state.latency_ms > SLOW_MS:
        fix = "Put it near the gateways: each limited request waits for it, and goes on without after 50 ms"
        yield Finding("limits", "warning", speed_text, fix)
    elif not state.eviction:
        yield Finding("limits", "ok", speed_text)
