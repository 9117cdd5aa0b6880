"""Open video jobs: their service, their submission, and the workers that poll providers and deliver webhooks."""

from contextlib import AsyncExitStack
from functools import partial

from gateway.background import JobRunner
from gateway.cleanup import RecordCleanup
from gateway.domain.webhook import derive_secret
from gateway.media.cleanup_worker import MediaCleanup
from gateway.proxy.idempotency import IdempotencyService
from gateway.server.context import Services, VideoServices
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


async def open_videos(services: Services, stack: AsyncExitStack) -> tuple[VideoServices, IdempotencyService]:
    """Open video jobs and idempotent requests, which share leases. Take over the work of earlier processes.

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
    if storage.node is None:  # a node has done this for its own earlier process at registration
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
    options, billing, deployment = services.options, services.billing, services.storage.deployment
    store, clock = billing.reservations.store, billing.reservations.clock
    return VideoJobs(
        store,
        billing.reservations,
        JobTasks(store, deployment.owner, wait_scale=options.task_pace),
        VideoProviderApi(services.client, services.media.fetcher, services.routing.catalog, clock=clock),
        deployment.open_events(),
        rules=services.live_config.find_video_rules,
        clock=clock,
        wait_scale=options.task_pace,
    )


async def _take_over(
    leftovers: StartupState, jobs: VideoJobs, idempotency: IdempotencyService, deliveries: WebhookDeliveryRepository
) -> None:
    if leftovers.videos:
        await jobs.restore_reservations()
    if leftovers.replays:
        await idempotency.open()
    if leftovers.deliveries:
        await deliveries.free_deliveries(jobs.tasks.owner)


def start_video_workers(services: Services, stack: AsyncExitStack) -> None:
    """Start the workers that poll providers, deliver webhooks, and delete old videos and records."""
    videos, storage, live_config = services.videos, services.storage, services.live_config
    jobs, retention_clock = videos.jobs, storage.retention_clock.now
    tracker = VideoTracker(jobs, videos.content, retention_clock)
    poller = VideoPoller(
        jobs,
        tracker,
        jobs.events,
        polls=live_config.find_polls,
        owns=storage.deployment.divide("videos"),
        idle=not storage.leftovers.videos,
    )
    sender = WebhookSender(services.media.fetcher, videos.find_secret, jobs.clock, services.clock)
    deliverer = WebhookWorker(
        videos.deliveries,
        sender,
        jobs.events,
        owner=jobs.tasks.owner,
        clock=jobs.clock,
        owns=storage.deployment.divide("webhooks"),
        idle=not storage.leftovers.deliveries,
    )
    runner = JobRunner()
    stack.push_async_callback(runner.stop)  # before ``JobTasks.close``, so that no stopped job is claimed again
    runner.start("poll_videos", poller.run)
    runner.start("deliver_webhooks", deliverer.run)
    sweeper = MediaCleanup(services.media.stores.videos, live_config.find_video_content_rules, retention_clock)
    runner.start("sweep_videos", sweep_store(services, sweeper.run))
    runner.start("sweep_records", storage.deployment.run_once(_open_cleanup(services).run))


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
