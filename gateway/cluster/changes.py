"""Apply the changes that other nodes of the cluster have committed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from gateway.domain.node import Change
from gateway.errors import GatewayError, StoreUnavailable
from gateway.server.background_responses import CANCELLED, cancel_active
from gateway.server.context import Services
from gateway.storage.ledger import LedgerRepository

if TYPE_CHECKING:
    from gateway.cluster.membership.node import ClusterNode

_AGAIN_S = 1.0
MOST_FAILURES = 30
"""Consecutive failures while the node reaches the store; then the failure is logged, and retries become rarer.

At one per second they take longer than ``FENCE_S``: a node that has lost its store is fenced first, and counts from
zero.
"""
_SLOW_S = 30.0

log = structlog.stdlib.get_logger(__name__)


async def follow_changes(services: Services, node: "ClusterNode") -> None:
    """Start to apply the changes of all nodes. Raises ``StoreUnavailable``."""
    follower = ChangeFollower(services, node)
    node.notifications.subscribe(CANCELLED, partial(cancel_active, services))
    await node.follow(follower.apply, follower.reload, follower.restore)


class ChangeFollower:
    """Applies changes to the state in this process's memory.

    Keys, accounts and settings are in force when a method returns: the fence relies on it. Channels and their models
    follow in the background, since discovering local servers takes time. The methods wait for nothing but the store,
    because the node sends no beat meanwhile.

    ``again_s``: seconds before a retry after the store failed. ``slow_s``: the same after ``MOST_FAILURES``.
    """

    def __init__(self, services: Services, node: "ClusterNode") -> None:
        self._services = services
        self._node = node
        self._channels_changed = False
        self._reads_lists = False
        self._unread: set[str] | None = set()
        self.again_s, self.slow_s = _AGAIN_S, _SLOW_S

    async def apply(self, changes: Sequence[Change]) -> None:
        """Read the changed state. Raises ``StoreUnavailable``."""
        keys, accounts = ({int(each.id) for each in changes if each.kind == kind} for kind in ("key", "account"))
        kinds = {each.kind for each in changes}
        if keys or accounts:
            await self._services.auth.api_keys.reload_some(keys, accounts)
        if listed := {each.id for each in changes if each.kind == "model_list"}:
            self._load_models(listed)
        await self._apply_rest(settings="setting" in kinds, channels="channel" in kinds)

    async def reload(self) -> None:
        """Read everything again, including credit leases, and create missing balances. Raises ``StoreUnavailable``."""
        if self._services.billing.keeper is not None:
            self._services.billing.keeper.distrust_leases()
        database = self._services.storage.database
        if database.credit is not None:
            await database.write(database.credit.open_missing)
        await self._services.auth.api_keys.reload()
        self._load_models(None)
        await self._apply_rest(settings=True, channels=True)

    async def restore(self) -> None:
        """Store again the rows that the store may have lost. Raises ``StoreUnavailable``."""
        from gateway.cluster.journal.repost import post_kept  # noqa: PLC0415 - a single process does not need it

        storage = self._services.storage
        await post_kept(storage.journal, LedgerRepository(storage.database, storage.unstorable))

    async def _apply_rest(self, *, settings: bool, channels: bool) -> None:
        if settings:
            await self._services.admin.reloader.adopt_stored()
        if channels and not self._channels_changed:
            self._channels_changed = True
            self._services.background.start(self._follow_channels())

    async def _follow_channels(self) -> None:
        try:
            await self._repeat("follow_channels", self._adopt_channels)
        finally:
            self._channels_changed = False

    async def _adopt_channels(self) -> None:
        while self._channels_changed:
            self._channels_changed = False
            try:
                changed = await self._services.routing.channels.adopt_stored()
            except StoreUnavailable:
                self._channels_changed = True
                raise
            except GatewayError as error:
                log.error("channels_not_followed", error=error.message)  # noqa: TRY400 - a refusal, not a bug
            else:
                names = {channel.name for channel in changed}
                self._load_models(names)

    def _load_models(self, names: set[str] | None) -> None:
        """Use the model lists stored by another node, of all channels if ``names`` is None; do not wait."""
        self._unread = None if names is None or self._unread is None else self._unread | names
        if not self._reads_lists:
            self._reads_lists = True
            self._services.background.start(self._follow_lists())

    async def _follow_lists(self) -> None:
        try:
            await self._repeat("load_models", self._read_lists)
        finally:
            self._reads_lists = False

    async def _read_lists(self) -> None:
        lists = self._services.routing.model_lists
        while self._unread is None or self._unread:
            names, self._unread = self._unread, set()
            try:
                if lists is not None:
                    await lists.load(names)
            except StoreUnavailable:
                self._unread = None if names is None or self._unread is None else self._unread | names
                raise

    async def _repeat(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Retry ``work`` until it succeeds. If it keeps failing although the node reaches the store, log this once."""
        failures = 0
        while True:
            try:
                await work()
            except StoreUnavailable as error:
                failures = 0 if self._node.figures.fenced else failures + 1
                if failures == MOST_FAILURES:
                    log.error("change_not_followed", job=name, error=error.message)  # noqa: TRY400 - not a bug here
                await asyncio.sleep(self.again_s if failures < MOST_FAILURES else self.slow_s)
            else:
                return
