"""Applies the changes that other nodes have committed, and stores again what a replaced database may lack."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from gateway.domain.node import Change
from gateway.errors import GatewayError, StoreUnavailable
from gateway.server.context import RoutingServices, StorageServices
from gateway.storage.ledger import LedgerRepository

if TYPE_CHECKING:
    from gateway.auth.api_keys import ApiKeyAuthenticator
    from gateway.cluster.credit.keeper import CreditKeeper
    from gateway.cluster.membership.node import ClusterNode
    from gateway.config.reload import Reloader

_RETRY_S = 1.0
MAX_FAILURES = 30
"""Consecutive failures while the node reaches the store; then the failure is logged, and retries become rarer.

At one per second they take longer than ``ClusterTimes.fence_s``: a node that has lost its store is fenced first, and
counts from zero.
"""
_SLOW_RETRY_S = 30.0

log = structlog.stdlib.get_logger(__name__)


class ChangeFollower:
    """Applies changes to the state in this process's memory.

    Keys, accounts and settings are in force when a method returns: the fence relies on it. Channels and their models
    follow in the background, since discovering local servers takes time. The methods wait for nothing but the store,
    because the node sends no beat meanwhile.

    Args:
        keeper: the credit leases of this node; None if it has none.
        start: runs a task in the background.
        bring_back: see ``ChangeKeeper.bring_back``.

    Attributes:
        retry_s: seconds before a retry after the store failed.
        slow_retry_s: seconds before a retry after ``MAX_FAILURES``.
    """

    def __init__(
        self,
        node: "ClusterNode",
        storage: StorageServices,
        routing: RoutingServices,
        *,
        api_keys: "ApiKeyAuthenticator",
        reloader: "Reloader",
        keeper: "CreditKeeper | None",
        start: Callable[[Coroutine[Any, Any, None]], object],
        bring_back: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._storage = storage
        self._routing = routing
        self._api_keys = api_keys
        self._reloader = reloader
        self._credit_keeper = keeper
        self._start = start
        self._bring_back = bring_back
        self._channels_changed = False
        self._is_reading_lists = False
        self._unread_channels: set[str] | None = set()
        self.retry_s, self.slow_retry_s = _RETRY_S, _SLOW_RETRY_S

    async def apply(self, changes: Sequence[Change]) -> None:
        keys, accounts = ({int(change.id) for change in changes if change.kind == kind} for kind in ("key", "account"))
        kinds = {change.kind for change in changes}
        if keys or accounts:
            await self._api_keys.reload_owners(keys, accounts)
        if channel_names := {change.id for change in changes if change.kind == "model_list"}:
            self._load_models(channel_names)
        await self._apply_settings_and_channels(settings="setting" in kinds, channels="channel" in kinds)

    async def reload(self) -> None:
        """Read everything again, including credit leases, and create missing balances."""
        if self._credit_keeper is not None:
            self._credit_keeper.distrust_leases()
        database = self._storage.database
        if database.credit is not None:
            await database.write(database.credit.open_missing_balances)
        await self._api_keys.reload()
        self._load_models(None)
        await self._apply_settings_and_channels(settings=True, channels=True)

    async def restore(self) -> None:
        """Store again what the database may have lost: rows, jobs, changes of operators, then the credit leases."""
        from gateway.cluster.journal.repost import post_kept  # noqa: PLC0415 - a single process does not need it

        database = self._storage.database
        await post_kept(self._storage.journal, LedgerRepository(database, self._storage.unstorable))
        await self.restore_jobs()
        await self._bring_back()
        if self._credit_keeper is not None and database.credit is not None:
            await self._credit_keeper.restore_leases(database.credit.restore_leases)

    async def restore_jobs(self) -> None:
        """Store the kept changes of this node again: jobs, batches, files, responses."""
        from gateway.cluster.kept.restore import restore_changes  # noqa: PLC0415 - a single process does not need it

        await restore_changes(self._storage.database, str(self._node.address.timeline), self._node.process)

    async def _apply_settings_and_channels(self, *, settings: bool, channels: bool) -> None:
        if settings:
            await self._reloader.adopt_stored()
        if channels and not self._channels_changed:
            self._channels_changed = True
            self._start(self._follow_channels())

    async def _follow_channels(self) -> None:
        try:
            await self._retry_until_done("follow_channels", self._apply_channels)
        finally:
            self._channels_changed = False

    async def _apply_channels(self) -> None:
        while self._channels_changed:
            self._channels_changed = False
            try:
                changed_channels = await self._routing.channels.adopt_stored()
            except StoreUnavailable:
                self._channels_changed = True
                raise
            except GatewayError as error:
                log.error("channels_not_followed", error=error.message)  # noqa: TRY400 - a refusal, not a bug
            else:
                names = {channel.name for channel in changed_channels}
                self._load_models(names)

    def _load_models(self, names: set[str] | None) -> None:
        """Start to load the model lists that other nodes have stored, and return at once.

        ``names``: the channels; None: all.
        """
        self._unread_channels = (
            None if names is None or self._unread_channels is None else self._unread_channels | names
        )
        if not self._is_reading_lists:
            self._is_reading_lists = True
            self._start(self._load_lists_until_done())

    async def _load_lists_until_done(self) -> None:
        try:
            await self._retry_until_done("load_models", self._read_lists)
        finally:
            self._is_reading_lists = False

    async def _read_lists(self) -> None:
        lists = self._routing.model_lists
        while self._unread_channels is None or self._unread_channels:
            names, self._unread_channels = self._unread_channels, set()
            try:
                if lists is not None:
                    await lists.load(names)
            except StoreUnavailable:
                self._unread_channels = (
                    None if names is None or self._unread_channels is None else self._unread_channels | names
                )
                raise

    async def _retry_until_done(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Retry ``work`` while it raises ``StoreUnavailable``.

        If that goes on although the node reaches the store, log this once and retry less often.
        """
        failures = 0
        while True:
            try:
                await work()
            except StoreUnavailable as error:
                failures = 0 if self._node.figures.fenced else failures + 1
                if failures == MAX_FAILURES:
                    log.error("change_not_followed", job=name, error=error.message)  # noqa: TRY400 - not a bug here
                await asyncio.sleep(self.retry_s if failures < MAX_FAILURES else self.slow_retry_s)
            else:
                return
