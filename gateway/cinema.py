"""The part of the roof under which videos are made: everything of jobs, built and joined."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import attrs

from gateway.background import JobRunner
from gateway.billing.quota import Admission, Bank
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import Outbox
from gateway.cleanup import SweepRecords
from gateway.config.reload import InForce
from gateway.domain.webhook import derive_secret
from gateway.media.cleanup_worker import SweepMedia
from gateway.proxy.failover import Relay
from gateway.proxy.idempotency import Replays
from gateway.routing.model_catalog import Catalog
from gateway.routing.response_owners import ResponseOwners
from gateway.storage.database import Database
from gateway.storage.idempotency import SqlReplayStore
from gateway.storage.media_files import FileMediaStore
from gateway.storage.members import SqlMemberStore
from gateway.storage.response_owners import SqlResponseOwners
from gateway.storage.startup_state import Leftovers
from gateway.storage.upload_spool import Spool
from gateway.storage.videos import SqlVideoStore
from gateway.storage.webhook_deliveries import SqlDeliveryStore
from gateway.upstream.interface import Fetcher, Upstream
from gateway.videos.content import Footage
from gateway.videos.jobs import Videos
from gateway.videos.poll_worker import PollVideos
from gateway.videos.provider_api import Filming
from gateway.videos.reference_image import References
from gateway.videos.submit import Submissions
from gateway.videos.tracker import Watch
from gateway.videos.webhook_sender import Teller
from gateway.videos.webhook_worker import DeliverWebhooks


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
    left: Leftovers
    folder: Path
    webhook_key: bytes
    in_force: InForce
    upstream: Upstream
    fetcher: Fetcher
    spool: Spool
    catalog: Catalog
    bank: Bank
    outbox: Outbox
    admission: Admission
    settlement: Settlement
    relay: Relay
    clock: Callable[[], float]
    expiry: Callable[[], float]
    pace: float


@attrs.frozen
class Cinema:
    """What others need of it."""

    videos: Videos
    submissions: Submissions
    footage: Footage
    replays: Replays
    response_owners: ResponseOwners
    deliveries: SqlDeliveryStore
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
    filming = Filming(materials.upstream, materials.fetcher, materials.catalog, clock=clock)
    videos = Videos(
        SqlVideoStore(materials.database),
        materials.bank,
        materials.outbox,
        filming,
        rules=in_force.find_video_rules,
        clock=clock,
        pace=materials.pace,
    )
    store = FileMediaStore(materials.folder)
    footage = Footage(store, filming)
    deliveries, members = SqlDeliveryStore(materials.database), SqlMemberStore(materials.database)
    replays = Replays(SqlReplayStore(materials.database), videos.owner, clock, expiry=materials.expiry)
    await _take_over(left := materials.left, videos, replays, deliveries)
    owners = _open_response_owners(materials, stack)
    stack.push_async_callback(videos.close)
    runner = JobRunner()
    stack.push_async_callback(runner.stop)  # before ``videos.close``: what is stopped claims nothing again
    find_secret = partial(derive_secret, materials.webhook_key)
    poll = PollVideos(videos, Watch(videos, footage, materials.expiry), polls=in_force.find_polls)
    teller = Teller(materials.fetcher, find_secret, clock, materials.clock)
    deliver = DeliverWebhooks(deliveries, teller, videos.owner, clock)
    poll.idle, deliver.idle = not left.videos, not left.deliveries
    videos.begun, videos.ended, videos.cancelled = poll.wake, deliver.wake, poll.drop
    sweep = SweepRecords(replays, deliveries, videos.store, members, materials.expiry, owners=owners)
    jobs = (
        ("poll_videos", poll.run),
        ("deliver_webhooks", deliver.run),
        ("sweep_videos", SweepMedia(store, in_force.find_footage_rules, materials.expiry).run),
        ("sweep_records", sweep.run),
    )
    submissions = _build_submissions(materials, videos, footage)
    return Cinema(videos, submissions, footage, replays, owners, deliveries, find_secret, runner, jobs)


def _open_response_owners(materials: Materials, stack: AsyncExitStack) -> ResponseOwners:
    owners = ResponseOwners(SqlResponseOwners(materials.database), materials.clock)
    stack.push_async_callback(owners.close)
    return owners


async def _take_over(left: Leftovers, videos: Videos, replays: Replays, deliveries: SqlDeliveryStore) -> None:
    if left.videos:
        await videos.open()
    if left.replays:
        await replays.open()
    if left.deliveries:
        await deliveries.free_deliveries(videos.owner)


def _build_submissions(materials: Materials, videos: Videos, footage: Footage) -> Submissions:
    return Submissions(
        videos,
        materials.admission,
        materials.settlement,
        relay=materials.relay,
        footage=footage,
        references=References(materials.fetcher, materials.spool),
    )


def make_steady(clock: Callable[[], float]) -> Callable[[], float]:
    """Unix seconds that go on as fast as time does: whoever sets the clock makes no job late, nor any lease old."""
    began_s, since_s = clock(), time.monotonic()
    return lambda: began_s + time.monotonic() - since_s
