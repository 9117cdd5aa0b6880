"""A job is begun once: a refusal is the next channel's to take, and where nobody knows there is no second submit."""

import asyncio
import io
from typing import Any

import aiohttp
import orjson

from gateway.domain.video import CANCELLED_ERROR, SUBMIT_UNKNOWN_ERROR
from gateway.server.context import SERVICES
from tests.support.fault_scene import Heard, hear, until
from tests.support.gateway import RunningGateway, channel
from tests.support.image_providers import draw
from tests.support.image_scene import leave
from tests.support.openai_videos import BREAK, CLOSE, SILENCE, Answered, OpenAiVideos, Play, Raw, Turn
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import (
    A_VIDEO,
    SECONDS,
    VIDEOS,
    audit,
    auditing,
    await_ends,
    await_job,
    find_jobs,
    look,
    site,
    submit,
    without,
    write_mark,
)

REFUSALS: dict[str, Turn] = {
    "401": Answered({"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}, 401),
    "402": Answered({"error": {"message": "Insufficient balance"}}, 402),
    "403": Answered({"error": {"message": "Not in your region"}}, 403),
    "404": Answered({"error": {"message": "The model does not exist"}}, 404),
    "429": Answered({"error": {"message": "Slow down"}}, 429, {"Retry-After": "1"}),
    "500": Answered({"error": {"message": "The server had an error"}}, 500),
    "503": Answered(b"<html>", 503, content_type="text/html"),
    "a redirect": Answered(b"", 307, {"Location": "/v2/videos"}),
}
"""By which a provider says that it has not begun: another one may."""
FINAL: dict[str, tuple[Turn, int, str]] = {
    "400": (Answered({"error": {"message": "No such size", "param": "size", "code": "bad"}}, 400), 400, "bad"),
    "blocked": (
        Answered({"error": {"message": "Not that", "code": "moderation_blocked"}}, 400),
        400,
        "content_policy_violation",
    ),
}
"""Which any other would say, too."""
UNKNOWN: dict[str, Turn] = {
    "502": Answered(b"<html>Bad gateway</html>", 502, content_type="text/html"),
    "504": Answered(b"", 504),
    "408": Answered({"error": {"message": "x"}}, 408),
    "522": Answered(b"", 522),
    "HTML with 200": Answered(b"<html>Sign in</html>", content_type="text/html"),
    "an empty body": Answered(b""),
    "204": Answered(b"", 204),
    "garbage": Answered(b"\x00\xff{]"),
    "no id": Answered({"object": "video", "status": "queued"}),
    "an id that is none": Answered({"id": "../../v1/models", "object": "video", "status": "queued"}),
    "half an answer": Raw(b'HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"id": "video_up1", "st'),
    "no HTTP": Raw(b"WHAT\r\n\r\n"),
    "a reset": BREAK,
    "a hang-up": CLOSE,
    "silence": SILENCE,
}
"""After which nobody knows."""


def serve(up: OpenAiVideos, model: str, **more: Any) -> dict[str, Any]:
    """A channel of its own for one model: what is held against it is held against no other."""
    return up.channel(write_mark(model), models=[model], **more)


def check_error(heard: Heard, status: int, code: str) -> dict[str, Any]:
    assert heard.status == status, heard
    error: dict[str, Any] = orjson.loads(heard.body)["error"]
    assert error["code"] == code
    return error


async def test_what_one_channel_refuses_another_one_takes_and_there_is_one_job(gateway_with: StartGateway) -> None:
    async with OpenAiVideos() as up, OpenAiVideos() as good:
        up.plays = {prompt: Play(submit=(turn,)) for prompt, turn in REFUSALS.items()}
        prompts = [*REFUSALS, "never reached"]
        channels = [serve(up, prompt) for prompt in REFUSALS]
        channels.append(channel("http://127.0.0.1:9/v1", "never.reached", models=["never reached"]))
        gateway = await gateway_with(site(*channels, good.channel("good", models=prompts, priority=-1)))
        async with auditing(gateway):
            for prompt in prompts:
                heard = await submit(gateway, prompt, model=prompt)
                assert (heard.status, heard.headers["x-gateway-attempts"]) == (200, "2"), heard
        jobs = await await_ends(gateway)
        assert {(prompt, job.state, job.channel) for prompt, job in jobs.items()} == {
            (prompt, "completed", "good") for prompt in prompts
        }
        rows = await audit(gateway, up, good)
        assert {(row.channel, row.attempts, row.cost_nanos) for row in rows.values()} == {("good", 2, A_VIDEO)}
        assert [up.count(prompt) for prompt in REFUSALS] == [1] * len(REFUSALS)


async def test_what_nobody_takes_leaves_no_job_and_one_row(gateway_with: StartGateway) -> None:
    async with OpenAiVideos() as up, OpenAiVideos(Play(submit=(REFUSALS["500"],))) as other:
        up.plays = {prompt: Play(submit=(turn,)) for prompt, (turn, _, _) in FINAL.items()}
        up.plays |= {prompt: Play(submit=(turn,)) for prompt, turn in REFUSALS.items()}
        channels = [serve(up, prompt) for prompt in up.plays]
        gateway = await gateway_with(site(*channels, other.channel("other", models=[*up.plays], priority=-1)))
        for prompt, (_, status, code) in FINAL.items():
            heard = await submit(gateway, prompt, model=prompt)
            check_error(heard, status, code)
            assert other.count(prompt) == 0
        for prompt in REFUSALS:
            heard = await submit(gateway, prompt, model=prompt)
            assert heard.status in {404, 429, 502}, heard
            assert "x-should-retry" not in heard.headers or prompt in {"401", "402", "403"}
            assert (up.count(prompt), other.count(prompt)) == (1, 1)
        assert orjson.loads((await look(gateway)).body)["data"] == []
        rows = await audit(gateway, up, rows=len(up.plays))
        assert {row.outcome for row in rows.values()} == {"refused", "blocked", "failed"}
        assert {row.cost_nanos for row in rows.values()} == {0}


async def test_where_nobody_knows_whether_it_was_begun_it_is_never_begun_again(gateway_with: StartGateway) -> None:
    async with OpenAiVideos() as up, OpenAiVideos() as other:
        up.plays = {prompt: Play(submit=(turn, "ok")) for prompt, turn in UNKNOWN.items()}
        gateway = await gateway_with(site(up.channel(total_timeout_s=0.3), other.channel("other", priority=-1)))
        for prompt in UNKNOWN:
            heard = await submit(gateway, prompt, key=prompt)
            assert heard.status in {408, 502, 504, 522}, heard
            assert heard.headers["x-should-retry"] == "false"
            error = orjson.loads(heard.body)["error"]
            assert "not known" in error["message"]
            (job,) = (job for job in (await find_jobs(gateway)).values() if job.prompt == prompt)
            assert (job.state, job.error_code) == ("failed", SUBMIT_UNKNOWN_ERROR.code)
            again = await submit(gateway, prompt, key=prompt, mark=f"{prompt} again")
            assert again.status == 200
            reported = orjson.loads(again.body)
            assert (reported["id"], reported["status"], reported["error"]["code"]) == (
                job.id,
                "failed",
                SUBMIT_UNKNOWN_ERROR.code,
            )
        assert [up.count(prompt) for prompt in UNKNOWN] == [1] * len(UNKNOWN)
        assert not other.submits
        rows = await audit(gateway, up, rows=2 * len(UNKNOWN))
        for prompt in UNKNOWN:
            assert rows[write_mark(prompt)].outcome == "failed"
            assert rows[write_mark(prompt)].error_code == SUBMIT_UNKNOWN_ERROR.code


async def test_a_caller_who_leaves_during_the_submit_leaves_a_job_that_goes_on(gateway_with: StartGateway) -> None:
    """As JSON and as a form, whose file is read by the provider when its caller has long gone."""
    go_on, refuse = asyncio.Event(), asyncio.Event()
    plays = {"json": Play(submit=(go_on, "ok")), "refused": Play(submit=(refuse, FINAL["400"][0]))}
    image = draw(64, 64) + bytes(FILE)
    async with OpenAiVideos(**plays) as up:
        gateway = await gateway_with(site(up.channel()))
        asking = [asyncio.create_task(submit(gateway, prompt, key=prompt)) for prompt in plays]
        await until(lambda: len(up.submits) == len(plays))
        up.deaf = asyncio.Event()
        asking.append(asyncio.create_task(submit_form(gateway, "form", image)))
        await until(lambda: len(up.asked) == len(plays) + 1)
        for calling in asking:
            await leave(calling)
        await until(lambda: gateway.app[SERVICES].drain.active_count == len(asking))  # and no caller
        jobs = await find_jobs(gateway)
        assert {prompt: job.state for prompt, job in jobs.items()} == dict.fromkeys(
            ["json", "refused", "form"], "submitting"
        )
        assert sum(gateway.app[SERVICES].videos.jobs.reservations.list_held().values()) == 3 * A_VIDEO
        for event in (go_on, refuse, up.deaf):
            event.set()
        for prompt in ("json", "form"):
            assert (await await_job(gateway, prompt, "completed")).id == jobs[prompt].id
        (form,) = (one for one in up.submits if one.prompt == "form")
        assert form.files == {"input_reference": image}
        rows = await audit(gateway, up, rows=3)
        assert (rows["refused"].outcome, rows["refused"].status) == ("refused", 400)
        again = await submit(gateway, "json", key="json", mark="again")
        assert orjson.loads(again.body)["id"] == jobs["json"].id
        assert up.count("json") == 1


FILE = 8 * 1024 * 1024
"""More than lies between the gateway and a provider that does not read."""


async def submit_form(gateway: RunningGateway, prompt: str, image: bytes) -> Heard:
    form = aiohttp.FormData({"model": "m", "prompt": prompt, "seconds": str(SECONDS)})
    form.add_field("input_reference", io.BytesIO(image), filename="picture.png", content_type="image/png")
    headers = {"X-Request-Id": prompt}
    async with gateway.client.post(gateway.url + VIDEOS, data=form, headers=headers) as response:
        return await hear(response)


async def test_a_job_that_is_cancelled_meanwhile_stays_so_whatever_its_provider_says(
    gateway_with: StartGateway,
) -> None:
    """While it is being begun, or refused, or asked after: it has ended once, and costs nothing."""
    go_on = asyncio.Event()
    plays = {
        "begun": Play(submit=(go_on, "ok")),
        "refused": Play(submit=(go_on, FINAL["400"][0])),
        "unknown": Play(submit=(go_on, BREAK)),
        "finished": Play(polls=(go_on, "completed")),
        "failed": Play(polls=(go_on, "failed")),
    }
    async with OpenAiVideos(**plays) as up:
        gateway = await gateway_with(site(up.channel()))
        asking = [asyncio.create_task(submit(gateway, prompt)) for prompt in plays]
        await until(lambda: len(up.submits) == len(plays))
        await until(lambda: [task.polls for task in up.tasks.values()] == [1, 1])
        jobs = await find_jobs(gateway)
        for job in jobs.values():
            await gateway.app[SERVICES].videos.jobs.cancel(job.id)
        assert gateway.app[SERVICES].videos.jobs.reservations.list_held() == {}
        go_on.set()
        heard = dict(zip(plays, await asyncio.gather(*asking), strict=True))
        reported = orjson.loads(heard["begun"].body)
        assert (reported["status"], reported["error"]["code"]) == ("failed", CANCELLED_ERROR.code)
        assert [heard[name].status for name in ("refused", "unknown")] == [400, 502]
        await submit(gateway, "another")  # when it has ended, what was said of the others has been looked at
        assert (await await_ends(gateway)).pop("another").state == "completed"
        cancelled = {prompt: job.error_code for prompt, job in (await find_jobs(gateway)).items()}
        assert cancelled == {**dict.fromkeys(plays, CANCELLED_ERROR.code), "another": None}
        await audit(gateway, up)


async def test_what_cannot_be_put_on_record_is_not_begun(gateway_with: StartGateway) -> None:
    async with OpenAiVideos() as up:
        gateway = await gateway_with(site(up.channel()))
        async with without(gateway, "videos"):
            heard = await submit(gateway, "take", key="take")
            check_error(heard, 503, "overloaded")
            assert int(heard.headers["Retry-After"]) >= 1
            assert gateway.app[SERVICES].videos.jobs.reservations.list_held() == {}
            assert gateway.app[SERVICES].billing.quota.open_reservations == 0
        assert not up.asked
        assert (await submit(gateway, "take", key="take", mark="again")).status == 200
        await await_ends(gateway)
        rows = await audit(gateway, up, rows=2)
        assert (rows["take"].status, rows["take"].cost_nanos) == (503, 0)


async def test_what_was_begun_is_on_record_as_soon_as_the_store_is_back(gateway_with: StartGateway) -> None:
    """And what was refused, or is not known, as well: each caller waits for it, and nothing is asked twice."""
    go_on = asyncio.Event()
    plays = {
        "begun": Play(submit=(go_on, "ok")),
        "refused": Play(submit=(go_on, FINAL["400"][0])),
        "unknown": Play(submit=(go_on, BREAK)),
    }
    async with OpenAiVideos(**plays) as up:
        gateway = await gateway_with(site(up.channel()))
        asking = [asyncio.create_task(submit(gateway, prompt)) for prompt in plays]
        await until(lambda: len(up.submits) == len(plays))
        async with without(gateway, "videos"):
            go_on.set()
            done, _ = await asyncio.wait(asking, timeout=0.2)
            assert not done
        begun, refused, unknown = await asyncio.gather(*asking)
        assert (begun.status, refused.status, unknown.status) == (200, 400, 502)
        jobs = await await_ends(gateway)
        assert {prompt: job.error_code for prompt, job in jobs.items()} == {"begun": None, "unknown": "submit_unknown"}
        rows = await audit(gateway, up, rows=3)
        assert rows["refused"].outcome == "refused"
