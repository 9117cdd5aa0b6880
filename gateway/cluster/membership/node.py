"""A node of a cluster: it registers, sends beats, follows the log of changes, and as the leader declares nodes dead."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from math import inf

import orjson
import structlog

from gateway.background import JobRunner
from gateway.cluster.membership.death_watch import DeathWatch, Registration
from gateway.cluster.membership.fence import FencedWriteQueue, read_boot_time
from gateway.cluster.membership.leadership import Leadership
from gateway.cluster.membership.notifications import MEMBERS, NodeNotifications
from gateway.cluster.membership.session import NodeSession
from gateway.cluster.membership.store_clock import StoreClock
from gateway.cluster.membership.times import RESTORE_S, SLOW_RESTORE_S
from gateway.domain.node import Change, NodeFigures, parse_process
from gateway.domain.partition import pick_node
from gateway.errors import StoreUnavailable
from gateway.storage.postgres.address import Address

CHECKING_NODES = 4
"""How many nodes check for stuck transactions and a stuck leader within a beat, whatever the cluster's size."""
CLEANUP_INTERVAL_S = 3600.0
_OUTDATED_REASON = "its node ended before it stored again what this server lacks: another may do again what it did last"
MAX_CLOCK_OFFSET_S = 60.0
"""If this machine's clock is off the store's by more, the difference is logged and marked in the list of nodes."""

ApplyChanges = Callable[[Sequence[Change]], Awaitable[None]]

log = structlog.stdlib.get_logger(__name__)


class ClusterNode:
    """Keeps this process a live member of its cluster.

    The fence moves forward only after all changes committed before the beat are applied: the memory of a serving node
    is at most ``ClusterTimes.fence_s`` old.

    Attributes:
        times: the times of the cluster.
        members: the live nodes as of the last beat: id to epoch.
        expected_nodes: the nodes that were live when the database was last replaced. They have to store their last
            rows again.
    """

    def __init__(
        self,
        session: NodeSession,
        notifications: NodeNotifications,
        queue: FencedWriteQueue,
        clock: StoreClock,
        count_requests: Callable[[], int],
    ) -> None:
        self._session = session
        self.times = session.times
        self._queue = queue
        self.clock = clock
        self._death_watch = DeathWatch(session.times)
        self._is_current = asyncio.Event()
        self._apply: ApplyChanges | None = None
        self._reload: Callable[[], Awaitable[None]] | None = None
        self._restore: Callable[[], Awaitable[None]] | None = None
        self._keep_rows: Callable[[], Awaitable[None]] | None = None
        self._history = ("", 0)
        self._seen_change = 0
        self._is_stale = self._is_outdated = False
        self._jobs = JobRunner()
        self.members: Mapping[str, int] = {}
        self.expected_nodes: Collection[str] = ()
        self._restoring_beats: Mapping[str, int] = {}
        self._replaced_s = self._restoring_beat_s = self._restore_deadline_s = 0.0
        self._dead_count = 0
        self._last_beat_s = read_boot_time()
        self._sharing_nodes: set[str] = set()
        self.leadership = Leadership()
        self.count_requests = count_requests
        self.notifications = notifications
        self._beat_count = 0
        self._is_clock_wrong = False
        self._next_cleanup_s = 0.0

    @property
    def id(self) -> str:
        return self._session.node.id

    @property
    def address(self) -> Address:
        return self._session.address

    @property
    def generation(self) -> str:
        """The identity of the database's server, see ``read_generation``."""
        return self._session.generation

    @property
    def url(self) -> str:
        """The address at which other nodes reach this one, as it is stored (``storage/nodes.py``)."""
        return self._session.node.url

    @property
    def process(self) -> str:
        return self._session.node.process

    @property
    def restored_generation(self) -> str:
        """The database that has all rows of this node, see ``read_generation``."""
        return self._history[0]

    @property
    def others_restore(self) -> bool:
        """Whether other nodes may still bring back what the database lacks."""
        return read_boot_time() < self._restore_deadline_s

    @property
    def live_count(self) -> int:
        return max(1, len(self.members))

    @property
    def leads(self) -> bool:
        return self.leadership.leads

    @property
    def figures(self) -> NodeFigures:
        return NodeFigures(
            live=self.live_count,
            dead=self._dead_count,
            beat_age_s=read_boot_time() - self._last_beat_s,
            fenced=self._queue.fenced,
            leads=self.leads,
            config_digest=self._session.node.config_digest,
        )

    def call_when_fenced(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` each time that this node stops taking requests, for instance without the store."""
        self._queue.when_fenced.append(callback)

    def learn_timeline(self, text: str) -> None:
        """Take no more requests if another node knows a newer timeline, until this node reaches a server with it."""
        if self.address.timeline.learn(text):
            self._queue.close()
            self.leadership.end()

    def owns(self, name: str) -> bool:
        """Return whether this node is responsible for ``name``. A node with late beats is responsible for nothing."""
        return pick_node(name, self._sharing_nodes) == self.id

    def may_be_alive(self, process: str) -> bool:
        """Return whether ``process`` (a ``Node.process``) was live at the last beat, or has registered since."""
        registration = parse_process(process)
        return (
            registration is not None
            and registration[0] in self.members
            and registration[1] >= self.members[registration[0]]
        )

    async def open(self) -> None:
        """Register, and start to send beats.

        State that is read from the store afterwards is newer than the changes seen. The claims of this node's former
        process are freed later, by ``follow``.
        """
        self._seen_change = await self._session.register(frees=False)
        self._history = self._session.history
        await self._beat()
        if any((await self._session.list_restoring(())).values()):  # the store was replaced moments ago
            self._await_others()
        log.info("node_registered", node=self.process)
        self._jobs.start("beat", self._run)
        self._jobs.start("lead", self._run_lead)
        self._jobs.start("send_rings", partial(self.notifications.run, self._session.notify))

    async def follow(
        self,
        apply: ApplyChanges,
        reload: Callable[[], Awaitable[None]],
        restore: Callable[[], Awaitable[None]] | None = None,
        keep_rows: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Apply the changes since ``open``, and all later ones. Until the first are applied, no request is accepted.

        Call it after everything is stored that only this node knows of its former process.

        Args:
            apply: brings changes into force; may raise ``StoreUnavailable``.
            reload: the same for everything that may have changed; the node may no longer own its credit.
            restore: stores again what was stored recently, because another server has replaced the store, or a backup
                was restored. May raise ``StoreUnavailable``.
            keep_rows: called with each beat, to remember what the store has. May raise ``StoreUnavailable``.
        """
        await self._session.free_former()
        self._apply, self._reload, self._restore, self._keep_rows = apply, reload, restore, keep_rows
        self._session.wake_event.set()
        try:
            async with asyncio.timeout(self.times.fence_s):
                await self._is_current.wait()
        except TimeoutError:
            raise StoreUnavailable("The gateway's store does not answer") from None

    def start_alone(self) -> AbstractAsyncContextManager[None]:
        """Keep other nodes from starting and from declaring their files' accounts and keys during the block."""
        return self._session.start_alone()

    def bring_back_alone(self) -> AbstractAsyncContextManager[None]:
        """Keep other nodes from bringing back lost changes during the block."""
        return self._session.bring_back_alone()

    async def put_digest(self, config_digest: str) -> None:
        await self._session.put_digest(config_digest)

    async def put_url(self, url: str) -> None:
        await self._session.put_url(url)

    async def close(self) -> None:
        self._queue.close()
        await self._jobs.stop()
        self.leadership.end()
        await self._session.leave()

    async def _run(self) -> None:
        is_failing = False
        while True:
            try:
                await self._beat()
                if is_failing:
                    log.info("node_in_touch_again", node=self.process)
                is_failing = False
            except StoreUnavailable as error:
                if not is_failing:
                    log.warning("node_out_of_touch", node=self.process, error=error.message)
                is_failing = True
                self.leadership.end()
                # Whatever the cause of the wake-up: a lost connection is one, too.
                await asyncio.sleep(self.times.retry_s)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.times.beat_s):  # ``wait_for`` may ignore a cancellation
                        await self._session.wake_event.wait()

    async def _run_lead(self) -> None:
        """Lead if no other node does. Separate from the beats, since freeing a dead node's claims takes time."""
        while not self._is_outdated:
            try:
                await self._update_leadership()
            except StoreUnavailable:  # the beat logs it
                self.leadership.end()  # the lock is lost with the connection
            await asyncio.sleep(self.times.beat_s)
        with suppress(StoreUnavailable):  # otherwise the lock is lost with the connection
            await self._session.stop_leading()

    async def _beat(self) -> None:
        started_s = read_boot_time()
        self._session.wake_event.clear()
        if self._is_outdated:
            await self._beat_outdated()
            return
        is_following = self._apply is not None
        seen_change = await self._catch_up()
        if self._keep_rows is not None and self._session.history == self._history:
            await self._keep_rows()
        request_s = read_boot_time()
        heartbeat = await self._session.heartbeat(seen_change, self._describe())
        if heartbeat is None:
            await self._register_again()
            return
        if heartbeat.oldest > self._session.node.schema:
            self._stop_outdated(heartbeat.oldest)
            return
        if self._session.history != self._history:
            await self._restore_store()
            return
        if self._restore_deadline_s:
            await self._watch_others()
        self._seen_change, self._dead_count, self._last_beat_s = seen_change, heartbeat.dead, started_s
        members = dict(filter(None, map(parse_process, heartbeat.live)))
        sharing_nodes = members.keys() - heartbeat.late
        if self.members != members or self._sharing_nodes != sharing_nodes:
            self.members, self._sharing_nodes = members, sharing_nodes
            self.notifications.deliver(MEMBERS)
        self.clock.adjust(heartbeat.now_ms, read_boot_time() - request_s)
        self._warn_if_clock_differs()
        if is_following:
            self._queue.open_until(started_s + self.times.fence_s)
            self._is_current.set()

    def _await_others(self) -> None:
        """Begin to wait for other nodes, which may still bring back what the database lacks."""
        self._replaced_s, self._restore_deadline_s = read_boot_time(), inf  # until the next beat knows of them
        self._restoring_beats, self._restoring_beat_s = {}, 0.0

    async def _watch_others(self) -> None:
        """End the wait for other nodes if all have stored their last rows again, or it has taken too long.

        A node that still sends beats is waited for longer.
        """
        former_beats, missing_nodes = self._restoring_beats, await self._session.list_restoring(self.expected_nodes)
        self._restoring_beats = missing_nodes
        if any(node in former_beats and beat != former_beats[node] for node, beat in missing_nodes.items()):
            self._restoring_beat_s = read_boot_time()
        longest_s = max(self._replaced_s + RESTORE_S, self._restoring_beat_s + self.times.late_s)
        self._restore_deadline_s = min(longest_s, self._replaced_s + SLOW_RESTORE_S)
        if missing_nodes and self.others_restore:
            return
        self._restore_deadline_s = 0.0
        for node in missing_nodes:
            log.error("node_not_restored", node=node, reason="what it stored last may be lost until it starts again")

    def _warn_if_clock_differs(self) -> None:
        """Log once if the clocks of this machine and of the database differ by more than ``MAX_CLOCK_OFFSET_S``.

        Money, limits and times in the database follow the database's clock; this machine's clock is used for the times
        of log lines and to check certificates.
        """
        is_wrong = abs(self.clock.offset_s) > MAX_CLOCK_OFFSET_S
        if is_wrong and not self._is_clock_wrong:
            offset_s = self.clock.offset_s
            reason = f"the database's clock is {abs(offset_s):.0f} s {'ahead' if offset_s > 0 else 'behind'}"
            log.warning("clock_differs", node=self.process, reason=reason)
        self._is_clock_wrong = is_wrong

    def _describe(self) -> str:
        """Return the details of the node for a beat. Beats are frequent: nothing here may take time."""
        detail = {
            "clock_offset_ms": round(self.clock.offset_s * 1000),
            "waiting_rows": len(self._queue),
            "active_requests": self.count_requests(),
            "leads": self.leads,
            "store": self.restored_generation if self._apply is not None else "",
        }
        return orjson.dumps(detail).decode()

    async def _catch_up(self) -> int:
        if self._apply is None or self._reload is None:
            return self._seen_change
        if self._is_stale:
            await self._reload()
            self._is_stale = False
        seen_change = self._seen_change
        while changes := await self._session.read_changes(seen_change):
            await self._apply(changes)
            seen_change = changes[-1].sequence
        return seen_change

    def _stop_outdated(self, oldest_schema: str) -> None:
        """Stop accepting requests and shares of work, permanently. Requests in progress finish, and are stored."""
        self._is_outdated = True
        self._queue.close()
        self.leadership.end()
        self._sharing_nodes = set()
        self.notifications.deliver(MEMBERS)
        reason = f"the database needs a gateway that knows its schema {oldest_schema}: start the new version"
        log.error("node_outdated", node=self.process, schema=self._session.node.schema, reason=reason)

    async def _beat_outdated(self) -> None:
        """Send a beat, without moving the fence, until every request is stored: a dead node cannot store rows."""
        if self.count_requests() or self._queue or self._queue.failing:
            await self._session.heartbeat(self._seen_change, self._describe(), serves=False)

    async def _register_again(self) -> None:
        """Register again: another node has declared this one dead, and changes since may have left the log."""
        self._queue.close()
        self.leadership.end()
        self._death_watch.forget()
        self._seen_change, self._is_stale = await self._session.register(), True
        log.warning("node_registered_again", node=self.process)
        self._session.wake_event.set()

    async def _restore_store(self) -> None:
        """Store the rows that the store may have lost, and read everything again. Meanwhile the fence does not move."""
        history = self._session.history
        log.warning("store_replaced", node=self.process)
        self.expected_nodes = tuple(self.members)
        self._await_others()
        if self._restore is not None:
            await self._beat_during(self._restore)
        self._seen_change, self._is_stale = await self._session.find_newest_change(), True
        self._history = history
        self._session.wake_event.set()

    async def _beat_during(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` and send beats without moving the fence: a node that is declared dead would begin anew."""
        has_ended = asyncio.Event()
        beats = asyncio.create_task(self._beat_until(has_ended))
        try:
            await work()
        finally:
            has_ended.set()  # a cancelled beat would close the connection
            await beats

    async def _beat_until(self, has_ended: asyncio.Event) -> None:
        while not has_ended.is_set():
            with suppress(StoreUnavailable):  # ``work`` fails, too
                await self._session.heartbeat(self._seen_change, self._describe(), serves=False)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.times.beat_s):
                    await has_ended.wait()

    async def _update_leadership(self) -> None:
        """Try to lead; the leader declares nodes dead. Any other node ends the connection of a dead leader.

        Some beats also end stuck transactions. Every node watches all others: a new leader knows which are dead.
        """
        leads = await self._session.try_lead() and not self._is_outdated
        if leads and not self.leads:
            log.info("node_leads", node=self.process)
        self.leadership.begin() if leads else self.leadership.end()
        self._beat_count += 1
        is_checking = self._beat_count % max(1, self.live_count // CHECKING_NODES) == 0
        leader = await self._session.find_leader() if is_checking and not leads else None
        beats = await self._session.list_beats()
        dead_nodes = self._death_watch.record_beats(beats, read_boot_time())
        if leads:
            await self._declare_dead(dead_nodes)
        elif leader is not None and await self._session.end_leader(
            leader, {node for node, _ in beats.keys() - dead_nodes}
        ):
            log.warning("leader_ended")
        if is_checking:
            for name in await self._session.end_stuck():
                log.warning("stuck_write_ended", node=name)

    async def _declare_dead(self, dead_nodes: Sequence[Registration]) -> None:
        for node, epoch in dead_nodes:
            outdated_jobs = await self._session.list_outdated_jobs(node)
            if await self._session.declare_dead(node, epoch):
                log.warning("node_dead", node=f"{node}:{epoch}")
                for job in outdated_jobs:
                    log.error("job_outdated", job=job, node=f"{node}:{epoch}", reason=_OUTDATED_REASON)
        now_s = read_boot_time()
        if now_s >= self._next_cleanup_s:
            self._next_cleanup_s = now_s + CLEANUP_INTERVAL_S
            for name in await self._session.delete_old_nodes():
                log.info("node_deleted", node=name)
