"""The part of the roof under which videos are made: everything of jobs, built and joined."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import attrs

from gateway.background import JobRunner
from gateway.billing.balances import Balances
from gateway.billing.quota import QuotaService
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import WriteQueue
from gateway.cleanup import RecordCleanup
from gateway.config.reload import LiveConfig
from gateway.domain.webhook import derive_secret
from gateway.media.cleanup_worker import MediaCleanup
from gateway.proxy.failover import Proxy
from gateway.proxy.idempotency import IdempotencyService
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.response_owners import ResponseOwners
from gateway.storage.database import Database
from gateway.storage.idempotency import IdempotencyRepository
from gateway.storage.media_files import MediaFiles
from gateway.storage.members import MemberRepository
from gateway.storage.response_owners import ResponseOwnerRepository
from gateway.storage.startup_state import StartupState
from gateway.storage.upload_spool import UploadSpool
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.upstream.interface import Fetcher, HttpClient
from gateway.videos.content import VideoContent
from gateway.videos.jobs import Videos
from gateway.videos.poll_worker import VideoPoller
from gateway.videos.provider_api import VideoProviderApi
from gateway.videos.reference_image import References
from gateway.videos.submit import VideoSubmitter
from gateway.videos.tracker import VideoTracker
from gateway.videos.webhook_sender import WebhookSender
from gateway.videos.webhook_worker import WebhookWorker


@attrs.frozen
class Materials:
    """What it is built of.

    Attributes:
        left: what earlier processes have left of jobs.
        folder: of the files of videos.
        webhook_key: what every API key's webhook secret is made from.
        clock: Unix seconds.
        pace: what waits for providers are multiplied by.
    """

    database: Database
    left: StartupState
    folder: Path
    webhook_key: bytes
    in_force: LiveConfig
    upstream: HttpClient
    fetcher: Fetcher
    spool: UploadSpool
    catalog: ModelCatalog
    bank: Balances
    outbox: WriteQueue
    admission: QuotaService
    settlement: Settlement
    relay: Proxy
    clock: Callable[[], float]
    expiry: Callable[[], float]
    pace: float


@attrs.frozen
class Cinema:
    """What others need of it."""

    videos: Videos
    submissions: VideoSubmitter
    video_content: VideoContent
    replays: IdempotencyService
    response_owners: ResponseOwners
    deliveries: WebhookDeliveryRepository
    find_secret: Callable[[int], bytes]
    runner: JobRunner
    jobs: tuple[tuple[str, Callable[[], Awaitable[None]]], ...]

    def start(self) -> None:
        """Set its jobs to work."""
        for name, job in self.jobs:
            self.runner.start(name, job)


async def open_cinema(materials: Materials, stack: AsyncExitStack) -> Cinema:
    """Build it; what earlier processes have left of jobs is taken over. Raises ``StoreUnavailable``."""
    clock = make_steady(materials.clock)
    in_force = materials.in_force
    filming = VideoProviderApi(materials.upstream, materials.fetcher, materials.catalog, clock=clock)
    videos = Videos(
        VideoRepository(materials.database),
        materials.bank,
        materials.outbox,
        filming,
        rules=in_force.find_video_rules,
        clock=clock,
        pace=materials.pace,
    )
    store = MediaFiles(materials.folder)
    video_content = VideoContent(store, filming)
    deliveries, members = WebhookDeliveryRepository(materials.database), MemberRepository(materials.database)
    replays = IdempotencyService(
        IdempotencyRepository(materials.database), videos.owner, clock, expiry=materials.expiry
    )
    await _take_over(left := materials.left, videos, replays, deliveries)
    owners = _open_response_owners(materials, stack)
    stack.push_async_callback(videos.close)
    runner = JobRunner()
    stack.push_async_callback(runner.stop)  # before ``videos.close``: what is stopped claims nothing again
    find_secret = partial(derive_secret, materials.webhook_key)
    poll = VideoPoller(videos, VideoTracker(videos, video_content, materials.expiry), polls=in_force.find_polls)
    webhook_sender = WebhookSender(materials.fetcher, find_secret, clock, materials.clock)
    deliver = WebhookWorker(deliveries, webhook_sender, videos.owner, clock)
    poll.idle, deliver.idle = not left.videos, not left.deliveries
    videos.begun, videos.ended, videos.cancelled = poll.wake, deliver.wake, poll.drop
    sweep = RecordCleanup(replays, deliveries, videos.store, members, materials.expiry, owners=owners)
    jobs = (
        ("poll_videos", poll.run),
        ("deliver_webhooks", deliver.run),
        ("sweep_videos", MediaCleanup(store, in_force.find_video_content_rules, materials.expiry).run),
        ("sweep_records", sweep.run),
    )
    submissions = _build_submissions(materials, videos, video_content)
    return Cinema(videos, submissions, video_content, replays, owners, deliveries, find_secret, runner, jobs)


def _open_response_owners(materials: Materials, stack: AsyncExitStack) -> ResponseOwners:
    owners = ResponseOwners(ResponseOwnerRepository(materials.database), materials.clock)
    stack.push_async_callback(owners.close)
    return owners


async def _take_over(
    left: StartupState, videos: Videos, replays: IdempotencyService, deliveries: WebhookDeliveryRepository
) -> None:
    if left.videos:
        await videos.open()
    if left.replays:
        await replays.open()
    if left.deliveries:
        await deliveries.free_deliveries(videos.owner)


def _build_submissions(materials: Materials, videos: Videos, video_content: VideoContent) -> VideoSubmitter:
    return VideoSubmitter(
        videos,
        materials.admission,
        materials.settlement,
        relay=materials.relay,
        video_content=video_content,
        references=References(materials.fetcher, materials.spool),
    )


def make_steady(clock: Callable[[], float]) -> Callable[[], float]:
    """Unix seconds that go on as fast as time does: whoever sets the clock makes no job late, nor any lease old."""
    began_s, since_s = clock(), time.monotonic()
    return lambda: began_s + time.monotonic() - since_s
