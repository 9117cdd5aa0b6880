"""Open video jobs: their service, their submissions, and the workers that poll providers and deliver webhooks."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from gateway.background import JobRunner
from gateway.cleanup import RecordCleanup
from gateway.domain.webhook import derive_secret
from gateway.media.cleanup_worker import MediaCleanup
from gateway.proxy.idempotency import IdempotencyService
from gateway.server.context import Services, VideoServices
from gateway.services.leading import run_once
from gateway.services.media_store import sweep_store
from gateway.storage.batches import BatchRepository
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.members import MemberRepository
from gateway.storage.startup_state import StartupState
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.videos.content import VideoContent
from gateway.videos.jobs import Videos
from gateway.videos.poll_worker import VideoPoller
from gateway.videos.provider_api import VideoProviderApi
from gateway.videos.reference_image import References
from gateway.videos.submit import VideoSubmitter
from gateway.videos.tracker import VideoTracker
from gateway.videos.webhook_sender import WebhookSender
from gateway.videos.webhook_worker import WebhookWorker

if TYPE_CHECKING:  # its driver is an extra
    from gateway.cluster.node import ClusterNode
    from gateway.cluster.notifications import NodeNotifications


async def open_videos(services: Services, stack: AsyncExitStack) -> tuple[VideoServices, IdempotencyService]:
    """Open the video jobs, and idempotent requests, whose leases they share. Takes over what earlier processes left.

    Raises ``StoreUnavailable``.
    """
    options, live_config, storage = services.options, services.live_config, services.storage
    database, billing = storage.database, services.billing
    clock = find_clock(options.clock, shared=storage.node is not None)
    api = VideoProviderApi(services.client, services.media.fetcher, services.routing.catalog, clock=clock)
    jobs = Videos(
        VideoRepository(database),
        billing.balances,
        storage.write_queue,
        api,
        rules=live_config.find_video_rules,
        clock=clock,
        wait_scale=options.task_pace,
    )
    if storage.node is not None:
        jobs.owner = storage.node.owner
    content = VideoContent(services.media.stores.videos, api)
    deliveries = WebhookDeliveryRepository(database)
    retention_clock = storage.retention_clock.now
    idempotency = IdempotencyService(IdempotencyRepository(database), jobs.owner, clock, expiry=retention_clock)
    if storage.node is None:  # a node has taken over what its own earlier process left when it registered
        await _take_over(storage.leftovers, jobs, idempotency, deliveries)
    stack.push_async_callback(jobs.close)
    submitter = VideoSubmitter(
        jobs,
        billing.quota,
        billing.settlement,
        proxy=services.proxy,
        video_content=content,
        references=References(services.media.fetcher, services.media.spool),
        find_words=live_config.find_words,
    )
    find_secret = partial(derive_secret, options.folder.secret("webhook.key"))
    return VideoServices(jobs, submitter, content, deliveries, find_secret), idempotency


async def _take_over(
    leftovers: StartupState, jobs: Videos, idempotency: IdempotencyService, deliveries: WebhookDeliveryRepository
) -> None:
    if leftovers.videos:
        await jobs.open()
    if leftovers.replays:
        await idempotency.open()
    if leftovers.deliveries:
        await deliveries.free_deliveries(jobs.owner)


def start_video_workers(services: Services, stack: AsyncExitStack) -> None:
    """Start the workers that poll providers, deliver webhooks, and delete old videos and records."""
    videos, storage, live_config = services.videos, services.storage, services.live_config
    jobs, retention_clock = videos.jobs, storage.retention_clock.now
    owns_channel, owns_account = _divide(storage.node)
    tracker = VideoTracker(jobs, videos.content, retention_clock)
    poller = VideoPoller(jobs, tracker, polls=live_config.find_polls, owns=owns_channel)
    sender = WebhookSender(services.media.fetcher, videos.find_secret, jobs.clock, services.clock)
    deliverer = WebhookWorker(videos.deliveries, sender, jobs.owner, jobs.clock, owns=owns_account)
    poller.idle, deliverer.idle = not storage.leftovers.videos, not storage.leftovers.deliveries
    jobs.begun, jobs.ended, jobs.cancelled = poller.wake, deliverer.wake, poller.drop
    if storage.node is not None:
        jobs.shared = True
        _share_signals(storage.node.notifications, jobs, poller, deliverer)
    members = MemberRepository(storage.database)
    owners, kept = services.routing.response_owners, services.routing.kept_responses
    cleanup = RecordCleanup(
        services.idempotency,
        videos.deliveries,
        jobs.store,
        members,
        retention_clock,
        owners=owners,
        kept=kept,
        batches=BatchRepository(storage.database),
    )
    runner = JobRunner()
    stack.push_async_callback(runner.stop)  # before ``jobs.close``, so that no stopped job is claimed again
    runner.start("poll_videos", poller.run)
    runner.start("deliver_webhooks", deliverer.run)
    sweeper = MediaCleanup(services.media.stores.videos, live_config.find_video_content_rules, retention_clock)
    runner.start("sweep_videos", sweep_store(services, sweeper.run))
    runner.start("sweep_records", run_once(services, cleanup.run))


def _share_signals(
    notifications: "NodeNotifications", jobs: Videos, poller: VideoPoller, deliverer: WebhookWorker
) -> None:
    """Let what happens to a job at one node wake what waits for it at the others."""

    def wake_all(_: str = "") -> None:
        poller.wake()
        deliverer.wake()

    def cancel(video_id: str) -> None:
        poller.drop(video_id)
        notifications.publish("video_cancelled", video_id)

    for kind, handler in (
        ("video_begun", lambda _: poller.wake()),
        ("video_ended", lambda _: deliverer.wake()),
        ("video_cancelled", poller.drop),
        ("video_changed", jobs.notifier.wake),
        ("members", wake_all),
    ):
        notifications.subscribe(kind, handler)
    jobs.begun, jobs.ended = (
        _do_both(poller.wake, notifications, "video_begun"),
        _do_both(deliverer.wake, notifications, "video_ended"),
    )
    jobs.cancelled = cancel
    jobs.notifier.publish_change = partial(notifications.publish, "video_changed")


def _do_both(wake: Callable[[], None], notifications: "NodeNotifications", kind: str) -> Callable[[], None]:
    def wake_everywhere() -> None:
        wake()
        notifications.publish(kind)

    return wake_everywhere


def _divide(node: "ClusterNode | None") -> tuple[Callable[[str], bool] | None, Callable[[int], bool] | None]:
    """Return whether this node polls the jobs of a channel, and whether it delivers the webhooks of an account."""
    if node is None:
        return None, None
    return (lambda channel: node.owns(f"videos {channel}")), (lambda account_id: node.owns(f"webhooks {account_id}"))


def find_clock(clock: Callable[[], float], *, shared: bool) -> Callable[[], float]:
    """Return a clock of Unix seconds that is not affected when the system clock is set.

    A clock that is set must neither end jobs too early nor make leases look old. The clock of a cluster (``shared``) is
    so already, and goes on while the machine is suspended: other nodes compare the leases with it.
    """
    if shared:
        return clock
    started_s, since_s = clock(), time.monotonic()
    return lambda: started_s + time.monotonic() - since_s
