"""A stage for scenes of videos: channels, a provider who answers as it is told, and everything else in memory.

Its clock is that of the event loop, so that on a loop whose clock jumps a day passes in no time.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import orjson
from typing_extensions import override

from gateway.billing.balances import Balances
from gateway.billing.quota import QuotaService
from gateway.billing.rate_limiter import InMemoryRateLimiter
from gateway.billing.settlement import Settlement
from gateway.billing.write_queue import WriteQueue
from gateway.domain.account import Account, ApiKey, Caller
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.media import CleanupResult, Media, UnknownMedia, sniff_media
from gateway.domain.price import Price, PriceList
from gateway.domain.rate_limit import Limits
from gateway.domain.request_log import RequestFilter, RequestRecord, RequestStart
from gateway.domain.video import VideoJob, VideoRequest, VideoRules
from gateway.errors import ProviderContentGone, ProviderError, StoreUnavailable
from gateway.events import Events
from gateway.proxy.failover import Proxy
from gateway.request_context import RequestContext
from gateway.routing.load_balancer import DEFAULT_SETTINGS, LoadBalancer
from gateway.routing.model_catalog import ModelCatalog
from gateway.routing.pricing_policy import PricingPolicy
from gateway.routing.router import Router
from gateway.storage.database import Database
from gateway.storage.journal import RequestJournal
from gateway.storage.media_store import MediaDraft, MediaStore
from gateway.storage.upload_spool import UploadSpool
from gateway.storage.videos import VideoRepository
from gateway.storage.webhook_deliveries import WebhookDeliveryRepository
from gateway.upstream.interface import FetchedFile, FileRequest, PumpResult, Sink
from gateway.upstream.safe_fetch import SafeFetcher
from gateway.videos.content import VideoContent
from gateway.videos.events import JobEnded, JobStarted
from gateway.videos.job_tasks import JobTasks
from gateway.videos.jobs import VideoJobs
from gateway.videos.notifier import JobNotifier
from gateway.videos.provider_api import VideoProviderApi
from gateway.videos.reference_image import References
from gateway.videos.reservations import JobReservations
from gateway.videos.submit import VideoSubmitter
from gateway.videos.tracker import VideoTracker
from tests.support.contexts import make_context
from tests.support.repositories import Repositories
from tests.support.skip_rules import run_skipping
from tests.support.video_records import put_job

EPOCH_S = 1_750_000_000
CLIP = b"\0\0\0\x18ftypisom\0\0\x02\0isommp42" + b"film" * 1_000
A_SECOND = 100_000_000
"""What one of a video costs, in nano-USD."""
FULL_HD = 300_000_000
PRICE = Price("*", second_nanos=A_SECOND, sizes=(("1920x1080", FULL_HD),))
KNOWN = Capability("*", sizes=("1280x720", "1920x1080"), seconds=(4, 8))
CALLER = Caller(Account(1, "acme"), ApiKey(7, 1, "laptop", b"", ""))
ID = "video_theirs"
run = run_skipping


@attrs.frozen
class Answered:
    """What a provider answers, after ``wait_s``; its body may break."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}
    wait_s: float = 0.0
    breaks: ProviderError | None = None


Answer = Answered | Exception
Clerk = Callable[["Asked"], Answer | Awaitable[Answer]]


@attrs.frozen
class Asked:
    """A request as the provider saw it."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str]
    http_request: HttpRequest


class Reply:
    """``upstream.port.Reply`` over a ``Answered``."""

    def __init__(self, answered: Answered) -> None:
        self.status, self.headers = answered.status, answered.headers
        self._raw = answered.body if isinstance(answered.body, bytes) else orjson.dumps(answered.body)
        self._breaks = answered.breaks
        self.closed = False

    async def read(self, limit: int) -> bytes:
        if self._breaks is not None:
            raise self._breaks
        assert len(self._raw) <= limit
        return self._raw

    async def pump(self, sink: Sink) -> PumpResult:
        raise AssertionError(sink)

    def abort(self, error: ProviderError) -> None:
        raise AssertionError(error)

    def finish(self) -> None:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


class Provider:
    """``upstream.port.Upstream``: answers as ``clerk`` says, and keeps what it was asked."""

    def __init__(self, clerk: Clerk) -> None:
        self.clerk = clerk
        self.asked: list[Asked] = []
        self.replies: list[Reply] = []

    async def send(self, http_request: HttpRequest) -> Reply:
        body = orjson.loads(http_request.body) if isinstance(http_request.body, bytes) else http_request.body
        asked = Asked(
            http_request.method, http_request.url.partition("/v1")[2], body, http_request.headers, http_request
        )
        self.asked.append(asked)
        answer = self.clerk(asked)
        answered = await answer if isinstance(answer, Awaitable) else answer
        if isinstance(answered, Exception):
            raise answered
        await asyncio.sleep(answered.wait_s)
        self.replies.append(Reply(answered))
        return self.replies[-1]

    async def close(self) -> None: ...

    @property
    def begun(self) -> int:
        """How often it was asked to begin something."""
        return sum(asked.method == "POST" for asked in self.asked)


def play(*answers: Answer) -> Clerk:
    """Answers in their order, the last again and again."""
    left = list(answers)
    return lambda _asked: left.pop(0) if len(left) > 1 else left[0]


def task(status: str = "queued", **more: Any) -> Answered:
    """What a server of the convention says of a task."""
    headers = more.pop("headers", {})
    return Answered({"id": ID, "object": "video", "status": status, "progress": 0, **more}, headers=headers)


def refuse(status: int, message: str = "No", code: str | None = None, **headers: str) -> Answered:
    """Its error object."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answered({"error": {"message": message, "type": "x", "code": code}}, status, named)


@attrs.define
class FileDouble(FetchedFile):
    """A file of pieces; an exception among them is raised."""

    pieces: list[bytes | Exception]
    length: int | None = None
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    closed: bool = False

    async def read(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self) -> None:
        self.closed = True


class Files(SafeFetcher):
    """Answers are in turn, the last again and again."""

    def __init__(self) -> None:
        self.reels: list[FileDouble | Exception] = []
        self.asked: list[FileRequest] = []
        self.images: dict[str, bytes] = {}

    @override
    async def open(self, file_request: FileRequest) -> FileDouble:
        self.asked.append(file_request)
        if not self.reels:
            return FileDouble([CLIP], len(CLIP))
        reel = self.reels.pop(0) if len(self.reels) > 1 else self.reels[0]
        if isinstance(reel, Exception):
            raise reel
        return reel

    @override
    async def fetch(self, url: str, **_more: Any) -> bytes:
        if url not in self.images:
            raise ProviderContentGone("It is not there")
        return self.images[url]

    @override
    async def post(self, *_args: Any, **_more: Any) -> int:
        raise AssertionError

    @override
    async def close(self) -> None: ...


class StoreDouble(MediaStore):
    """Media in a dictionary; while it is ``full`` nothing can be written to it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.drafts: list[Draft] = []
        self.full = False

    @override
    async def put(self, data: bytes) -> Media:
        raise AssertionError

    @override
    def open_draft(self) -> "Draft":
        self.drafts.append(Draft(self))
        return self.drafts[-1]

    @override
    def check_room(self) -> None:
        if self.full:
            raise StoreUnavailable("no room")

    @override
    async def find(self, media_id: str) -> Media | None:
        data = self.files.get(media_id)
        return None if data is None else Media(media_id, "video/mp4", len(data), 0.0, Path(media_id))

    @override
    async def remove(self, media_id: str) -> bool:
        self.check_room()
        return self.files.pop(media_id, None) is not None

    @override
    async def sweep(self, *, before_s: float, max_bytes: int) -> CleanupResult:
        raise AssertionError

    @property
    def open_drafts(self) -> int:
        return sum(not draft.ended for draft in self.drafts)


@attrs.define
class Draft(MediaDraft):
    """What is written to a ``StoreDouble``."""

    shelf: StoreDouble
    data: bytes = b""
    ended: bool = False

    async def write(self, piece: bytes) -> None:
        self.shelf.check_room()
        self.data += piece

    async def keep(self) -> Media:
        self.ended = True
        self.shelf.check_room()
        media_type = sniff_media(self.data)
        if media_type is None:
            raise UnknownMedia("none")
        media_id = f"{len(self.shelf.files)}.mp4"
        self.shelf.files[media_id] = self.data
        return Media(media_id, media_type, len(self.data), 0.0, Path(media_id))

    def discard(self) -> None:
        self.ended = True


class UnreliableStore(VideoRepository):
    """A store that refuses the verbs in ``refused``, each the number of times that it has there.

    Attributes:
        lost: by its verb, which call is done and its answer lost.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.refused: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self.tried: list[str] = []

    def _check(self, verb: str) -> None:
        self.tried.append(verb)
        if self.refused.get(verb, 0) > 0:
            self.refused[verb] -= 1
            raise StoreUnavailable("not now")

    def _lose(self, verb: str) -> None:
        self.lost[verb] = self.lost.get(verb, 0) - 1
        if self.lost[verb] == 0:
            raise StoreUnavailable("the answer was lost")

    async def create(self, job: VideoJob, *most_open: int) -> bool:
        self._check("create")
        created = await super().create(job, *most_open)
        self._lose("create")
        return created

    async def advance(self, changes: Iterable[tuple[VideoJob, VideoJob]]) -> Sequence[bool]:
        self._check("advance")
        moved = await super().advance(changes)
        self._lose("advance")
        return moved

    async def finish(self, job: VideoJob, *rest: Any) -> bool:
        self._check("finish")
        finished = await super().finish(job, *rest)
        self._lose("finish")
        return finished

    async def drop(self, job: VideoJob, row: RequestRecord) -> bool:
        self._check("drop")
        return await super().drop(job, row)

    async def release(self, owner: str, *, others_only: bool = False) -> int:
        self._check("release")
        return await super().release(owner, others_only=others_only)


class UnusedJournal(RequestJournal):
    """Nothing of a video goes there."""

    def __init__(self) -> None:
        self.failing = False

    @override
    def start_at_once(self, start: RequestStart) -> bool:
        raise AssertionError(start)

    @override
    def record_end(self, row: RequestRecord) -> None:
        raise AssertionError(row)


class VideoServices:
    """The rooms of a video, over channels ``up``, ``up1``, …, one for each of ``providers``."""

    def __init__(self, clerk: Clerk, *providers: str, models: Sequence[Capability] = (KNOWN,), **more: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.provider, self.files, self.shelf = Provider(clerk), Files(), StoreDouble()
        self.rules = VideoRules()
        self.books = Repositories()
        self.deliveries = WebhookDeliveryRepository(self.books.database)
        self.store = UnreliableStore(self.books.database)
        self.catalog, self.board = (
            ModelCatalog(clock=lambda: 0.0),
            LoadBalancer(self.loop.time, settings=DEFAULT_SETTINGS, shared=None),
        )
        self.channels = [make_channel(number, slug, **more) for number, slug in enumerate(providers or ("custom",))]
        self.use(*self.channels)
        self.router = Router(self.catalog, self.board, PricingPolicy(PriceList([PRICE])), models=(), routes={})
        self.router.models = tuple(models)
        self.write_queue, self.balances = WriteQueue(), Balances(self.clock)
        self.quota = QuotaService(
            self.balances,
            InMemoryRateLimiter(self.loop.time),
            UnusedJournal(),
            self.write_queue,
            refresh=lambda caller: caller,
        )
        self.proxy = Proxy(self.provider, self.board, clock=self.clock)
        self.provider_api = VideoProviderApi(self.provider, self.files, self.catalog, clock=self.clock)
        self.events = Events()
        self.notifier = JobNotifier(self.events)
        self.videos = self.make_videos(self.events)
        self.tasks, self.reservations = self.videos.tasks, self.videos.reservations
        self.video_content = VideoContent(self.shelf, self.provider_api)
        self.watch = VideoTracker(self.videos, self.video_content, self.clock)
        settlement = Settlement(
            self.quota, UnusedJournal(), self.write_queue, find_abandoned=lambda: "charge", ended=deque()
        )
        self.submissions = VideoSubmitter(
            self.videos,
            self.quota,
            settlement,
            proxy=self.proxy,
            video_content=self.video_content,
            references=References(self.files, UploadSpool(Path("unused"), limit_bytes=0)),
            find_words=lambda: None,
        )
        self.rung: list[str] = []
        self.events.subscribe(JobStarted, lambda _: self.rung.append("begun"))
        self.events.subscribe(JobEnded, lambda _: self.rung.append("ended"))
        self._numbers = count(1)

    def make_videos(self, events: Events | None = None) -> VideoJobs:
        """Another process over the same store; of this one there is ``videos``."""
        reservations = JobReservations(
            self.store, self.balances, self.write_queue, keep_record=lambda _: None, clock=self.clock
        )
        return VideoJobs(
            self.store,
            reservations,
            JobTasks(self.store),
            self.provider_api,
            events or Events(),
            find_rules=lambda: self.rules,
            clock=self.clock,
        )

    def use(self, *channels: Channel) -> None:
        """These are the channels now."""
        self.catalog.set_channels(channels)
        self.board.set_channels(channels)

    def clock(self) -> float:
        return EPOCH_S + self.loop.time()

    @property
    def now_ms(self) -> int:
        return self.videos.now_ms

    @property
    def held(self) -> int:
        """What is set aside in the account's purse, in nano-USD."""
        return self.balances.find_balance("account", CALLER.account.id).held_nanos

    def order(self, caller: Caller = CALLER, **body: Any) -> RequestContext:
        """A call for a video on its way."""
        video = VideoRequest("a cat", **body)
        inference = InferenceRequest(
            "video_remixes" if video.remix_of else "videos", "m", {"seed": 7}, prompt_chars=5, video=video
        )
        return make_context(
            caller,
            inference,
            operation=inference.operation,
            request_id=f"req_{next(self._numbers)}",
            target_list=self.router.route(caller, inference),
            started_ms=self.now_ms,
            started_at=self.loop.time(),
        )

    async def submit(self, **body: Any) -> VideoJob:
        """A job that was begun."""
        return await self.submissions.submit(self.order(**body))

    async def find(self, job: VideoJob) -> VideoJob:
        """As it is on record."""
        found = await self.store.find(job.id)
        assert found is not None
        return found

    async def claim(self, job: VideoJob) -> VideoJob:
        """As it is when this process looks at it."""
        after = attrs.evolve(await self.find(job), owner=self.tasks.process, lease_until_ms=self.now_ms + 30_000)
        await put_job(self.store, after)
        return after

    async def rows(self) -> list[RequestRecord]:
        """Every row, in the order of writing."""
        return [stored.row for stored in await self.books.list_requests(RequestFilter(), 1_000)]


def make_channel(number: int, slug: str, **more: Any) -> Channel:
    """A channel that serves the model ``m``; the first goes first."""
    name = f"up{number or ''}"
    known = {"api_keys": (f"key-of-{name}",), "models": ("m",), "priority": -number}
    return Channel(name, slug, f"http://{name}/v1", **{**known, **more})


def limited(**limits: Any) -> Caller:
    """The caller with rate limits on its key."""
    return attrs.evolve(CALLER, key=attrs.evolve(CALLER.key, limits=Limits(**limits)))
