"""Open video jobs: their service, their submissions, and the workers that poll providers and deliver webhooks."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from gateway.background import JobRunner
from gateway.cleanup import RecordCleanup
from gateway.domain.webhook import derive_secret
from gateway.events import Events
from gateway.media.cleanup_worker import MediaCleanup
from gateway.proxy.idempotency import IdempotencyService
from gateway.server.context import Services, VideoServices
from gateway.services.leading import run_once
from gateway.services.media_store import sweep_store
from gateway.storage.batches import BatchRepository
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.members import MemberRepository
from gateway.storage.startup_state import StartupState
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.videos.content import VideoContent
from gateway.videos.job_tasks import JobTasks
from gateway.videos.jobs import VideoJobs
from gateway.videos.notifier import JobNotifier
from gateway.videos.poll_worker import VideoPoller
from gateway.videos.provider_api import VideoProviderApi
from gateway.videos.reference_image import References
from gateway.videos.submit import VideoSubmitter
from gateway.videos.tracker import VideoTracker
from gateway.videos.webhook_sender import WebhookSender
from gateway.videos.webhook_worker import WebhookWorker

if TYPE_CHECKING:  # its driver is an extra
    from gateway.cluster.membership.node import ClusterNode


async def open_videos(services: Services, stack: AsyncExitStack) -> tuple[VideoServices, IdempotencyService]:
    """Open the video jobs, and idempotent requests, whose leases they share. Takes over what earlier processes left.

    Raises ``StoreUnavailable``.
    """
    options, live_config, storage = services.options, services.live_config, services.storage
    billing, database = services.billing, storage.database
    jobs = _open_jobs(services)
    content = VideoContent(services.media.stores.videos, jobs.provider_api)
    deliveries = WebhookDeliveryRepository(database)
    retention_clock = storage.retention_clock.now
    idempotency = IdempotencyService(
        IdempotencyRepository(database), jobs.tasks.owner, jobs.clock, expiry=retention_clock
    )
    if storage.node is None:  # a node has taken over what its own earlier process left when it registered
        await _take_over(storage.leftovers, jobs, idempotency, deliveries)
    stack.push_async_callback(jobs.tasks.close)
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
    return VideoServices(jobs, JobNotifier(jobs.events), submitter, content, deliveries, find_secret), idempotency


def _open_jobs(services: Services) -> VideoJobs:
    options, billing, node = services.options, services.billing, services.storage.node
    store, clock = billing.reservations.store, billing.reservations.clock
    return VideoJobs(
        store,
        billing.reservations,
        JobTasks(store, None if node is None else node.owner, wait_scale=options.task_pace),
        VideoProviderApi(services.client, services.media.fetcher, services.routing.catalog, clock=clock),
        _open_events(node),
        rules=services.live_config.find_video_rules,
        clock=clock,
        wait_scale=options.task_pace,
    )


def _open_events(node: "ClusterNode | None") -> Events:
    if node is None:
        return Events()
    from gateway.cluster.membership.job_events import connect_events  # noqa: PLC0415 - of a cluster

    return connect_events(node.notifications)


async def _take_over(
    leftovers: StartupState, jobs: VideoJobs, idempotency: IdempotencyService, deliveries: WebhookDeliveryRepository
) -> None:
    if leftovers.videos:
        await jobs.take_over()
    if leftovers.replays:
        await idempotency.open()
    if leftovers.deliveries:
        await deliveries.free_deliveries(jobs.tasks.owner)


def start_video_workers(services: Services, stack: AsyncExitStack) -> None:
    """Start the workers that poll providers, deliver webhooks, and delete old videos and records."""
    videos, storage, live_config = services.videos, services.storage, services.live_config
    jobs, retention_clock = videos.jobs, storage.retention_clock.now
    owns_channel, owns_account = _divide(storage.node)
    tracker = VideoTracker(jobs, videos.content, retention_clock)
    poller = VideoPoller(
        jobs,
        tracker,
        jobs.events,
        polls=live_config.find_polls,
        owns=owns_channel,
        idle=not storage.leftovers.videos,
    )
    sender = WebhookSender(services.media.fetcher, videos.find_secret, jobs.clock, services.clock)
    deliverer = WebhookWorker(
        videos.deliveries,
        sender,
        jobs.events,
        owner=jobs.tasks.owner,
        clock=jobs.clock,
        owns=owns_account,
        idle=not storage.leftovers.deliveries,
    )
    runner = JobRunner()
    stack.push_async_callback(runner.stop)  # before ``JobTasks.close``, so that no stopped job is claimed again
    runner.start("poll_videos", poller.run)
    runner.start("deliver_webhooks", deliverer.run)
    sweeper = MediaCleanup(services.media.stores.videos, live_config.find_video_content_rules, retention_clock)
    runner.start("sweep_videos", sweep_store(services, sweeper.run))
    runner.start("sweep_records", run_once(services, _open_cleanup(services).run))


def _open_cleanup(services: Services) -> RecordCleanup:
    database, routing = services.storage.database, services.routing
    return RecordCleanup(
        services.idempotency,
        services.videos.deliveries,
        services.videos.jobs.store,
        MemberRepository(database),
        services.storage.retention_clock.now,
        owners=routing.response_owners,
        kept=routing.kept_responses,
        batches=BatchRepository(database),
    )


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
