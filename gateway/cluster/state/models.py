"""Model lists in a cluster: the leader asks each provider, and every node uses the answers."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

import structlog

from gateway.cluster.state.stored_models import ModelListRepository
from gateway.domain.channel import Channel
from gateway.domain.model_info import ModelList
from gateway.errors import StoreUnavailable
from gateway.routing.channel_tester import Answer
from gateway.routing.model_catalog import ModelCatalog

CHECK_INTERVAL_S = 1.0
SWEEP_INTERVAL_S = 3_600.0
FIRST_TIMEOUT_S = 30.0
"""How long a node that does not lead waits for the first list of a channel before it asks the provider itself."""
ADDED_TIMEOUT_S = 5.0
"""How long the leader waits for the first list of a channel added at run time: the node that added it asks first."""
_NODE_ORIGINS = frozenset({"environment", "local", "demo"})
"""Origins of channels that exist on one node only."""

SyncChannel = Callable[[Channel], Awaitable[object]]
"""Asks the provider of a channel for its models."""

log = structlog.stdlib.get_logger(__name__)


class SharedModelLists:
    """Keeps the models of channels up to date with the lists that any node has fetched.

    A node that does not lead asks a provider if no other node does: a channel may be in its own configuration file
    only.

    Args:
        leads: returns whether this node leads.
        interval: returns the seconds between two requests to a provider.
        clock: Unix seconds, the same on every node.
        start: runs a task in the background.
    """

    def __init__(
        self,
        catalog: ModelCatalog,
        store: ModelListRepository,
        *,
        leads: Callable[[], bool],
        interval: Callable[[], float],
        clock: Callable[[], float],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._leads = leads
        self._interval = interval
        self._clock = clock
        self._start = start
        self._last_request_ms: dict[str, int] = {}
        self._first_seen_s: dict[Channel, float] = {}

    async def load(self, names: Collection[str] | None = None) -> None:
        for model_list in await self._store.list_models(names):
            channel = self._catalog.find_channel(model_list.channel)
            if channel is not None and (channel.provider, channel.base_url) == (
                model_list.provider,
                model_list.base_url,
            ):
                self._apply_list(channel, model_list)

    def _apply_list(self, channel: Channel, model_list: ModelList) -> None:
        is_unknown = self._catalog.find_offer(channel) is None
        if (
            not channel.sync
            or channel.origin in _NODE_ORIGINS
            or (not is_unknown and model_list.fetched_ms <= self._last_request_ms.get(channel.name, 0))
        ):
            return
        self._last_request_ms[channel.name] = model_list.fetched_ms
        if model_list.models is not None and (is_unknown or model_list.error is None):
            models_added, models_removed = self._catalog.apply_listing(channel, model_list.models)
            if models_added or models_removed:
                log.info(
                    "models_synced",
                    channel=channel.name,
                    models=len(model_list.models),
                    came=len(models_added),
                    went=len(models_removed),
                )
        if model_list.error is not None:
            self._catalog.note_failure(channel, model_list.error)

    def store_answer(self, channel: Channel, answer: Answer) -> None:
        now_ms = int(self._clock() * 1000)
        self._last_request_ms[channel.name] = now_ms
        if channel.origin in _NODE_ORIGINS:
            return
        models = None if answer.listing is None else tuple(answer.listing)
        error = None if answer.error is None else answer.error.message
        self._start(
            self._store_list(ModelList(channel.name, channel.provider, channel.base_url, models, now_ms, error))
        )

    async def _store_list(self, model_list: ModelList) -> None:
        try:
            await self._store.put_list(model_list)
        except StoreUnavailable as error:
            log.warning("models_not_stored", channel=model_list.channel, error=error.message)

    async def run(self, sync: SyncChannel) -> None:
        while True:
            await self.sync_due(sync)
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def sync_due(self, sync: SyncChannel) -> None:
        await asyncio.gather(*map(sync, self._list_due()))

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            try:
                await self._store.sweep(int(self._clock() * 1000))
            except StoreUnavailable as error:
                log.warning("models_not_swept", error=error.message)

    def _list_due(self) -> list[Channel]:
        active_channels = [channel for channel in self._catalog.channels if channel.sync and channel.status == "active"]
        names = {channel.name for channel in self._catalog.channels}
        self._last_request_ms = {name: asked_ms for name, asked_ms in self._last_request_ms.items() if name in names}
        now_s = self._clock()
        self._first_seen_s = {channel: self._first_seen_s.get(channel, now_s) for channel in active_channels}
        return [channel for channel in active_channels if self._is_due(channel, now_s)]

    def _is_due(self, channel: Channel, now_s: float) -> bool:
        is_own = channel.origin in _NODE_ORIGINS or self._leads()
        asked_ms, interval_s = self._last_request_ms.get(channel.name), self._interval()
        if asked_ms is None:
            wait_s = ADDED_TIMEOUT_S if is_own and channel.origin == "stored" else 0.0 if is_own else FIRST_TIMEOUT_S
            return now_s - self._first_seen_s[channel] >= wait_s
        return now_s - asked_ms / 1000 >= (interval_s if is_own else 2 * interval_s + FIRST_TIMEOUT_S)
