"""Opens video jobs: their service, their submission, and the workers that poll providers and deliver webhooks."""

from contextlib import AsyncExitStack

from gateway.background import JobRunner
from gateway.cleanup import RecordCleanup
from gateway.domain.webhook import derive_secret
from gateway.media.cleanup_worker import MediaCleanup
from gateway.proxy.failover import Proxy
from gateway.proxy.idempotency import IdempotencyService
from gateway.routing.model_catalog import ModelCatalog
from gateway.server.context import BillingServices, MediaServices, Services, VideoServices
from gateway.services.base import BaseServices
from gateway.services.media_store import sweep_store
from gateway.storage.batches import BatchRepository, find_no_process
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.members import MemberRepository
from gateway.storage.startup_state import StartupState
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.upstream.interface import HttpClient
from gateway.videos.content import VideoContent
from gateway.videos.job_tasks import JobTasks
from gateway.videos.jobs import VideoJobs
from gateway.videos.notifier import JobNotifier
from gateway.videos.poll_worker import VideoPoller
from gateway.videos.provider_api import VideoProviderApi
from gateway.videos.reference_image import References
from gateway.videos.reservations import JobReservations
from gateway.videos.submit import VideoSubmitter
from gateway.videos.tracker import VideoTracker
from gateway.videos.webhook_sender import WebhookSender
from gateway.videos.webhook_worker import WebhookWorker


async def open_videos(
    base: BaseServices,
    billing: BillingServices,
    media: MediaServices,
    stack: AsyncExitStack,
    *,
    client: HttpClient,
    proxy: Proxy,
    catalog: ModelCatalog,
) -> tuple[VideoServices, IdempotencyService]:
    """Open video jobs and idempotent requests, which share a process name. Take over the work of earlier processes."""
    storage, database = base.storage, base.storage.database
    provider_api = VideoProviderApi(client, media.fetcher, catalog, clock=billing.reservations.clock)
    jobs = _open_jobs(base, billing.reservations, provider_api)
    content = VideoContent(media.stores.videos, provider_api)
    deliveries = WebhookDeliveryRepository(database)
    idempotency = IdempotencyService(
        IdempotencyRepository(database), jobs.tasks.process, jobs.clock, expiry_clock=storage.retention_clock.now
    )
    if storage.node is None:  # a node has done this for its own earlier process at registration
        await _take_over(storage.leftovers, jobs, idempotency, deliveries)
    stack.push_async_callback(jobs.tasks.close)
    submitter = VideoSubmitter(
        jobs,
        billing.quota,
        billing.settlement,
        proxy=proxy,
        video_content=content,
        references=References(media.fetcher, media.spool),
        find_words=base.live_config.find_words,
    )
    key = base.options.folder.secret("webhook.key")

    def find_secret(key_id: int) -> bytes:
        return derive_secret(key, key_id)

    return VideoServices(jobs, JobNotifier(jobs.events), submitter, content, deliveries, find_secret), idempotency


def _open_jobs(base: BaseServices, reservations: JobReservations, provider_api: VideoProviderApi) -> VideoJobs:
    deployment, wait_scale = base.storage.deployment, base.options.task_pace
    return VideoJobs(
        reservations.store,
        reservations,
        JobTasks(reservations.store, deployment.process, wait_scale=wait_scale),
        provider_api,
        deployment.open_events(),
        find_rules=base.live_config.find_video_rules,
        clock=reservations.clock,
        wait_scale=wait_scale,
    )


async def _take_over(
    leftovers: StartupState, jobs: VideoJobs, idempotency: IdempotencyService, deliveries: WebhookDeliveryRepository
) -> None:
    if leftovers.videos:
        await jobs.restore_reservations()
    if leftovers.replays:
        await idempotency.open()
    if leftovers.deliveries:
        await deliveries.free_deliveries(jobs.tasks.process)


def start_video_workers(services: Services, stack: AsyncExitStack) -> None:
    """Start the workers that poll providers, deliver webhooks, and delete old videos and records."""
    videos, storage, live_config = services.videos, services.storage, services.live_config
    jobs, retention_clock = videos.jobs, storage.retention_clock.now
    tracker = VideoTracker(jobs, videos.content, retention_clock)
    poller = VideoPoller(
        jobs,
        tracker,
        jobs.events,
        find_max_polls=live_config.find_polls,
        owns=storage.deployment.make_owner_check("videos"),
        idle=not storage.leftovers.videos,
    )
    sender = WebhookSender(services.media.fetcher, videos.find_secret, jobs.clock, services.clock)
    deliverer = WebhookWorker(
        videos.deliveries,
        sender,
        jobs.events,
        owner=jobs.tasks.process,
        clock=jobs.clock,
        owns=storage.deployment.make_owner_check("webhooks"),
        idle=not storage.leftovers.deliveries,
    )
    runner = JobRunner()
    stack.push_async_callback(runner.stop)  # before ``JobTasks.close``, so that no stopped job is claimed again
    runner.start("poll_videos", poller.run)
    runner.start("deliver_webhooks", deliverer.run)
    sweeper = MediaCleanup(services.media.stores.videos, live_config.find_video_content_rules, retention_clock)
    runner.start("sweep_videos", sweep_store(services.media.stores, storage.deployment, sweeper.run))
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
        kept_responses=routing.kept_responses,
        batches=BatchRepository(database, find_no_process),
    )
