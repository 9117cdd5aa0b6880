"""The demo's videos as the real SDK, and a plain client, see them."""

import re
from base64 import b64encode, urlsafe_b64encode
from hashlib import blake2b
from typing import Any

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.demo.models import VIDEO_MODELS
from gateway.demo.server import DemoUpstream
from gateway.demo.video_requests import LENGTHS, SIZES
from gateway.demo.videos import POLL_AFTER, DemoVideo, compute_duration_s, describe, find_job
from gateway.providers.demo import DEMO
from tests.support import pixels
from tests.support.table_rows import table_rows

ASK: Any = {"model": "demo-video", "prompt": "a lake at dawn", "size": "640x360", "seconds": "4"}
KEYS = (
    *("id", "object", "model", "status", "progress", "created_at", "completed_at", "expires_at", "prompt", "size"),
    *("seconds", "remixed_from_video_id", "error"),
)
GREEN = pixels.plain(64, 64, b"\x10\xf0\x20")

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")  # the SDK says it on every call


def make_job(model: str = "demo-video", seconds: int = 4) -> DemoVideo:
    return DemoVideo(model, SIZES[-1], seconds, 1_000_000)


def find_boxes(data: bytes) -> list[bytes]:
    """The kinds of an MP4's outermost boxes (ISO/IEC 14496-12, 4.2)."""
    kinds, at = [], 0
    while at < len(data):
        kinds.append(data[at + 4 : at + 8])
        at += int.from_bytes(data[at : at + 4], "big")
    assert at == len(data)
    return kinds


def states(task: DemoVideo, factor: float = 1.0, steps: int = 60) -> list[dict[str, Any]]:
    duration = compute_duration_s(task, factor)
    return [describe(task, 1_000 + duration * at / steps, factor) for at in range(steps + 3)]


async def ask(session: aiohttp.ClientSession, method: str, url: str, **given: Any) -> tuple[int, Any]:
    async with session.request(method, url, **given) as response:
        return response.status, await response.json()


async def test_a_video_is_made_polled_and_downloaded(sdk: openai.AsyncOpenAI) -> None:
    video = await sdk.videos.create_and_poll(**ASK)
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert (video.size, video.seconds, video.model) == ("640x360", "4", "demo-video")
    assert await sdk.videos.retrieve(video.id) == video
    clip = (await sdk.videos.download_content(video.id)).content
    assert find_boxes(clip) == [b"ftyp", b"moov", b"mdat"]
    image = pixels.read((await sdk.videos.download_content(video.id, variant="thumbnail")).content)
    assert (image.width, image.height) == (320, 180)


async def test_a_remix_is_a_task_of_its_own(sdk: openai.AsyncOpenAI) -> None:
    video = await sdk.videos.create(**ASK)
    remix = await sdk.videos.remix(video.id, prompt="make it night")
    assert remix.remixed_from_video_id == video.id != remix.id
    assert (remix.size, remix.seconds, remix.prompt) == (video.size, video.seconds, "make it night")


async def test_a_deleted_video_is_gone(sdk: openai.AsyncOpenAI) -> None:
    video = await sdk.videos.create(**ASK)
    gone = await sdk.videos.delete(video.id)
    assert (gone.id, gone.object, gone.deleted) == (video.id, "video.deleted", True)
    for call in (sdk.videos.retrieve, sdk.videos.delete, sdk.videos.download_content):
        with pytest.raises(openai.NotFoundError):
            await call(video.id)


async def test_a_demo_that_was_started_anew_knows_the_tasks_of_the_old_one(
    plain: aiohttp.ClientSession, demo: DemoUpstream
) -> None:
    _, reported = await ask(plain, "POST", f"{demo.base_url}/videos", json=ASK)
    _, remix = await ask(plain, "POST", f"{demo.base_url}/videos/{reported['id']}/remix", json={"prompt": "by night"})
    other = DemoUpstream(pace_s=0)
    await other.start()
    try:
        headers = {"Authorization": f"Bearer {other.api_key}"}
        for task in (reported, remix):
            task |= {"prompt": None, "remixed_from_video_id": None}
            assert await ask(plain, "GET", f"{other.base_url}/videos/{task['id']}", headers=headers) == (200, task)
    finally:
        await other.stop()


@pytest.mark.parametrize(
    "body",
    [
        {"input_reference": {"image_url": "data:image/png;base64," + b64encode(GREEN).decode()}},
        {"input_reference": "data:image/png;base64," + b64encode(GREEN).decode()},
    ],
)
async def test_a_reference_may_come_in_json(plain: aiohttp.ClientSession, demo: DemoUpstream, body: Any) -> None:
    status, reported = await ask(plain, "POST", f"{demo.base_url}/videos", json={**ASK, **body, "seconds": 8})
    assert (status, reported["seconds"], tuple(reported)) == (200, "8", KEYS)


async def test_a_reference_may_be_a_file_or_an_address(
    sdk: openai.AsyncOpenAI, plain: aiohttp.ClientSession, demo: DemoUpstream
) -> None:
    """One that cannot be read, or is elsewhere, does no harm."""
    form = aiohttp.FormData(
        {**ASK, "input_reference[image_url]": "https://example.com/a.png"}, default_to_multipart=True
    )
    _, address = await ask(plain, "POST", f"{demo.base_url}/videos", data=form)
    made = [
        await sdk.videos.create(**ASK, input_reference=("a.png", GREEN)),
        await sdk.videos.create(**ASK, input_reference=("a.jpg", b"\xff\xd8\xff\xe0 and so on")),
        await sdk.videos.retrieve(address["id"]),
        await sdk.videos.create(**ASK),
    ]
    assert [video.status for video in made] == ["completed"] * 4
    assert len({video.id for video in made}) == 4


async def test_a_portrait_has_a_clip_of_its_own(sdk: openai.AsyncOpenAI) -> None:
    clips = set()
    for size in ("1280x720", "640x360", "480x854", "720x1280"):
        video = await sdk.videos.create(**{**ASK, "size": size})
        clips.add((await sdk.videos.download_content(video.id)).content)
    assert len(clips) == 2


@pytest.mark.parametrize(
    ("changed", "param", "refusal"),
    [
        ({"model": "demo-chat"}, "model", (404, "model_not_found")),
        ({"prompt": " "}, "prompt", (400, None)),
        ({"prompt": 7}, "prompt", (400, None)),
        ({"prompt": "a blocked street"}, "prompt", (400, "moderation_blocked")),
        ({"size": "1x1"}, "size", (400, None)),
        ({"seconds": "5"}, "seconds", (400, None)),
        ({"seconds": True}, "seconds", (400, None)),
        ({"input_reference": {"file_id": "file-1"}}, "input_reference", (400, None)),
        ({"input_reference": "data:image/png;base64,####"}, "input_reference", (400, None)),
        ({"input_reference": "data:image/png;base64,AAAA"}, "input_reference", (400, None)),
        ({"input_reference": "ftp://example.com"}, "input_reference", (400, None)),
    ],
)
async def test_what_is_wrong_is_named(
    plain: aiohttp.ClientSession, demo: DemoUpstream, changed: Any, param: str, refusal: tuple[int, str | None]
) -> None:
    status, body = await ask(plain, "POST", f"{demo.base_url}/videos", json={**ASK, **changed})
    assert body["error"]["param"] == param
    assert (status, body["error"]["code"]) == refusal


async def test_a_file_that_is_no_image_is_refused(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="not a PNG, JPEG or WebP"):
        await sdk.videos.create(**ASK, input_reference=("a.txt", b"hello there, it is me"))


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", ""), ("GET", "/content"), ("POST", "/remix")])
@pytest.mark.parametrize("task", ["video_abc", "x", "video_" + "A" * 400, "video_%00"])
async def test_what_nobody_began_is_not_found(
    plain: aiohttp.ClientSession, demo: DemoUpstream, method: str, path: str, task: str
) -> None:
    status, body = await ask(plain, method, f"{demo.base_url}/videos/{task}{path}", json={"prompt": "a"})
    assert (status, body["error"]["code"]) == (404, "not_found")


async def test_a_video_that_is_not_yet_there_is_not_shown_and_not_remixed() -> None:
    demo = DemoUpstream(pace_s=10)
    await demo.start()
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {demo.api_key}"}) as session:
            async with session.post(f"{demo.base_url}/videos", json=ASK) as response:
                reported = await response.json()
                assert response.headers[POLL_AFTER] == "2000"
            assert (reported["status"], reported["progress"]) == ("queued", 0)
            url = f"{demo.base_url}/videos/{reported['id']}"
            for method, path in (("GET", "/content"), ("POST", "/remix")):
                status, body = await ask(session, method, url + path, json={"prompt": "a"})
                assert (status, body["error"]["code"]) == (409, "invalid_state")
    finally:
        await demo.stop()


async def test_a_part_of_a_video_can_be_had(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    _, reported = await ask(plain, "POST", f"{demo.base_url}/videos", json=ASK)
    url = f"{demo.base_url}/videos/{reported['id']}/content"
    async with plain.get(url) as response:
        whole = await response.read()
        assert (response.status, response.content_type, response.headers["Accept-Ranges"]) == (
            200,
            "video/mp4",
            "bytes",
        )
    size = len(whole)
    for asked, part in (("4-7", slice(4, 8)), ("-5", slice(size - 5, size)), (f"{size - 9}-", slice(size - 9, size))):
        async with plain.get(url, headers={"Range": f"bytes={asked}"}) as response:
            assert (response.status, await response.read()) == (206, whole[part])
            assert response.headers["Content-Range"] == f"bytes {part.start}-{part.stop - 1}/{size}"
    async with plain.get(url, headers={"Range": f"bytes={size}-"}) as response:
        assert (response.status, response.headers["Content-Range"]) == (416, f"bytes */{size}")
    async with plain.get(url, headers={"Range": "lines=1-2"}) as response:
        assert (response.status, await response.read()) == (200, whole)
    async with plain.get(url, params={"variant": "spritesheet"}) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "variant")


def test_progress_grows_by_the_clock_until_the_end() -> None:
    seen = states(make_job())
    assert {tuple(state) for state in seen} == {KEYS}
    words = [state["status"] for state in seen]
    assert list(dict.fromkeys(words)) == ["queued", "in_progress", "completed"]
    progress = [state["progress"] for state in seen]
    assert progress == sorted(progress)
    assert (progress[0], progress[-1]) == (0, 100)
    grown = [state["progress"] for state in seen if state["status"] == "in_progress"]
    assert len(set(grown)) > 40
    assert max(grown) < 100
    assert [state["completed_at"] for state in seen[:-3]] == [None] * 60
    assert seen[-1]["completed_at"] == 1_003
    assert seen[-1]["expires_at"] > seen[-1]["completed_at"]


@table_rows(
    ("model", "code"), [("demo-video-blocked", "moderation_blocked"), ("demo-video-fail", "video_generation_failed")]
)
def test_some_models_are_there_to_fail(model: str, code: str) -> None:
    seen = states(make_job(model))
    assert list(dict.fromkeys(state["status"] for state in seen)) == ["queued", "in_progress", "failed"]
    failed = [state for state in seen if state["status"] == "failed"]
    assert {state["error"]["code"] for state in failed} == {code}
    assert all(0 < state["progress"] < 100 and state["error"]["message"] for state in failed)
    assert all(state["error"] is None for state in seen if state not in failed)


def test_a_longer_film_takes_longer_and_one_model_far_longer() -> None:
    assert [compute_duration_s(make_job(seconds=seconds), 1.0) for seconds in (4, 8, 12)] == [3.0, 5.0, 7.0]
    assert compute_duration_s(make_job("demo-video-slow"), 1.0) == 30.0
    assert describe(make_job("demo-video-slow"), 1_000, 0)["status"] == "completed"


def test_what_the_provider_says_of_the_demo_is_what_it_takes() -> None:
    capability = DEMO.find_capability("demo-video-slow")
    assert capability is not None
    assert capability.sizes == tuple(f"{width}x{height}" for width, height in SIZES)
    assert (capability.seconds, capability.references, capability.remixes) == ((4, 8, 12), True, True)
    endpoint = DEMO.find_endpoint(("openai_videos",), "demo-video-fail")
    assert endpoint is not None
    assert endpoint.path == "/videos"
    assert DEMO.find_endpoint(("openai_videos",), "demo-chat") is None


async def test_every_video_model_is_listed(sdk: openai.AsyncOpenAI) -> None:
    listed = [model.id for model in (await sdk.models.list()).data if model.id.startswith("demo-video")]
    assert listed == ["demo-video", "demo-video-fail", "demo-video-blocked", "demo-video-slow"]


@given(st.sampled_from(VIDEO_MODELS), st.sampled_from(SIZES), st.sampled_from(LENGTHS), st.integers(0, 2**63))
def test_an_id_says_everything_of_its_job_and_is_safe_in_a_path(
    model: str, size: tuple[int, int], seconds: int, created_ms: int
) -> None:
    job = DemoVideo(model, size, seconds, created_ms)
    assert find_job(job.id) == job
    assert re.fullmatch(r"video_[A-Za-z0-9_-]+", job.id)
    assert find_job(job.id[:-1]) is None
    assert find_job(job.id + "A") is None


@given(st.text(max_size=60))
def test_no_other_text_is_an_id(text: str) -> None:
    assert find_job(text) is None
    assert find_job("video_" + text) is None


@given(st.binary(min_size=15, max_size=15))
def test_an_id_that_somebody_made_is_a_job_or_none(packed: bytes) -> None:
    """The checksum has no key."""
    made = urlsafe_b64encode(packed + blake2b(packed, digest_size=6).digest()).decode().rstrip("=")
    job = find_job(f"video_{made}")
    assert (job is not None) == (packed[0] < len(VIDEO_MODELS) and packed[1] < len(SIZES))
