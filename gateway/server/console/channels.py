"""The pages of channels."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from gateway.errors import NotFound
from gateway.server.admin.usage import UsageLine
from gateway.server.console.language import LANGUAGE, gettext
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api, list_live_nodes
from gateway.server.console.provider_choices import GROUPS, ProviderChoice, list_choices
from gateway.server.console.usage_charts import load_charts
from gateway.server.context import SERVICES

_MAX_REQUESTS = 10
_TRAFFIC_DAYS = 7
_HEALTHS = ("failing", "cooling_down", "recovering", "draining", "untested", "healthy", "disabled")
_ORDER = "-priority"
_MAX_WEIGHTS = 100


async def load_channels(request: web.Request) -> Data:
    """Load a page of channels with their traffic of the last days, by default in the order in which they are tried.

    That order can be changed if the page shows all channels in it.
    """
    channels, nodes, traffic = await asyncio.gather(
        load_list(request, "/channels", ("node", "health"), default_sort=_ORDER),
        list_live_nodes(request),
        _load_traffic(request),
    )
    is_whole = len(channels.rows) == channels.total and not channels.search and "health" not in channels.filters
    return {
        "list": channels,
        "nodes": nodes,
        "healths": _HEALTHS,
        "is_ordered": is_whole and channels.sort == _ORDER and len(channels.rows) > 1,
        **traffic,
    }


async def load_new_channel(request: web.Request) -> Data:
    """Load the providers to choose from, and the names that are taken."""
    providers, channels = await asyncio.gather(
        ask_admin_api(request, "/providers"), ask_admin_api(request, "/channels")
    )
    choices, language = list_choices(providers), request[LANGUAGE]
    script_data = {
        "providers": {choice.view.slug: _describe_choice(choice, language) for choice in choices},
        "names": [channel.name for channel in channels],
    }
    return {"choices": choices, "groups": GROUPS, "script_data": script_data}


def _describe_choice(choice: ProviderChoice, language: str) -> dict[str, Any]:
    """Return the fields of a provider that the page's script needs, with texts in ``language``."""
    return {
        "title": gettext(language, choice.title),
        "base_url": choice.view.base_url,
        "lists_models": choice.view.lists_models,
        "address": choice.address,
        "parts": [
            {"name": part.name, "label": gettext(language, part.label), "example": part.example}
            for part in choice.parts
        ],
        "key_hint": gettext(language, choice.key_hint) if choice.key_hint else "",
        "needs_key": choice.needs_key,
    }


async def load_channel(request: web.Request) -> Data:
    """Load a channel with its latest requests, its last failure, and its traffic of the last days."""
    name = request.match_info["name"]
    channel, charts, providers, latest_page, nodes, traffic = await asyncio.gather(
        ask_admin_api(request, "/channels/{name}", node=request.query.get("node")),
        load_charts(request, channel=name),
        ask_admin_api(request, "/providers"),
        ask_admin_api(request, "/requests", channel=name, limit=_MAX_REQUESTS),
        list_live_nodes(request),
        _load_traffic(request),
    )
    return {
        "channel": channel,
        "charts": charts,
        "providers": providers,
        "latest": latest_page.data,
        "last_failed": None if channel.last_error else await _find_last_failure(request, name),
        "nodes": nodes,
        **traffic,
    }


async def _find_last_failure(request: web.Request, channel: str) -> Any:
    """Return the channel's newest failed request of the last ``_TRAFFIC_DAYS`` days, or None.

    It replaces ``last_error``, which is only in memory: a restarted process has none.
    """
    since = datetime.fromtimestamp(request.app[SERVICES].clock(), UTC) - timedelta(days=_TRAFFIC_DAYS)
    page = await ask_admin_api(
        request, "/requests", channel=channel, limit=1, outcome="failed", since=f"{since:%Y-%m-%dT%H:%M:%SZ}"
    )
    return next(iter(page.data), None)


async def load_weights(request: web.Request) -> Data:
    """Load the channels of the model in the query, or all channels, in the tiers in which they are tried.

    A tier is shown whole, because its shares are those of all its channels. The first tier is always shown, further
    ones while all together have at most ``_MAX_WEIGHTS`` channels. ``more`` is the number of channels that are not
    shown. Raises ``NotFound`` if there is no such model.
    """
    channels, models = await asyncio.gather(ask_admin_api(request, "/channels"), ask_admin_api(request, "/models"))
    model_names = [model.id for model in models if not model.route]
    model = next((model for model in models if model.id == request.query.get("model") and not model.route), None)
    if model is None and request.query.get("model"):
        raise NotFound(f"There is no model {request.query['model'][:120]!r}")
    serving_channels = [channel for channel in channels if model is None or channel.name in model.channels]
    priorities = sorted({channel.priority for channel in serving_channels}, reverse=True)
    tiers: list[list[Any]] = []
    shown_count = 0
    for priority in priorities:
        tier = [channel for channel in serving_channels if channel.priority == priority]
        if tiers and shown_count + len(tier) > _MAX_WEIGHTS:
            break
        tiers.append(tier)
        shown_count += len(tier)
    return {"model": model, "model_names": model_names, "tiers": tiers, "more": len(serving_channels) - shown_count}


async def _load_traffic(request: web.Request) -> Data:
    since = datetime.fromtimestamp(request.app[SERVICES].clock(), UTC) - timedelta(days=_TRAFFIC_DAYS - 1)
    report = await ask_admin_api(request, "/usage", by="channel", since=f"{since:%Y-%m-%d}")
    lines: Sequence[UsageLine] = report.data
    lines_by_channel = {line.channel: line for line in lines if line.channel}
    return {
        "traffic": lines_by_channel,
        "all_requests": sum(line.requests for line in lines_by_channel.values()),
        "traffic_days": _TRAFFIC_DAYS,
    }
