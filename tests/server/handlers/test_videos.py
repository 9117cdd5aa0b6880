"""Videos over HTTP: whose they are, what is refused by name, how a file is given, and what is held for one."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.errors import RateLimited
from gateway.server.context import SERVICES
from gateway.server.handlers.videos import MAX_PAGE_CHARS
from gateway.server.openapi.document import get_document
from gateway.server.subscriber_limit import MAX_SUBSCRIBERS, SubscriberLimit
from tests.support.gateway import KEY
from tests.support.image_providers import draw
from tests.support.openai_videos import BREAK, CLIP_BYTES, Answered, OpenAiVideos, Play, write_clip
from tests.support.raw_client import connect
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import OTHER, SISTER, VIDEOS, Heard, Json, VideoGateway, open_video_gateway

ALIAS = "/v1/video/generations"
MODEL = {"name": "m", "seconds": [4, 8], "sizes": ["1280x720", "1920x1080"]}
PRICE = {"model": "m", "usd_per_second": 0.1, "sizes": [{"size": "1920x1080", "usd_per_second": 0.3}]}
FAILS = Play(polls=["failed"])
WAITS = Play(polls=["queued"], hint_ms=600_000)
PNG = draw()
DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def plain(error: Heard) -> tuple[int, Any]:
    """An error without its request's id."""
    reported = error.json["error"]
    return error.status, {**reported, "message": reported["message"].partition(" (request id")[0]}


def name_verbs(video_id: str) -> list[tuple[str, str, Any]]:
    """Everything that can be done with a job."""
    path = f"{VIDEOS}/{video_id}"
    return [
        ("GET", path, None),
        ("GET", f"{ALIAS}/{video_id}", None),
        ("GET", f"{path}/content", None),
        ("GET", f"{path}/content?variant=thumbnail", None),
        ("GET", f"{path}/events", None),
        ("POST", f"{path}/remix", {"prompt": "x"}),
        ("DELETE", path, None),
    ]


# ---- whose it is


async def test_another_accounts_job_is_as_little_there_as_one_that_never_was(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, plays={"waits": WAITS, "fails": FAILS}) as video_gateway:
        jobs = [await video_gateway.begin("waits"), await video_gateway.make("fails"), await video_gateway.make()]
        asked, never = len(video_gateway.provider.asked), "video_" + "0" * 32
        for video_id in jobs:
            for (method, path, body), (_, nowhere, _) in zip(name_verbs(video_id), name_verbs(never), strict=True):
                answer = await video_gateway.ask(method, path, key=OTHER, json=body)
                assert answer.error == (404, "not_found", "video_id"), path
                assert answer.headers["x-should-retry"] == "false"
                assert plain(answer) == plain(await video_gateway.ask(method, nowhere, key=OTHER, json=body))
            head = await video_gateway.ask("HEAD", f"{VIDEOS}/{video_id}/content", key=OTHER)
            assert (head.status, head.body) == (404, b"")
            page = (await video_gateway.get(f"{VIDEOS}?after={video_id}", key=OTHER)).json
            assert page["data"] == []
        assert (await video_gateway.get(VIDEOS, key=OTHER)).json["data"] == []
        assert len(video_gateway.provider.asked) == asked
        listed = (await video_gateway.get(VIDEOS, key=SISTER)).json["data"]
        assert [job["id"] for job in listed] == jobs[::-1], "it is the account's, whichever of its keys asked"
        assert (await video_gateway.get(f"{VIDEOS}/{jobs[2]}/content", key=SISTER)).body == write_clip("a cat")
        await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(jobs[0])


async def test_an_id_that_is_none_leads_nowhere(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        video_id = await video_gateway.make()
        ids = [
            "x", "video_", video_id.upper(), f"{video_id}0", f"{video_id}%00", f"{video_id}%0A", "%20", "null",
            "%FF%FE", "..%2F..%2Fmodels", "%2e%2e", "%2E%2E%2Fadmin%2Fv1%2Fkeys", f"a%2F{video_id}",
            f"{video_id}%2Fcontent", f"{video_id}%3Fa=b", "%C3%BC", "x" * 4_000, f"{video_id};a=b", "video_up1",
        ]  # fmt: skip
        for message in ids:
            for method, path, body in name_verbs(message):
                answer = await video_gateway.ask(method, path, json=body)
                assert answer.error[:2] == (404, "not_found"), path
        long = await video_gateway.get(f"{VIDEOS}/{'x' * 10_000}")
        assert long.status in {400, 404, 414}
        assert long.json["error"]["code"] in {"invalid_request", "not_found"}
        assert (await video_gateway.get(f"{VIDEOS}/{video_id}")).status == 200, "and nothing of it did any harm"
        assert [path for method, path, _ in video_gateway.provider.asked if method == "DELETE"] == []


async def test_without_a_key_nothing_is_told(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, plays={"waits": WAITS}) as video_gateway:
        video_id = await video_gateway.begin("waits")
        for method, path, body in [
            *name_verbs(video_id),
            ("POST", VIDEOS, {}),
            ("POST", ALIAS, {}),
            ("GET", VIDEOS, None),
        ]:
            answer = await video_gateway.ask(method, path, key="sk-nobodys", json=body)
            assert answer.error == (401, "invalid_api_key", None), path
        await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(video_id)


# ---- listing


async def test_jobs_are_listed_a_page_at_a_time_in_either_order(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, videos={"store": "proxy"}) as video_gateway:
        made = [await video_gateway.begin(f"cat {number}") for number in range(5)]
        for order, expected in (("asc", made), ("desc", made[::-1])):
            seen: list[str] = []
            while True:
                after = f"&after={seen[-1]}" if seen else ""
                page = (await video_gateway.get(f"{VIDEOS}?limit=2&order={order}{after}")).json
                ids = [job["id"] for job in page["data"]]
                assert (page["object"], page["first_id"], page["last_id"]) == ("list", ids[0], ids[-1])
                seen += ids
                if not page["has_more"]:
                    break
                assert len(ids) == 2
            assert seen == expected
        usual = (await video_gateway.get(VIDEOS)).json
        assert [job["id"] for job in usual["data"]] == made[::-1]
        assert not usual["has_more"]
        assert (await video_gateway.get(f"{VIDEOS}?limit=0")).json == {
            "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": True,
        }  # fmt: skip
        again = (await video_gateway.get(f"{VIDEOS}?limit=5&after=")).json
        assert [job["id"] for job in again["data"]] == made[::-1]
        assert (await video_gateway.get(f"{VIDEOS}?limit=100&order=asc&after={made[-1]}")).json == {
            "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
        }  # fmt: skip
        for video_id in made:
            await video_gateway.finish(video_id)


async def test_a_page_of_endless_prompts_is_shorter_and_the_rest_is_on_the_next(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, videos={"store": "proxy"}) as video_gateway:
        made = [await video_gateway.begin(f"{number} " + "x" * 31_000) for number in range(12)]
        first = (await video_gateway.get(f"{VIDEOS}?order=asc")).json
        assert sum(len(job["prompt"]) for job in first["data"]) <= MAX_PAGE_CHARS
        assert (len(first["data"]), first["has_more"]) == (8, True)
        rest = (await video_gateway.get(f"{VIDEOS}?order=asc&after={first['last_id']}")).json
        assert [job["id"] for job in first["data"] + rest["data"]] == made
        assert not rest["has_more"]
        for video_id in made:
            await video_gateway.finish(video_id)


async def test_a_page_that_is_none_is_refused_by_name(sign_in: VideoGateway) -> None:
    wrong = {
        "limit": [
            "101", "00", "-1", "", "x", "1.0", "%201", "%2B1", "%D9%A1", "%C2%B2", "1e1", "007", "0000000201234567890",
            "000000020" + "9" * 5_000,
        ],
        "order": ["up", "", "DESC"],
        "after": ["x", "video_1", "video_%00", "video_" + "0" * 33],
    }  # fmt: skip
    for param, values in wrong.items():
        for value in values:
            refused = await sign_in.get(f"{VIDEOS}?{param}={value}")
            assert refused.error == (400, "invalid_request", param), value


# ---- the file


@pytest.fixture
async def sign_in(gateway_with: StartGateway) -> AsyncIterator[VideoGateway]:
    """A gateway for many questions of which none makes a job."""
    async with open_video_gateway(
        gateway_with, model=[MODEL], price=[PRICE], videos={"webhook_hosts": ["*.hooks.test"]}
    ) as made:
        yield made


async def test_there_is_no_file_before_the_end_nor_after_a_bad_one(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, plays={"waits": WAITS, "fails": FAILS}) as video_gateway:
        waits, fails = await video_gateway.begin("waits"), await video_gateway.make("fails")
        early = await video_gateway.get(f"{VIDEOS}/{waits}/content")
        assert early.error == (409, "task_not_ready", "video_id")
        assert early.headers["Content-Type"].startswith("application/json")
        assert (await video_gateway.ask("HEAD", f"{VIDEOS}/{waits}/content")).status == 409
        assert (await video_gateway.ask("DELETE", f"{VIDEOS}/{waits}")).error == (409, "task_not_ready", "video_id")
        assert (await video_gateway.get(f"{VIDEOS}/{fails}/content")).error == (404, "not_found", "video_id")
        failed = (await video_gateway.get(f"{VIDEOS}/{fails}")).json
        assert failed["error"] == {"code": "upstream_error", "message": "The machine ran out of film (internal_error)"}
        assert (await video_gateway.ask("DELETE", f"{VIDEOS}/{fails}")).json == {
            "id": fails, "object": "video.deleted", "deleted": True,
        }  # fmt: skip
        assert (await video_gateway.get(f"{VIDEOS}/{fails}")).status == 404
        await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(waits)


async def check_ranges(video_gateway: VideoGateway, path: str, clip: bytes) -> None:
    """What is no range, or one that is to be ignored, is the whole file; what lies beyond its end is 416."""
    for ignored in ("bytes=9-5", "bytes=x", "bytes=", "lines=1-2", "bytes=0-1,3-4", "bytes=-", ""):
        whole = await video_gateway.get(path, Range=ignored)
        assert (whole.status, whole.body) == (200, clip), ignored
        assert "Content-Range" not in whole.headers
    stale = await video_gateway.get(path, **{"Range": "bytes=0-9", "If-Range": "Mon, 01 Jan 2001 00:00:00 GMT"})
    assert (stale.status, stale.body) == (200, clip)
    for asked in (f"bytes={CLIP_BYTES}-", "bytes=-0"):
        beyond = await video_gateway.get(path, Range=asked)
        assert beyond.error == (416, "range_not_satisfiable", "Range")
        assert beyond.headers["Content-Range"] == f"bytes */{CLIP_BYTES}"
        assert beyond.headers["Content-Type"] == "application/json"
        assert "Content-Disposition" not in beyond.headers


async def test_a_file_that_is_kept_is_given_whole_in_parts_and_by_its_headers(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        video_id, clip = await video_gateway.make(), write_clip("a cat")
        path = f"{VIDEOS}/{video_id}/content"
        whole = await video_gateway.get(path)
        assert (whole.status, whole.body) == (200, clip)
        assert whole.headers["Content-Type"] == "video/mp4"
        assert whole.headers["Content-Length"] == str(CLIP_BYTES)
        assert whole.headers["Cache-Control"].startswith("private")
        assert whole.headers["X-Content-Type-Options"] == "nosniff"
        assert whole.headers["Content-Disposition"] == f'inline; filename="{video_id}.mp4"'
        assert whole.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert whole.headers["Accept-Ranges"] == "bytes"
        assert "Server" not in whole.headers
        for asked, start, end in (("0-0", 0, 1), ("10-19", 10, 20), (f"{CLIP_BYTES - 5}-", -5, None), ("-7", -7, None)):
            part = await video_gateway.get(path, Range=f"bytes={asked}")
            assert (part.status, part.body) == (206, clip[start:end])
            assert part.headers["Content-Range"].endswith(f"/{CLIP_BYTES}")
        await check_ranges(video_gateway, path, clip)
        head = await video_gateway.ask("HEAD", path)
        assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(CLIP_BYTES))
        assert (await video_gateway.get(path, **{"If-None-Match": whole.headers["ETag"]})).status == 304
        odd = await video_gateway.get(path, **{"If-Modified-Since": f"Mon, 20 Nov {'9' * 20} 19:12:08 GMT"})
        assert odd.error == (400, "invalid_request", None)
        assert video_gateway.provider.find("a cat").ranges == [None], "the provider was asked for it once"


async def test_a_variant_is_given_where_there_is_one_and_refused_by_name_where_there_is_none(
    gateway_with: StartGateway,
) -> None:
    gone = Answered({"error": {"message": "There is no such file"}}, status=404)
    sheet = Play(polls=["completed"], file=["ok", gone])
    async with open_video_gateway(gateway_with, plays={"sheet": sheet}) as video_gateway:
        video_id = await video_gateway.make()
        path = f"{VIDEOS}/{video_id}/content"
        assert (await video_gateway.get(f"{path}?variant=video")).body == write_clip("a cat")
        thumbnail = await video_gateway.get(f"{path}?variant=thumbnail")
        assert (thumbnail.status, thumbnail.body) == (200, write_clip("a cat"))
        assert thumbnail.headers["Cache-Control"].startswith("private")
        assert video_gateway.provider.asked[-1][1] == "/v1/videos/video_up1/content"
        for variant in ("", "poster", "Video", "video%00", "x" * 500):
            refused = await video_gateway.get(f"{path}?variant={variant}")
            assert refused.error == (400, "invalid_request", "variant")
        assert "video, thumbnail, spritesheet" in refused.json["error"]["message"]
        none = await video_gateway.get(f"{VIDEOS}/{await video_gateway.make('sheet')}/content?variant=spritesheet")
        assert none.error == (404, "not_found", "variant")


@pytest.mark.parametrize("status", [400, 405, 422, 501])
async def test_a_variant_that_the_provider_refuses_is_not_its_failure(gateway_with: StartGateway, status: int) -> None:
    refused = Answered({"error": {"message": "Unknown variant"}}, status=status)
    usual = Play(polls=["completed"], file=["ok", refused])
    async with open_video_gateway(gateway_with, plays={"a cat": usual}) as video_gateway:
        video_id = await video_gateway.make()
        for variant in ("thumbnail", "spritesheet"):
            none = await video_gateway.get(f"{VIDEOS}/{video_id}/content?variant={variant}")
            assert none.error == (400, "invalid_request", "variant")
            assert variant in none.json["error"]["message"]


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_a_variant_that_the_provider_fails_to_give_is_its_failure(
    gateway_with: StartGateway, status: int
) -> None:
    usual = Play(polls=["completed"], file=["ok", Answered({"error": {"message": "hush"}}, status=status)])
    async with open_video_gateway(gateway_with, plays={"a cat": usual}) as video_gateway:
        failed = await video_gateway.get(f"{VIDEOS}/{await video_gateway.make()}/content?variant=thumbnail")
        assert failed.error[:2] == (502, "upstream_error")


async def test_a_file_is_there_for_as_long_as_its_task_says(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, videos={"keep_days": 1e-9}) as video_gateway:
        video_id = await video_gateway.begin()
        done = await video_gateway.finish(video_id)
        assert done["expires_at"] in {done["completed_at"], done["completed_at"] + 1}
        assert (await video_gateway.get(f"{VIDEOS}/{video_id}/content")).error[:2] == (404, "not_found")
        assert (await video_gateway.get(f"{VIDEOS}/{video_id}")).status == 200
        assert (await video_gateway.ask("DELETE", f"{VIDEOS}/{video_id}")).status == 200


async def test_what_is_deleted_is_gone_here_and_at_its_provider(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        video_id = await video_gateway.make()
        kept = list((video_gateway.gateway.folder.path / "videos").rglob("*.mp4"))
        assert len(kept) == 1
        assert (await video_gateway.ask("DELETE", f"{VIDEOS}/{video_id}")).json["deleted"] is True
        for method, path, body in name_verbs(video_id):
            assert (await video_gateway.ask(method, path, json=body)).error == (404, "not_found", "video_id")
        assert not kept[0].exists()
        async with asyncio.timeout(5):
            while not video_gateway.provider.deleted:  # noqa: ASYNC110 - it is told behind the answer
                await asyncio.sleep(0.005)
        assert video_gateway.provider.deleted == ["video_up1"]


async def test_a_file_that_passes_through_says_nothing_of_where_it_comes_from(gateway_with: StartGateway) -> None:
    named = {"Set-Cookie": "hush=1", "X-Request-Id": "hush", "Server": "hush", "Openai-Organization": "hush"}
    page = Answered(b"<script>hush</script>", headers=named, content_type="text/html")
    plays = {"page": Play(polls=["completed"], file=[page]), "cut": Play(polls=["completed"], file=[BREAK])}
    async with open_video_gateway(gateway_with, plays=plays, videos={"store": "proxy"}) as video_gateway:
        path = f"{VIDEOS}/{await video_gateway.make()}/content"
        whole, head = await video_gateway.get(path), await video_gateway.ask("HEAD", path)
        assert (whole.status, whole.body) == (200, write_clip("a cat"))
        assert (head.status, head.body) == (200, b"")
        for heard in (whole, head):
            assert heard.headers["Content-Length"] == str(CLIP_BYTES)
            assert heard.headers["Content-Type"] == "video/mp4"
            assert heard.headers["Cache-Control"].startswith("private")
            assert heard.headers["X-Content-Type-Options"] == "nosniff"
        part = await video_gateway.get(path, Range="bytes=5-9")
        assert (part.status, part.body) == (206, write_clip("a cat")[5:10])
        assert part.headers["Content-Range"] == f"bytes 5-9/{CLIP_BYTES}"
        assert list((video_gateway.gateway.folder.path / "videos").rglob("*.mp4")) == []
        await check_ranges(video_gateway, path, write_clip("a cat"))
        page_heard = await video_gateway.get(f"{VIDEOS}/{await video_gateway.make('page')}/content")
        assert page_heard.headers["Content-Type"] == "application/octet-stream"
        assert page_heard.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert "hush" not in str(dict(page_heard.headers))
        cut = await video_gateway.get(f"{VIDEOS}/{await video_gateway.make('cut')}/content")
        assert cut.error[:2] == (502, "upstream_error")


# ---- news


def read_events(raw: bytes) -> list[tuple[str, Json]]:
    """Names and data of a stream, which has ended."""
    events = []
    for block in raw.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            events.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return events


async def test_every_change_of_a_job_is_told_and_the_stream_ends_with_it(gateway_with: StartGateway) -> None:
    go = [asyncio.Event() for _ in range(3)]
    play = Play(polls=["queued", go[0], "in_progress", go[1], "in_progress", go[2], "completed"])
    async with open_video_gateway(gateway_with, plays={"slow": play, "fails": FAILS}) as video_gateway:
        video_id = await video_gateway.begin("slow")
        url = f"{video_gateway.gateway.url}{VIDEOS}/{video_id}/events"
        async with video_gateway.gateway.client.get(url) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/event-stream")
            assert response.headers["Cache-Control"] == "no-cache"
            assert response.headers["X-Accel-Buffering"] == "no"
            raw = await response.content.readuntil(b"\n\n")
            for event in go:  # the next step is made once this one was told
                event.set()
                raw += await response.content.readuntil(b"\n\n")
            raw += await response.read()
        events = read_events(raw)
        names = list(dict.fromkeys(name for name, _ in events))
        assert names == ["video.queued", "video.processing", "video.completed"]
        assert all(name == f"video.{reported['status']}" for name, reported in events)
        progress = [reported["progress"] for _, reported in events]
        assert progress == sorted(progress)
        assert len({orjson.dumps(reported) for _, reported in events}) == len(events), "nothing is told twice"
        done = (await video_gateway.get(f"{VIDEOS}/{video_id}")).json
        assert events[-1][1] == {name: value for name, value in done.items() if name != "prompt"}, "it may be long"
        late = read_events((await video_gateway.get(f"{VIDEOS}/{video_id}/events")).body)
        assert late == [events[-1]], "who comes late is told how it ended"
        reported = await video_gateway.get(
            f"{VIDEOS}/{await video_gateway.make('fails')}/events", **{"X-Stainless-Lang": "js"}
        )
        assert [name for name, _ in read_events(reported.body)] == ["video.failed"]
        assert (await video_gateway.ask("HEAD", f"{VIDEOS}/{video_id}/events")).status == 405


async def test_who_leaves_or_does_not_read_the_news_holds_nothing_up(gateway_with: StartGateway) -> None:
    go = asyncio.Event()
    async with open_video_gateway(
        gateway_with, plays={"slow": Play(polls=["queued", go, "completed"])}
    ) as video_gateway:
        video_id = await video_gateway.begin("slow")
        signals = video_gateway.gateway.app[SERVICES].videos.notifier
        request = f"GET {VIDEOS}/{video_id}/events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
        deaf = [await connect(video_gateway.gateway.url) for _ in range(3)]
        for reader, writer in deaf:
            writer.write(request)
            await reader.readuntil(b"\n\n")
        for _, writer in deaf[:2]:
            writer.transport.abort()
        go.set()
        assert (await video_gateway.finish(video_id))["status"] == "completed"
        async with asyncio.timeout(5):
            while signals._listeners:  # noqa: ASYNC110 - nothing to be told by
                await asyncio.sleep(0.005)
        deaf[2][1].close()


def test_an_account_follows_so_many_jobs_and_no_more_until_it_leaves_one() -> None:
    following = SubscriberLimit()
    with ExitStack() as stack:
        for _ in range(MAX_SUBSCRIBERS):
            stack.enter_context(following.hold_stream(1))
        with pytest.raises(RateLimited), following.hold_stream(1):
            pass
        with following.hold_stream(2):
            pass
    with following.hold_stream(1):
        pass
    assert following._open_streams == {}


# ---- when to ask again


async def test_a_caller_is_told_to_ask_less_often_the_older_its_job_is(gateway_with: StartGateway) -> None:
    ages = {"new": 0, "young": 3, "older": 8, "old": 60}
    behind = [0.0]
    start = {"clock": lambda: time.time() - behind[0]}
    plays = dict.fromkeys(ages, WAITS)
    async with open_video_gateway(gateway_with, start=start, plays=plays) as video_gateway:
        waits = []
        for prompt, age_s in ages.items():
            behind[0] = float(age_s)
            begun = await video_gateway.submit(prompt)
            assert begun.headers["openai-poll-after-ms"] == "2000"
            waits.append((await video_gateway.get(f"{VIDEOS}/{begun.json['id']}")).headers["openai-poll-after-ms"])
            await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(begun.json["id"])
            assert "openai-poll-after-ms" not in (await video_gateway.get(f"{VIDEOS}/{begun.json['id']}")).headers
        assert waits == ["2000", "4000", "8000", "15000"]


# ---- what is refused by name


WRONG: dict[str, list[str]] = {
    "model": [""],
    "prompt": ["", "x" * 32_001],
    "seconds": ["0", "5", "4.5", "601"],
    "size": ["huge", "640x480"],
    "input_reference": ["cat.png", "ftp://host/1.png", "data:text/html;base64,PGI+"],
    "duration": ["60"],
    "resolution": ["4k"],
    "n": ["4"],
    "num_frames": ["9999"],
    "Seconds": ["60"],
    "webhook_url": [
        "https://elsewhere.test/1",
        "https://hooks.test/1",
        "ftp://a.hooks.test/1",
        "https://u:p@a.hooks.test/1",
        f"https://a.hooks.test/{'x' * 2_048}",
    ],
}


async def test_a_wrong_field_is_named_whether_it_comes_as_json_or_as_a_form(sign_in: VideoGateway) -> None:
    wrong = [(field, value) for field, values in WRONG.items() for value in values]
    for field, value in wrong:
        body = {"model": "m", "prompt": "a cat", field: value}
        for path in (VIDEOS, ALIAS):
            answer = await sign_in.ask("POST", path, json=body)
            assert answer.error == (400, "invalid_request", field), (path, value)
        form = aiohttp.FormData(body, default_to_multipart=True)
        assert (await sign_in.ask("POST", VIDEOS, data=form)).error == (400, "invalid_request", field), value
    assert sign_in.provider.asked == []
    rows = await sign_in.gateway.rows(3 * len(wrong))
    assert {(row.status, row.cost_nanos, row.reserved_nanos) for row in rows} == {(400, 0, 0)}


async def test_a_body_of_neither_kind_is_refused(sign_in: VideoGateway) -> None:
    for data, kind in ((b"model=m&prompt=x", "application/x-www-form-urlencoded"), (b"x", "text/plain")):
        refused = await sign_in.ask("POST", VIDEOS, data=data, headers={"Content-Type": kind})
        assert refused.error[:2] == (415, "unsupported_media_type")
    for data, kind in ((b"{", "application/json"), (b"x", "multipart/form-data; boundary=b")):
        refused = await sign_in.ask("POST", VIDEOS, data=data, headers={"Content-Type": kind})
        assert refused.error[:2] == (400, "invalid_request")
    assert (await sign_in.ask("PUT", VIDEOS)).error[:2] == (405, "method_not_allowed")
    assert (await sign_in.submit(model="nobodys")).error == (404, "model_not_found", "model")


async def test_a_webhook_is_told_where_the_operator_sends_to(gateway_with: StartGateway) -> None:
    async with open_video_gateway(
        gateway_with, plays={"waits": WAITS}, videos={"webhook_hosts": ["*.hooks.test"]}
    ) as video_gateway:
        video_id = await video_gateway.begin("waits", webhook_url="https://a.hooks.test/videos?x=1")
        job = await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(video_id)
        assert job.webhook_url == "https://a.hooks.test/videos?x=1"
        assert "hooks.test" not in str((await video_gateway.get(f"{VIDEOS}/{video_id}")).json)
        assert "webhook_url" not in video_gateway.provider.submits[0].fields
    async with open_video_gateway(gateway_with) as video_gateway:
        refused = await video_gateway.submit(webhook_url="https://a.hooks.test/videos")
        assert refused.error == (400, "invalid_request", "webhook_url")


async def test_words_on_the_list_are_refused_before_anybody_is_asked(
    gateway_with: StartGateway, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("forbidden fruit\n")
    async with open_video_gateway(gateway_with, safety={"words_file": str(words)}, price=[PRICE]) as video_gateway:
        original = await video_gateway.make()
        for heard in (
            await video_gateway.submit("a Forbidden  FRUIT basket"),
            await video_gateway.submit("a basket", negative_prompt="no forbidden fruit"),
            await video_gateway.ask("POST", f"{VIDEOS}/{original}/remix", json={"prompt": "with forbidden fruit"}),
        ):
            assert heard.error[:2] == (400, "content_policy_violation")
            assert heard.headers["x-should-retry"] == "false"
        assert len(video_gateway.provider.submits) == 1
        assert sorted(row.cost_nanos > 0 for row in await video_gateway.gateway.rows(4)) == [False, False, False, True]


# ---- what is passed on


async def test_both_paths_are_the_same(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, model=[MODEL]) as video_gateway:
        answers = [await video_gateway.submit(path=path, size="1280x720", seconds=8) for path in (VIDEOS, ALIAS)]
        reported = [heard.json for heard in answers]
        ids = [str(one.pop("id")) for one in reported]
        created = [one.pop("created_at") for one in reported]
        assert reported[0] == reported[1] | {"size": "1280x720", "seconds": "8", "status": "queued"}
        assert abs(created[0] - created[1]) <= 1
        assert answers[0].headers.keys() == answers[1].headers.keys()
        for video_id in ids:
            await video_gateway.finish(video_id)
            one, other = await video_gateway.get(f"{VIDEOS}/{video_id}"), await video_gateway.get(f"{ALIAS}/{video_id}")
            assert one.json == other.json
        texts = [{**submit.fields} for submit in video_gateway.provider.submits]
        assert texts == [{"model": "m", "prompt": "a cat", "seconds": "8", "size": "1280x720"}] * 2


async def test_a_form_with_a_file_reaches_the_provider_as_one(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with, model=[MODEL]) as video_gateway:
        form = aiohttp.FormData({"prompt": "a cat"}, default_to_multipart=True)
        form.add_field("input_reference", PNG, filename="cat.png", content_type="image/png")
        form.add_field("model", "m")
        form.add_field("seed", "7")
        heard = await video_gateway.ask("POST", VIDEOS, data=form)
        assert heard.status == 200
        for reference in (DATA, {"image_url": DATA}):
            assert (await video_gateway.submit(input_reference=reference)).status == 200
        file, *others = video_gateway.provider.submits
        assert file.files == {"input_reference": PNG}
        assert file.fields == {"model": "m", "prompt": "a cat", "seconds": "4", "size": "1280x720", "seed": "7"}
        assert [other.files for other in others] == [{"input_reference": PNG}] * 2, (
            "an image is a file, however it comes"
        )
        assert len(video_gateway.provider.marks) == 3
        for job in (await video_gateway.get(VIDEOS)).json["data"]:
            await video_gateway.finish(job["id"])


@pytest.mark.parametrize(
    ("setting", "spec_word", "library_word"),
    [
        ("auto", "processing", "in_progress"),
        ("spec", "processing", "processing"),
        ("openai", "in_progress", "in_progress"),
    ],
)
async def test_the_word_for_what_is_under_way_is_the_callers_or_the_operators(
    gateway_with: StartGateway, setting: str, spec_word: str, library_word: str
) -> None:
    busy = Play(polls=["in_progress"], hint_ms=600_000)
    async with open_video_gateway(
        gateway_with, plays={"busy": busy}, videos={"status_words": setting}
    ) as video_gateway:
        video_id = await video_gateway.begin("busy")
        path = f"{VIDEOS}/{video_id}"
        async with asyncio.timeout(5), video_gateway.gateway.app[SERVICES].videos.notifier.listen(video_id) as bell:
            while (await video_gateway.get(path)).json["status"] == "queued":
                await bell.wait()
                bell.clear()
        for header in ("X-Stainless-Lang", "x-stainless-poll-helper"):
            assert (await video_gateway.get(path, **{header: "true"})).json["status"] == library_word
        assert (await video_gateway.get(path)).json["status"] == spec_word
        assert (await video_gateway.get(VIDEOS)).json["data"][0]["status"] == spec_word
        await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(video_id)


async def test_a_job_that_was_submitted_as_the_conventions_libraries_do_is_told_in_its_words(
    gateway_with: StartGateway,
) -> None:
    """Clients send a form, some without ``User-Agent``; a poll without that header is answered in the same way."""
    busy = Play(polls=["in_progress"], hint_ms=600_000)
    async with open_video_gateway(gateway_with, plays={"busy": busy}) as video_gateway:
        original = await video_gateway.begin()
        await video_gateway.finish(original)
        form = {"model": "m", "prompt": "busy"}
        as_form = aiohttp.FormData(form, default_to_multipart=True)
        from_form = (await video_gateway.ask("POST", VIDEOS, data=as_form)).json["id"]
        from_library = (await video_gateway.ask("POST", VIDEOS, json=form, headers={"X-Stainless-Lang": "js"})).json[
            "id"
        ]
        from_json = await video_gateway.begin("busy")
        words = {from_form: "in_progress", from_library: "in_progress", from_json: "processing"}
        for video_id, word in words.items():
            path, videos = f"{VIDEOS}/{video_id}", video_gateway.gateway.app[SERVICES].videos
            async with asyncio.timeout(5), videos.notifier.listen(video_id) as bell:
                while (await video_gateway.get(path)).json["status"] == "queued":
                    await bell.wait()
                    bell.clear()
            assert (await video_gateway.get(path)).json["status"] == word
            assert (await video_gateway.get(f"{ALIAS}/{video_id}")).json["status"] == word
        listed = (await video_gateway.get(VIDEOS)).json["data"]
        assert {job["id"]: job["status"] for job in listed} == {original: "completed", **words}
        async with video_gateway.gateway.client.get(
            f"{video_gateway.gateway.url}{VIDEOS}/{from_form}/events"
        ) as stream:
            assert await stream.content.readline() == b"event: video.in_progress\n"
        for video_id in words:
            await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(video_id)


async def test_a_remix_is_told_in_the_words_of_its_original(gateway_with: StartGateway) -> None:
    async with open_video_gateway(gateway_with) as video_gateway:
        form = aiohttp.FormData({"model": "m", "prompt": "a cat"}, default_to_multipart=True)
        videos = video_gateway.gateway.app[SERVICES].videos.jobs
        originals = [(await video_gateway.ask("POST", VIDEOS, data=form)).json["id"], await video_gateway.begin()]
        for original, words in zip(originals, ("openai", "spec"), strict=True):
            await video_gateway.finish(original)
            heard = await video_gateway.ask("POST", f"{VIDEOS}/{original}/remix", json={"prompt": "at night"})
            assert (await videos.get(heard.json["id"])).status_words == words
            await video_gateway.finish(heard.json["id"])


# ---- remixes


async def test_a_remix_is_made_by_who_made_the_original_and_costs_as_much(gateway_with: StartGateway) -> None:
    plays = {"waits": WAITS, "fails": FAILS}
    async with OpenAiVideos(Play(polls=["completed"])) as second:
        more: Json = {"model": [MODEL], "price": [PRICE]}
        async with open_video_gateway(gateway_with, second, plays=plays, **more) as video_gateway:
            original = await video_gateway.make(size="1920x1080", seconds="8")
            path = f"{VIDEOS}/{original}/remix"
            heard = await video_gateway.ask("POST", path, json={"prompt": "at night"})
            assert heard.status == 200
            remix = await video_gateway.finish(heard.json["id"])
            assert (remix["remixed_from_video_id"], remix["prompt"]) == (original, "at night")
            assert (remix["size"], remix["seconds"], remix["model"]) == ("1920x1080", "8", "m")
            submit = video_gateway.provider.submits[-1]
            assert (submit.path, submit.fields) == ("/v1/videos/video_up1/remix", {"prompt": "at night"})
            form = aiohttp.FormData({"prompt": "at noon"}, default_to_multipart=True)
            other = await video_gateway.ask("POST", path, data=form)
            await video_gateway.finish(other.json["id"])
            rows = await video_gateway.gateway.rows(3)
            assert {row.cost_nanos for row in rows} == {2_400_000_000}
            assert sorted(row.operation for row in rows) == ["video_remixes", "video_remixes", "videos"]
            for body, param in (
                ({}, "prompt"),
                ({"prompt": "x", "seconds": "8"}, "seconds"),
                ({"prompt": 1}, "prompt"),
            ):
                assert (await video_gateway.ask("POST", path, json=body)).error == (400, "invalid_request", param)
            waits, fails = await video_gateway.begin("waits"), await video_gateway.make("fails")
            early = await video_gateway.ask("POST", f"{VIDEOS}/{waits}/remix", json={"prompt": "x"})
            assert early.error == (409, "task_not_ready", "video_id")
            nothing = await video_gateway.ask("POST", f"{VIDEOS}/{fails}/remix", json={"prompt": "x"})
            assert nothing.error == (404, "not_found", "video_id")
            await video_gateway.gateway.app[SERVICES].videos.jobs.cancel(waits)
        assert second.submits == []


async def test_where_nobody_remixes_a_remix_is_the_callers_mistake(gateway_with: StartGateway) -> None:
    async with open_video_gateway(
        gateway_with, model=[{**MODEL, "remixes": False, "references": False}]
    ) as video_gateway:
        original = await video_gateway.make()
        refused = await video_gateway.ask("POST", f"{VIDEOS}/{original}/remix", json={"prompt": "x"})
        assert refused.error == (400, "invalid_request", "video_id")
        assert (await video_gateway.submit(input_reference=DATA)).error == (400, "invalid_request", "input_reference")
        assert len(video_gateway.provider.submits) == 1


# ---- money


async def test_the_full_price_is_held_by_length_and_size_and_charged_only_for_a_video(
    gateway_with: StartGateway,
) -> None:
    capped = [{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 4.0}]
    plays = {"waits": WAITS, "fails": FAILS}
    async with open_video_gateway(gateway_with, plays=plays, model=[MODEL], price=[PRICE], key=capped) as video_gateway:
        videos = video_gateway.gateway.app[SERVICES].videos.jobs
        large = await video_gateway.begin("waits", size="1920x1080", seconds="8")
        usual = await video_gateway.begin("waits")
        assert videos.reservations.list_held() == {large: 2_400_000_000, usual: 400_000_000}
        refused = await video_gateway.submit(size="1920x1080", seconds="8")
        assert refused.error == (403, "insufficient_quota", None)
        assert refused.headers["x-should-retry"] == "false"
        assert len(video_gateway.provider.submits) == 2
        failed = await video_gateway.begin("fails", seconds="8")
        await video_gateway.finish(failed)
        assert failed not in videos.reservations.list_held()
        await videos.cancel(large)
        done = await video_gateway.submit(seconds="8")
        assert done.headers["x-gateway-cost-usd"] == "0.8"
        await video_gateway.finish(done.json["id"])
        assert videos.reservations.list_held() == {usual: 400_000_000}
        await videos.cancel(usual)
        assert videos.reservations.list_held() == {}
        rows = {
            (row.outcome, row.status, row.cost_nanos, row.reserved_nanos) for row in await video_gateway.gateway.rows(5)
        }
        assert rows == {
            ("cancelled", 200, 0, 2_400_000_000),
            ("cancelled", 200, 0, 400_000_000),
            ("refused", 403, 0, 0),
            ("failed", 200, 0, 800_000_000),
            ("completed", 200, 800_000_000, 800_000_000),
        }
        async with video_gateway.gateway.client.get(
            f"{video_gateway.gateway.url}/v1/dashboard/billing/usage"
        ) as response:
            assert (await response.json())["total_usage"] == pytest.approx(80.0)


async def test_a_key_without_money_is_refused_before_its_upload(gateway_with: StartGateway) -> None:
    broke = [{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 0.0}]
    more: Json = {"key": broke, "price": [PRICE], "billing": {"unpriced": "refuse"}}
    async with open_video_gateway(gateway_with, **more) as video_gateway:
        form = aiohttp.FormData({"model": "m", "prompt": "a cat"}, default_to_multipart=True)
        form.add_field("input_reference", PNG, filename="cat.png")
        for sent in ({"json": {"model": "m", "prompt": "a cat"}}, {"data": form}):
            assert (await video_gateway.ask("POST", VIDEOS, **sent)).error == (403, "insufficient_quota", None)
        assert video_gateway.provider.asked == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"models": ["other", "x*"]}, "model_not_allowed"),
        ({"group": "gold"}, "group_not_allowed"),
        ({"allow_ips": ["10.9.9.9"]}, "ip_not_allowed"),
    ],
)
async def test_what_a_key_may_not_use_it_may_not_film_with(gateway_with: StartGateway, more: Json, code: str) -> None:
    keys = [{"name": "test", "account": "acme", "secret": KEY, **more}]
    async with open_video_gateway(
        gateway_with, account=[{"name": "acme", "groups": ["silver"]}], key=keys
    ) as video_gateway:
        for path in (VIDEOS, ALIAS):
            assert (await video_gateway.submit(path=path)).error[:2] == (403, code)
        assert video_gateway.provider.asked == []


async def test_a_file_that_passes_through_counts_as_a_call_and_one_that_is_kept_does_not(
    gateway_with: StartGateway,
) -> None:
    limited = [{"name": "test", "account": "acme", "secret": KEY, "rpm": 1}]
    for store, status in (("proxy", 429), ("keep", 200)):
        async with open_video_gateway(gateway_with, key=limited, videos={"store": store}) as video_gateway:
            video_id = await video_gateway.make()
            assert (await video_gateway.get(f"{VIDEOS}/{video_id}/content")).status == status


async def test_the_keys_rate_limits_are_for_videos_too(gateway_with: StartGateway) -> None:
    keys = [{"name": "test", "account": "acme", "secret": KEY, "rpm": 1}]
    async with open_video_gateway(gateway_with, key=keys) as video_gateway:
        first = await video_gateway.submit()
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        second = await video_gateway.submit()
        assert second.error[:2] == (429, "rate_limit_exceeded")
        assert int(second.headers["Retry-After"]) > 0
        await video_gateway.finish(first.json["id"])


# ---- what the document says of them


async def test_the_links_of_the_document_lead_from_a_submit_to_its_file(gateway_with: StartGateway) -> None:
    places = {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in get_document()["paths"].items()
        for method, operation in methods.items()
    }
    asked = {"remix_video": {"prompt": "at night"}}

    async def go(video_gateway: VideoGateway, start: str, answered: Json, to: str) -> Heard:
        link = places[start][2]["responses"]["200"]["links"][to]
        ((parameter, expression),) = link["parameters"].items()
        value: Any = answered
        for part in expression.removeprefix("$response.body#/").split("/"):
            value = value[int(part) if part.isdigit() else part]
        method, path, _ = places[link["operationId"]]
        path = path.replace(f"{{{parameter}}}", value) if "{" in path else f"{path}?{parameter}={value}"
        return await video_gateway.ask(method, path, json=asked.get(to))

    async with open_video_gateway(gateway_with) as video_gateway:
        submitted = (await video_gateway.submit()).json
        assert (await go(video_gateway, "create_video", submitted, "get_video")).json["id"] == submitted["id"]
        await video_gateway.finish(submitted["id"])
        polled = await go(video_gateway, "create_video", submitted, "get_video")
        assert (await go(video_gateway, "get_video", polled.json, "get_video_content")).body == write_clip("a cat")
        assert b"video.completed" in (await go(video_gateway, "get_video", polled.json, "follow_video")).body
        remixed = (await go(video_gateway, "get_video", polled.json, "remix_video")).json
        assert remixed["remixed_from_video_id"] == submitted["id"]
        await video_gateway.finish(remixed["id"])
        listed = (await video_gateway.get(f"{VIDEOS}?limit=1")).json
        older = (await go(video_gateway, "list_videos", listed, "list_videos")).json
        assert [job["id"] for job in older["data"]] == [submitted["id"]]
        assert (await go(video_gateway, "list_videos", older, "get_video")).json["id"] == submitted["id"]
        assert (await go(video_gateway, "remix_video", remixed, "delete_video")).json["deleted"] is True
