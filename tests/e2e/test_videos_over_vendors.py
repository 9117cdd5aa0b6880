"""Videos over every vendor's own language, through a whole gateway: what is asked, what comes, and what it costs.

One gateway has a channel for each language, and one with a wrong key before it. Whatever the caller hears is looked
through for keys and addresses of the vendors, and whatever their files' server hears for keys.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import attrs
import orjson

from gateway.domain.request_log import RequestRecord
from gateway.domain.video import VideoFilter
from gateway.server.context import SERVICES
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.openai_videos import OpenAiVideos, Play, write_clip
from tests.support.providers import Json
from tests.support.queued_videos import FalQueueVideos, LumaVideos
from tests.support.started_gateways import StartGateway
from tests.support.video_vendors import (
    IMAGE,
    DashScopeVideos,
    FileHost,
    GeminiVideos,
    KlingVideos,
    MiniMaxH3Videos,
    MiniMaxVideos,
    OlderKlingVideos,
    RunwayVideos,
    VendorTask,
    VideoVendor,
    VolcengineVideos,
    write_film,
)

VIDEOS = "/v1/videos"
CENT = 10_000_000
"""Nano-USD."""
PRICE = {
    "model": "*",
    "usd_per_second": 0.1,
    "sizes": [
        {"size": "1920x10*", "usd_per_second": 0.5},
        {"size": "720x1280", "usd_per_second": 0.3},
        {"size": "2560x1440", "usd_per_second": 0.8},
    ],
}
EGRESS = {"allow": ["127.0.0.1"]}
DATA = f"data:image/png;base64,{base64.b64encode(IMAGE).decode()}"
ELSEWHERE = "https://pictures.example/1.png"
WRONG = "hush-wrong-access:hush-wrong-secret-0123456789abcdef"
FAR_KEY = "provider-key"
"""Of ``OpenAiVideos``."""
WAIT_LIMIT_S = 20
T = TypeVar("T")


@attrs.frozen
class Film:
    """A video: how large and how long it is, and what that costs in cents."""

    size: str
    seconds: int
    cents: int


@attrs.frozen
class Kind:
    """One language of one vendor.

    Attributes:
        model: by words; ``image_model`` by a picture.
        usual: what is made where nobody says how large or long; ``other``: something else.
        passes: a picture's address is passed on; else the gateway fetches it.
        blocks: it says at once that its filter objects; else only of a task.
        fresh: it gives a new address whenever it is asked.
        stops: it can be told to stop a task that waits; ``forgets``: to forget one that has ended.
    """

    vendor: type[VideoVendor]
    model: str
    image_model: str
    usual: Film
    other: Film
    passes: bool = True
    blocks: bool = True
    fresh: bool = False
    stops: bool = False
    forgets: bool = False

    @property
    def name(self) -> str:
        return self.model


KINDS = (
    Kind(
        GeminiVideos,
        "veo-3.1-generate-preview",
        "veo-3.1-generate-preview",
        Film("1280x720", 8, 80),
        Film("1920x1080", 8, 400),
        passes=False,
        fresh=True,
    ),
    Kind(KlingVideos, "kling-3.0", "kling-3.0", Film("1280x720", 5, 50), Film("720x1280", 10, 300)),
    Kind(OlderKlingVideos, "kling-v2-6", "kling-v2-6", Film("1280x720", 5, 50), Film("1920x1080", 10, 500)),
    Kind(
        MiniMaxVideos,
        "MiniMax-Hailuo-2.3",
        "MiniMax-Hailuo-2.3",
        Film("1366x768", 6, 60),
        Film("1920x1080", 6, 300),
        fresh=True,
    ),
    Kind(
        MiniMaxH3Videos,
        "MiniMax-H3",
        "MiniMax-H3",
        Film("1366x768", 5, 50),
        Film("2560x1440", 15, 1_200),
        fresh=True,
        stops=True,
        forgets=True,
    ),
    Kind(
        RunwayVideos,
        "gen4.5",
        "gen4.5",
        Film("1280x720", 5, 50),
        Film("720x1280", 2, 60),
        blocks=False,
        fresh=True,
        stops=True,
        forgets=True,
    ),
    Kind(DashScopeVideos, "wan2.6-t2v", "wan2.6-i2v", Film("1920x1080", 5, 250), Film("1280x720", 15, 150), stops=True),
    Kind(DashScopeVideos, "wan2.7-t2v", "wan2.7-i2v", Film("1920x1080", 5, 250), Film("720x1280", 2, 60), stops=True),
    Kind(
        VolcengineVideos,
        "doubao-seedance-1-0-pro-250528",
        "doubao-seedance-1-0-pro-250528",
        Film("1920x1088", 5, 250),
        Film("1248x704", 12, 120),
        stops=True,
        forgets=True,
    ),
    Kind(
        LumaVideos, "ray-3.2", "ray-3.2", Film("1280x720", 5, 50), Film("720x1280", 10, 300), blocks=False, fresh=True
    ),
    Kind(
        FalQueueVideos,
        "fal-ai/veo3.1",
        "fal-ai/veo3.1",
        Film("1280x720", 8, 80),
        Film("1920x1080", 4, 200),
        blocks=False,
        fresh=True,
        stops=True,
    ),
)


@attrs.frozen
class Heard:
    """An answer to the caller."""

    status: int
    body: Json
    headers: Any

    def check_error(self, status: int, code: str, param: str | None = None) -> str:
        """That it is that error; its message."""
        error = self.body["error"]
        assert (self.status, error["code"], error["param"]) == (status, code, param), self
        return str(error["message"])


@attrs.define
class Site:
    """A gateway among vendors, and its caller.

    Attributes:
        vendors: by the name of a kind.
        elsewhere: further servers that the caller hears nothing of.
    """

    gateway: RunningGateway
    files: FileHost
    vendors: dict[str, VideoVendor]
    elsewhere: tuple[str, ...] = ()

    def read(self, status: int, raw: bytes, headers: Any) -> Heard:
        """What the caller hears. None of it is a key, or where a vendor is."""
        message = raw.decode() + "\n".join(f"{name}: {value}" for name, value in headers.items())
        origins = [server.origin for server in (self.files, *self.vendors.values())]
        for secret in ("hush-", FAR_KEY, *origins, *self.elsewhere):
            assert secret.removeprefix("http://") not in message
        return Heard(status, orjson.loads(raw), headers)

    async def ask(self, path: str, body: Any = None, *, method: str = "POST") -> Heard:
        """A call, with a JSON object or a form."""
        more = {"data": body} if isinstance(body, aiohttp.FormData) else {"json": body} if body is not None else {}
        async with self.gateway.client.request(method, self.gateway.url + path, **more) as response:
            return self.read(response.status, await response.read(), response.headers)

    async def submit(self, model: str, prompt: str, **more: Any) -> str:
        """A call for a video that goes well; its id."""
        heard = await self.ask(VIDEOS, {"model": model, "prompt": prompt, **more})
        assert heard.status == 200, heard
        return str(heard.body["id"])

    async def follow(self, video_id: str) -> list[Json]:
        """Every state that a job reports until its end."""
        url = f"{self.gateway.url}{VIDEOS}/{video_id}/events"
        async with asyncio.timeout(WAIT_LIMIT_S), self.gateway.client.get(url) as response:
            text = await response.text()
        lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
        return [self.read(200, line.encode(), response.headers).body for line in lines]

    async def make(self, model: str, prompt: str, **more: Any) -> Json:
        """A video from its submit to its end."""
        return (await self.follow(await self.submit(model, prompt, **more)))[-1]

    async def download(self, video_id: str, **headers: str) -> tuple[int, bytes]:
        url = f"{self.gateway.url}{VIDEOS}/{video_id}/content"
        async with self.gateway.client.get(url, headers=headers) as response:
            data = await response.read()
            self.read(response.status, b"{}" if response.status < 300 else data, response.headers)
            return response.status, data

    async def read_rows(self, expected: int) -> dict[str, RequestRecord]:
        """The rows of jobs, by their ids."""
        rows = {row.id: row for row in await self.gateway.rows(expected)}
        jobs = await self.gateway.app[SERVICES].videos.jobs.store.list_videos(VideoFilter(), 1_000)
        return {job.id: rows[job.receipt.id] for job in jobs}

    def find(self, kind: Kind, prompt: str) -> VendorTask:
        """What a vendor was asked for; fails where that was not once."""
        (task,) = (task for task in self.vendors[kind.name].tasks.values() if task.prompt == prompt)
        return task

    def check_files(self) -> None:
        """That nobody's key has left for the server of their files."""
        for path, headers in self.files.asked:
            assert headers.keys().isdisjoint({"Authorization", "x-goog-api-key", "Cookie", "X-Runway-Version"})
            assert "hush-" not in path + str(headers)

    def check_refusals(self) -> None:
        """That no vendor has found fault with what it was asked."""
        for vendor in self.vendors.values():
            assert vendor.refusals == []


def list_channels(kind: Kind, vendor: VideoVendor) -> Iterable[Json]:
    """The right one, and before it one with a wrong key."""
    either, denied = (f"{word}-{kind.name}" for word in ("either", "denied"))
    right = {"models": sorted({kind.model, kind.image_model, either}), "model_map": {either: kind.model}}
    wrong = {"models": [either, denied], "model_map": {either: kind.model, denied: kind.model}}
    both = {"provider": vendor.slug, "total_timeout_s": 20}
    yield channel(vendor.base_url, kind.name, api_key=vendor.key, **both, **right)
    yield channel(vendor.base_url, f"wrong-{kind.name}", api_key=WRONG, priority=5, **both, **wrong)


@asynccontextmanager
async def open_site(gateway_with: StartGateway, *, store: str = "proxy") -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        files = await stack.enter_async_context(FileHost())
        vendors = {kind.name: await stack.enter_async_context(kind.vendor(files)) for kind in KINDS}
        config = {
            "channel": [one for kind in KINDS for one in list_channels(kind, vendors[kind.name])],
            "price": [PRICE],
            "videos": {"store": store},
            "egress": EGRESS,
        }
        yield Site(await gateway_with(config), files, vendors)


async def for_each(site: Site, work: Callable[[Site, Kind], Coroutine[Any, Any, T]]) -> list[T]:
    """All of them at the same time."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(site, kind)) for kind in KINDS]
    return [task.result() for task in tasks]


# ---- what is made


async def test_every_vendor_makes_what_it_was_asked_for_and_is_paid_for_it(gateway_with: StartGateway) -> None:
    """Where nobody says how large and long, too. The file is fetched once, from wherever it is, and kept."""

    async def make(site: Site, kind: Kind) -> list[str]:
        prompt = "stale bread" if kind.fresh else "bread"  # the first address that is given of it is refused
        videos = await asyncio.gather(
            watch(site, kind, "a cat", kind.usual),
            watch(site, kind, prompt, kind.other, size=kind.other.size, seconds=str(kind.other.seconds)),
        )
        for video, begun in zip(videos, ("a cat", prompt), strict=True):
            assert await site.download(video["id"]) == (200, write_film(f"{begun} of {kind.name}"))
        await check_refused(site, videos[0]["id"])
        return [video["id"] for video in videos]

    async with open_site(gateway_with, store="keep") as site:
        made = await for_each(site, make)
        fetched = len(site.files.asked)
        rows = await site.read_rows(3 * len(KINDS))
        for kind, ids in zip(KINDS, made, strict=True):
            assert [rows[video_id].cost_nanos for video_id in ids] == [
                film.cents * CENT for film in (kind.usual, kind.other)
            ]
        site.check_refusals()
        for ids in made:
            await site.download(ids[0])
        assert len(site.files.asked) == fetched, "what is kept is not fetched again"
        site.check_files()
        await forget(site, [video_id for ids in made for video_id in ids])


async def watch(site: Site, kind: Kind, prompt: str, film: Film, **more: Any) -> Json:
    """A video on its way: it waits, it is worked at, it is there; and it is what was asked for and is charged."""
    prompt = f"{prompt} of {kind.name}"
    moves = await site.follow(await site.submit(kind.model, prompt, **more))
    assert list(dict.fromkeys(move["status"] for move in moves))[-2:] == ["processing", "completed"], moves
    progress = [move["progress"] for move in moves]
    assert progress == sorted(progress)
    assert progress[-1] == 100
    assert (40 in progress) == (kind.vendor is RunwayVideos), "the only one that tells it"
    for move in moves:
        assert (move["size"], move["seconds"], move["model"]) == (film.size, str(film.seconds), kind.model)
    task = site.find(kind, prompt)
    assert (task.size, task.seconds, task.model, task.image) == (film.size, film.seconds, kind.model, None)
    return moves[-1]


async def check_refused(site: Site, video_id: str) -> None:
    """No vendor makes a video anew by another prompt, or has pictures of one."""
    remix = await site.ask(f"{VIDEOS}/{video_id}/remix", {"prompt": "at night"})
    assert "remix" in remix.check_error(400, "invalid_request", "video_id")
    for variant in ("thumbnail", "spritesheet"):
        heard = await site.ask(f"{VIDEOS}/{video_id}/content?variant={variant}", method="GET")
        assert variant in heard.check_error(400, "invalid_request", "variant")


async def forget(site: Site, ids: list[str]) -> None:
    """What is deleted here is deleted at its vendor too, where that is offered; of no other anything is asked."""
    before = {kind: len(site.vendors[kind.name].asked) for kind in KINDS}
    for video_id in ids:
        assert (await site.ask(f"{VIDEOS}/{video_id}", method="DELETE")).body["deleted"] is True
        (await site.ask(f"{VIDEOS}/{video_id}", method="GET")).check_error(404, "not_found", "video_id")
    async with asyncio.timeout(WAIT_LIMIT_S):
        for kind in KINDS:
            vendor = site.vendors[kind.name]
            while kind.forgets and len(vendor.deleted) < 2:  # noqa: ASYNC110 - it is told behind the answer
                await asyncio.sleep(0.01)
            assert len(vendor.asked) == before[kind] + 2 * kind.forgets
            assert len(vendor.tasks) == 2 * (not kind.forgets)
    site.check_refusals()


async def test_every_vendor_starts_from_a_image_in_every_form(gateway_with: StartGateway) -> None:
    """As a file, as a data: URL, and by its address, which is fetched for a vendor that would not."""

    async def make(site: Site, kind: Kind) -> None:
        address = ELSEWHERE if kind.passes else f"{site.files.origin}/pictures/1.png"
        form = aiohttp.FormData({"model": kind.image_model, "prompt": "a file", "seconds": str(kind.usual.seconds)})
        form.add_field("input_reference", IMAGE, filename="first.png", content_type="image/png")
        answers = await asyncio.gather(
            site.ask(VIDEOS, form),
            site.ask(VIDEOS, {"model": kind.image_model, "prompt": "data", "input_reference": DATA}),
            site.ask(
                VIDEOS, {"model": kind.image_model, "prompt": "an address", "input_reference": {"image_url": address}}
            ),
        )
        assert [heard.status for heard in answers] == [200, 200, 200], answers
        # One after another: an account has a limited number of event streams at a time.
        ends = [await site.follow(heard.body["id"]) for heard in answers]
        assert [moves[-1]["status"] for moves in ends] == ["completed"] * 3
        images = [site.find(kind, prompt).image for prompt in ("a file", "data", "an address")]
        assert images == [IMAGE, IMAGE, ELSEWHERE if kind.passes else IMAGE]
        assert {site.find(kind, prompt).model for prompt in ("a file", "data")} == {kind.image_model}
        assert (await site.download(ends[0][-1]["id"]))[1] == write_film("a file")

    async with open_site(gateway_with) as site:
        await for_each(site, make)
        await check_images_refused(site)
        site.check_refusals()
        site.check_files()
        rows = await site.gateway.rows(3 * len(KINDS) + 6)
        assert sum(row.cost_nanos for row in rows) == 3 * CENT * sum(kind.usual.cents for kind in KINDS)


async def check_images_refused(site: Site) -> None:
    """By the field at fault, and without a vendor being asked."""
    before = [len(vendor.asked) for vendor in site.vendors.values()]
    plain = {"input_reference": site.files.origin + "/pictures/1.png"}
    refused: list[tuple[str, Json, str]] = [
        ("wan2.6-t2v", {"input_reference": ELSEWHERE}, "input_reference"),
        ("wan2.6-i2v", {}, "input_reference"),
        ("gen4.5", plain, "input_reference"),
        ("gen4.5", {"size": "1104x832"}, "size"),
        ("veo-3.1-generate-preview", {"input_reference": site.files.origin + "/none.png"}, "input_reference"),
        ("MiniMax-Hailuo-2.3", {"size": "1920x1080", "seconds": "10"}, "seconds"),
    ]
    for model, more, param in refused:
        heard = await site.ask(VIDEOS, {"model": model, "prompt": "a cat", **more})
        heard.check_error(400, "invalid_request", param)
    assert [len(vendor.asked) for vendor in site.vendors.values()] == before


# ---- what is not made


async def test_what_a_filter_or_a_failure_ends_is_told_and_not_paid_for(gateway_with: StartGateway) -> None:
    """A filter that objects at once is a refusal; one that objects later fails the job, as a failure does."""

    async def make(site: Site, kind: Kind) -> None:
        moderated, failed = await asyncio.gather(site.make(kind.model, "moderated"), site.make(kind.model, "failed"))
        assert (moderated["status"], moderated["error"]["code"]) == ("failed", "content_policy_violation")
        assert (failed["status"], failed["error"]["code"]) == ("failed", "upstream_error")
        for reported in (moderated, failed):
            assert "The machine at [address] ran out of film for [masked]" in reported["error"]["message"]
            heard = await site.ask(f"{VIDEOS}/{reported['id']}/content", method="GET")
            heard.check_error(404, "not_found", "video_id")
        if kind.blocks:
            heard = await site.ask(VIDEOS, {"model": kind.model, "prompt": "refused"})
            heard.check_error(400, "content_policy_violation")
            assert heard.headers["x-should-retry"] == "false"

    async with open_site(gateway_with, store="keep") as site:
        await for_each(site, make)
        blocks = sum(kind.blocks for kind in KINDS)
        rows = await site.gateway.rows(2 * len(KINDS) + blocks)
        assert all(row.cost_nanos == 0 and row.reserved_nanos > 0 for row in rows)
        assert {row.outcome for row in rows} == {"blocked", "failed"}
        assert site.gateway.app[SERVICES].videos.jobs.reservations.list_held() == {}
        assert site.files.asked == []
        site.check_refusals()
        await check_stopped(site)


async def check_stopped(site: Site) -> None:
    """What the operator cancels is stopped at its vendor, where that is offered; of no other anything is asked."""
    videos = site.gateway.app[SERVICES].videos.jobs
    ids = {kind: await site.submit(kind.model, "endless") for kind in KINDS}
    assert sum(videos.reservations.list_held().values()) == CENT * sum(kind.usual.cents for kind in KINDS)
    for video_id in ids.values():
        await videos.cancel(video_id)
    assert videos.reservations.list_held() == {}
    async with asyncio.timeout(WAIT_LIMIT_S):
        for kind in KINDS:
            vendor = site.vendors[kind.name]
            while kind.stops and not vendor.cancelled:  # noqa: ASYNC110 - it is told behind the answer
                await asyncio.sleep(0.01)
            assert len(vendor.cancelled) == kind.stops
            assert vendor.deleted == []
    site.check_refusals()


async def test_a_wrong_key_is_the_gateways_trouble_and_the_next_channels_turn(gateway_with: StartGateway) -> None:
    async def make(site: Site, kind: Kind) -> None:
        denied = await site.ask(VIDEOS, {"model": f"denied-{kind.name}", "prompt": "denied"})
        message = denied.check_error(502, "upstream_error")
        assert "The provider refused the gateway's credentials" in message
        assert denied.headers["x-should-retry"] == "false"

    async with open_site(gateway_with) as site:
        await for_each(site, make)
        rows = await site.gateway.rows(len(KINDS))
        assert [(row.cost_nanos, row.outcome, row.attempts) for row in rows] == [(0, "failed", 1)] * len(KINDS)
        assert [len(vendor.denied) for vendor in site.vendors.values()] == [1] * len(KINDS)

    async def turn(site: Site, kind: Kind) -> None:
        video = await site.make(f"either-{kind.name}", "either")
        assert video["status"] == "completed"
        assert (site.find(kind, "either").model, len(site.vendors[kind.name].denied)) == (kind.model, 1)

    async with open_site(gateway_with) as site:
        await for_each(site, turn)
        rows = await site.gateway.rows(len(KINDS))
        assert sorted((row.channel, row.attempts) for row in rows) == sorted((kind.name, 2) for kind in KINDS)
        assert sum(row.cost_nanos for row in rows) == CENT * sum(kind.usual.cents for kind in KINDS)


# ---- what is passed through


async def test_a_file_passes_from_wherever_it_is_and_by_a_fresh_address_where_there_is_one(
    gateway_with: StartGateway,
) -> None:
    async def make(site: Site, kind: Kind) -> str:
        video = await site.make(kind.model, f"a film of {kind.name}")
        film = write_film(f"a film of {kind.name}")
        assert await site.download(video["id"]) == (200, film)
        assert await site.download(video["id"], Range="bytes=10-29") == (206, film[10:30])
        return str(video["id"])

    async with open_site(gateway_with) as site:
        ids = await for_each(site, make)
        site.files.expire()
        for kind, video_id in zip(KINDS, ids, strict=True):
            status, data = await site.download(video_id)
            if kind.fresh:
                assert (status, data) == (200, write_film(f"a film of {kind.name}")), kind.name
            else:
                site.read(status, data, {}).check_error(502, "upstream_error")
        site.check_refusals()
        site.check_files()


# ---- another gateway is a vendor too


async def test_a_gateway_over_a_gateway_over_vendors(gateway_with: StartGateway) -> None:
    """Each knows the next one's ids alone, its prices are its own, and verdicts and refusals are passed on."""
    blocked = {"code": "moderation_blocked", "message": f"Not that, says {FAR_KEY} at http://far.example/1"}
    plays = {"moderated": Play(polls=["failed"], more={"error": blocked})}
    async with OpenAiVideos(**plays) as far, FileHost() as files, RunwayVideos(files) as runway:
        model = {"models": ["r"], "model_map": {"r": "gen4.5"}}
        film = channel(runway.base_url, "runway", provider="runway", api_key=runway.key, **model)
        there = await gateway_with({"channel": [far.channel(), film], "price": [PRICE], "egress": EGRESS})
        near = channel(f"{there.url}/v1", "there", api_key=KEY, models=["m", "r"])
        prices = [{"model": "*", "sizes": [{"size": "1280x720", "usd_per_second": 0.5}]}]
        here = await gateway_with({"channel": [near], "price": prices, "videos": {"store": "proxy"}})
        site = Site(here, files, {"r": runway}, (far.base_url, f"{there.url}/"))
        await check_chain(site, far)
        costs = [sorted(row.cost_nanos // CENT for row in await one.rows(5)) for one in (here, there)]
        assert costs == [[0, 0, 250, 400, 400], [0, 0, 50, 80, 80]]
        site.check_refusals()
        site.check_files()
        await there.check_books()


async def check_chain(site: Site, far: OpenAiVideos) -> None:
    more = {"size": "1280x720", "seconds": "8"}
    video, other, stopped = await asyncio.gather(
        site.make("m", "a cat", **more),
        site.make("r", "a bird", **more | {"seconds": "5"}),
        site.make("m", "moderated", **more),
    )
    assert (video["status"], video["size"], video["seconds"]) == ("completed", "1280x720", "8")
    assert await site.download(video["id"]) == (200, write_clip("a cat"))
    assert await site.download(other["id"], Range="bytes=10-29") == (206, write_film("a bird")[10:30])
    assert (stopped["status"], stopped["error"]["code"]) == ("failed", "content_policy_violation")
    assert stopped["error"]["message"].endswith("Not that, says [masked] at [address]")
    again = await site.ask(f"{VIDEOS}/{video['id']}/remix", {"prompt": "a dog"})
    remix = (await site.follow(again.body["id"]))[-1]
    assert (remix["status"], remix["remixed_from_video_id"]) == ("completed", video["id"])
    assert await site.download(remix["id"]) == (200, write_clip("a dog"))
    refused = await site.ask(f"{VIDEOS}/{other['id']}/remix", {"prompt": "a fish"})
    assert "remix" in refused.check_error(400, "invalid_request", "video_id")
    (original,) = (task.id for task in far.tasks.values() if task.prompt == "a cat")
    paths = [submit.path.removeprefix("/v1/videos") for submit in far.submits]
    assert sorted(paths) == ["", "", f"/{original}/remix"]
    assert {key for _, _, key in far.asked} == {f"Bearer {FAR_KEY}"}
    assert set(far.marks.values()) == {1}
