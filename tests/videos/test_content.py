"""Files of videos: kept whole or not at all, and given from where they are."""

import asyncio
from pathlib import Path
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from gateway import errors
from gateway.domain.media import Media
from gateway.domain.video import VideoJob
from gateway.routing.target import ProviderAccess
from gateway.storage.media_files import MediaFiles
from gateway.videos import content as room
from gateway.videos.content import VideoContent
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows
from tests.support.video_services import CLIP, FileDouble, VideoServices, play, refuse, run, task

BROKEN = errors.ProviderBadResponse("It broke off", phase="body")


async def begin(services: VideoServices) -> tuple[VideoJob, ProviderAccess]:
    job = await services.submit()
    access = services.provider_api.find_access(job)
    assert access is not None
    return job, access


def pieces(data: bytes, size: int = 700) -> list[Any]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@table_rows("length", [len(CLIP), None])
def test_a_file_is_kept_as_it_comes(length: int | None) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        reel = FileDouble(pieces(CLIP), length)
        services.files.reels = [reel]
        job, access = await begin(services)
        media = await services.video_content.fetch(access, job)
        assert (media.size, media.media_type, services.shelf.files) == (len(CLIP), "video/mp4", {media.id: CLIP})
        assert reel.closed
        (file_request,) = services.files.asked
        assert (file_request.url, file_request.byte_range) == ("http://up/v1/videos/video_theirs/content", None)

    run(scene())


@table_rows(
    "reel",
    [
        FileDouble([*pieces(CLIP)[:3], BROKEN], len(CLIP)),
        FileDouble(pieces(CLIP)[:3], len(CLIP)),
        FileDouble(pieces(CLIP), len(CLIP) - 1),
        FileDouble([b"<html>Sign in to go on</html>"], None),
        FileDouble([draw()], None),
        FileDouble([], None),
        FileDouble([b"RIFF\0\0\0\0WAVE"], None),
    ],
    ids=["broken", "short", "long", "page", "picture", "empty", "sound"],
)
def test_what_is_not_the_whole_video_is_not_kept(reel: FileDouble) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        services.files.reels = [attrs.evolve(reel, pieces=list(reel.pieces))]
        job, access = await begin(services)
        with pytest.raises(errors.ProviderBadResponse):
            await services.video_content.fetch(access, job)
        assert (services.shelf.files, services.shelf.open_drafts) == ({}, 0)
        assert services.files.reels[0].closed  # type: ignore[union-attr]

    run(scene())


def test_what_is_too_large_by_its_own_word_is_not_begun() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        reel = FileDouble(pieces(CLIP), room.MAX_VIDEO_BYTES + 1)
        services.files.reels = [reel]
        job, access = await begin(services)
        with pytest.raises(errors.ProviderContentGone):
            await services.video_content.fetch(access, job)
        assert len(reel.pieces) == len(pieces(CLIP)), "not a byte of it is read"
        assert (services.shelf.files, services.shelf.open_drafts) == ({}, 0)

    run(scene())


@attrs.define
class Slow(FileDouble):
    """Every piece is waited for."""

    wait_s: float = 5.0

    async def read(self) -> bytes:
        await asyncio.sleep(self.wait_s)
        return await super().read()


@table_rows(
    ("piece", "wait_s", "given_up_s"),
    [
        (bytes(1_000), 5.0, room.RATE_WINDOW_S),
        (bytes(int(room.MIN_RATE * 5)), 5.0, room.RATE_WINDOW_S),
        (bytes(int(room.MIN_RATE * 6)), 5.0, None),
        (bytes(1_000_000), 10**9, room.MAX_FETCH_S),
    ],
    ids=["a trickle", "too slow", "just fast enough", "never"],
)
def test_a_file_that_trickles_in_is_given_up(piece: bytes, wait_s: float, given_up_s: float | None) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        services.files.reels = [Slow([CLIP, *[piece] * 12], wait_s=wait_s)]
        job, access = await begin(services)
        began = services.loop.time()
        if given_up_s is None:
            assert (await services.video_content.fetch(access, job)).size == len(CLIP) + 12 * len(piece)
            return
        with pytest.raises(errors.ProviderTimeout):
            await services.video_content.fetch(access, job)
        assert services.loop.time() - began == pytest.approx(given_up_s)
        assert (services.shelf.files, services.shelf.open_drafts) == ({}, 0)

    run(scene())


def test_a_disk_that_is_full_keeps_nothing_and_says_so() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, access = await begin(services)
        services.shelf.full = True
        with pytest.raises(errors.StoreUnavailable):
            services.video_content.check_room()
        with pytest.raises(errors.StoreUnavailable):
            await services.video_content.fetch(access, job)
        assert (services.shelf.files, services.shelf.open_drafts) == ({}, 0)

    run(scene())


def test_a_file_that_is_gone_is_said_to_be() -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), task("completed")))
        services.files.reels = [errors.ProviderContentGone("It is not there")]
        job, access = await begin(services)
        with pytest.raises(errors.ProviderContentGone):
            await services.video_content.fetch(access, job)
        assert services.shelf.drafts == []

    run(scene())


async def test_on_a_real_disk_nothing_is_left_of_what_broke_off(tmp_path: Path) -> None:
    services = VideoServices(play(task(), task("completed")))
    video_content = VideoContent(MediaFiles(tmp_path), services.provider_api)
    job, access = await begin(services)
    services.files.reels = [FileDouble([*pieces(CLIP)[:3], BROKEN], len(CLIP)), FileDouble(pieces(CLIP), len(CLIP))]
    with pytest.raises(errors.ProviderBadResponse):
        await video_content.fetch(access, job)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    media = await video_content.fetch(access, job)
    assert isinstance(media, Media)
    assert media.path.read_bytes() == CLIP
    assert await video_content.find(attrs.evolve(job, media_id=media.id), "video") == media
    await video_content.remove(media.id)
    assert not media.path.exists()


# ---- given


def test_what_is_kept_is_found_as_long_as_it_is() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, access = await begin(services)
        media = await services.video_content.fetch(access, job)
        kept = attrs.evolve(job, media_id=media.id)
        found = await services.video_content.find(kept, "video")
        assert found is not None
        assert found.id == media.id
        assert await services.video_content.find(kept, "thumbnail") is None
        assert await services.video_content.find(job, "video") is None
        await services.video_content.remove(media.id)
        assert await services.video_content.find(kept, "video") is None

    run(scene())


@table_rows("media_id", [None, "swept.mp4"])
def test_what_is_not_kept_is_given_as_its_provider_has_it_with_the_range_that_is_wanted(media_id: str | None) -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, _ = await begin(services)
        found = await services.video_content.open(attrs.evolve(job, media_id=media_id), "video", "bytes=5-9")
        assert isinstance(found, FileDouble)
        assert (services.files.asked[0].byte_range, services.shelf.drafts) == ("bytes=5-9", [])

    run(scene())


def test_another_variant_is_the_providers_or_named_as_one_that_is_not() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, access = await begin(services)
        media = await services.video_content.fetch(access, job)
        found = await services.video_content.open(attrs.evolve(job, media_id=media.id), "thumbnail", None)
        assert isinstance(found, FileDouble)
        assert services.files.asked[-1].url.endswith("/content?variant=thumbnail")
        runway = attrs.evolve(services.channels[0], provider="runway")
        services.use(runway)
        theirs = attrs.evolve(job, provider="runway", wire="runway_videos", clue="https://files.test/1.mp4")
        with pytest.raises(errors.InvalidRequest) as refused:
            await services.video_content.open(theirs, "thumbnail", None)
        assert refused.value.param == "variant"

    run(scene())


@table_rows("answer", [refuse(404), refuse(500), errors.ProviderBadResponse("It broke"), task("completed")])
def test_what_nobody_has_any_more_is_not_found_whatever_is_said_of_its_task(answer: Any) -> None:
    async def scene() -> None:
        services = VideoServices(play(task(), answer))
        job, _ = await begin(services)
        services.files.reels = [errors.ProviderContentGone("It is not there")]
        with pytest.raises(errors.NotFound):
            await services.video_content.open(job, "video", None)

    run(scene())


def test_the_file_of_a_channel_that_is_no_more_is_not_found() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        job, _ = await begin(services)
        services.use()
        with pytest.raises(errors.NotFound):
            await services.video_content.open(job, "video", None)

    run(scene())


def test_a_file_that_cannot_be_removed_is_left_to_the_sweep() -> None:
    async def scene() -> None:
        services = VideoServices(play(task()))
        services.shelf.full = True
        with capture_logs() as lines:
            await services.video_content.remove("0.mp4")
        assert [line["event"] for line in lines] == ["media_not_removed"]

    run(scene())
