"""Whatever is said of a task in passing, its job goes on; only the provider's verdict, or the deadline, fails it."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from structlog.testing import capture_logs

from gateway.domain.video import (
    BLOCKED_CODE,
    CHANNEL_GONE_ERROR,
    MAX_HINT_S,
    TIMEOUT_ERROR,
    compute_wait_s,
    find_failing_wait_s,
)
from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.fault_scene import WAIT_LIMIT_S, until
from tests.support.gateway import channel
from tests.support.openai_videos import BREAK, CLOSE, KEY, SILENCE, Answered, OpenAiVideos, Play, Raw, Turn
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import (
    A_VIDEO,
    VIDEOS,
    audit,
    auditing,
    await_ends,
    await_job,
    find_jobs,
    site,
    submit,
    write_mark,
)

PACE = 0.02
"""Of a gateway in a test; see ``tests/support/gateway.py``."""
HTML = Answered(b"<!DOCTYPE html><html>Sign in</html>", content_type="text/html")
TASK = {"id": "video_up1", "object": "video", "progress": 5}
PASSING: dict[str, tuple[Turn, ...]] = {
    "500": (Answered({"error": {"message": "The server had an error"}}, 500),),
    "401": (Answered({"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}, 401),),
    "403": (Answered({"error": {"message": "Not in your region"}}, 403),),
    "a filter's words, and no verdict": (Answered({"error": {"message": "x", "code": "moderation_blocked"}}, 400),),
    "404": (Answered({"error": {"message": "Video not found"}}, 404),),
    "410": (Answered(b"", 410),),
    "429": (Answered({"error": {"message": "Slow down"}}, 429, {"Retry-After": "2"}),),
    "503, to come back later": (Answered(b"", 503, {"Retry-After": "1"}),),
    "502 in HTML": (Answered(HTML.body, 502, content_type="text/html"),),
    "HTML with 200": (HTML,),
    "an empty body": (Answered(b""),),
    "204": (Answered(b"", 204),),
    "a redirect": (Answered(b"", 302, {"Location": "http://127.0.0.1:9/"}),),
    "garbage": (Answered(b"\x00\xff{]"),),
    "half of an object": (Answered(b'{"id": "video_up1", "status": "comple'),),
    "another shape": (Answered(b'[{"status": "completed"}]'), Answered(b"null"), Answered(b'"failed"')),
    "no status": (Answered(TASK),),
    "a status of another kind": (Answered({**TASK, "status": 7}), Answered({**TASK, "status": None})),
    "an unknown word": ("hibernating", "pondering"),
    "an error beside it": (Answered({**TASK, "status": "in_progress", "error": {"code": "x", "message": "y"}}),),
    "deep nesting": (Answered(b"[" * 100_000),),
    "a body without an end": (Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"),),
    "no HTTP": (Raw(b"WHAT\r\n\r\n"),),
    "a reset": (BREAK, BREAK),
    "a hang-up": (CLOSE, CLOSE),
    "silence": (SILENCE,),
}
VERDICTS: dict[str, tuple[dict[str, Any] | None, str, str]] = {
    "failed": (
        {"code": "internal_error", "message": "No film left"},
        "upstream_error",
        "No film left (internal_error)",
    ),
    "cancelled": (None, "upstream_error", "The provider gave no reason"),
    "expired": ({"code": 5}, "upstream_error", "The provider gave no reason, only the code 5"),
    "failed for what it shows": ({"code": "moderation_blocked", "message": "Not that"}, BLOCKED_CODE, "Not that"),
}


async def test_a_job_goes_on_whatever_is_said_of_it_in_passing_and_only_a_verdict_fails_it(
    gateway_with: StartGateway,
) -> None:
    """What goes on is completed and paid for; what has failed costs nothing, and is not begun anew elsewhere."""
    passing = {name: Play(polls=(*turns, "in_progress", "completed")) for name, turns in PASSING.items()}
    async with OpenAiVideos() as up:
        up.plays |= passing
        for prompt, (error, _, _) in VERDICTS.items():
            up.plays[prompt] = Play(polls=("in_progress", prompt.split()[0]), more={"error": error})
        gateway = await gateway_with(site(up.channel(total_timeout_s=0.3), up.channel("spare", priority=-1)))
        async with auditing(gateway):
            for prompt in up.plays:
                assert (await submit(gateway, prompt)).status == 200
            jobs = await await_ends(gateway)
        rows = await audit(gateway, up)
        for prompt, play in passing.items():
            job, row = jobs[prompt], rows[write_mark(prompt)]
            assert (job.state, job.channel, job.failures) == ("completed", "up", 0), job
            assert (row.outcome, row.attempts, row.error_code) == ("completed", 1, None)
            assert up.find(prompt).polls >= len(play.polls)
        for prompt, (_, code, message) in VERDICTS.items():
            job, row = jobs[prompt], rows[write_mark(prompt)]
            assert (job.state, job.error_code, job.error_message) == ("failed", code, message)
            blocked = code == "content_policy_violation"
            assert (row.outcome, row.status, row.attempts) == ("blocked" if blocked else "failed", 200, 1)
            assert up.find(prompt).polls == 2


async def test_a_provider_that_cannot_be_heard_is_asked_less_often_and_after_an_answer_as_usual(
    gateway_with: StartGateway,
) -> None:
    go_on, end = asyncio.Event(), asyncio.Event()
    broken = Answered(b"", 500)
    async with OpenAiVideos(Play(polls=(broken, broken, broken, go_on, "queued", "queued", end, "completed"))) as up:
        gateway = await gateway_with(site(up.channel()))
        with capture_logs() as lines:
            await submit(gateway, "take")
            await until(lambda: up.tasks and up.find("take").polls == 4)
            job = (await find_jobs(gateway))["take"]
            assert (job.failures, job.polls) == (3, 0)
            assert job.due_ms is not None
            assert job.due_ms - job.updated_ms == round(find_failing_wait_s(3) * 1_000 * PACE)
            go_on.set()
            await until(lambda: up.find("take").polls == 6)
            job = (await find_jobs(gateway))["take"]
            assert (job.failures, job.polls) == (0, 2)
            assert job.due_ms is not None
            assert job.due_ms - job.updated_ms == round(compute_wait_s(2) * 1_000 * PACE)
            end.set()
            await await_ends(gateway)
        reported = [line["failures"] for line in lines if line["event"] == "video_poll_failed"]
        assert reported == [1, 2, 3]
        await audit(gateway, up)


async def test_the_provider_says_when_it_wants_to_be_asked_again(gateway_with: StartGateway) -> None:
    """But it may not put a job off for hours, nor have itself asked without a pause.

    It is asked with the key that has begun the task: another account's would not find it.
    """
    end = asyncio.Event()
    plays = {
        "a hint": (Play(polls=("queued", end, "completed"), hint_ms=9_000), 9.0),
        "a hint that is too short": (Play(polls=("queued", end, "completed"), hint_ms=1), 0.5),
        "a hint that is too long": (Play(polls=("queued", end, "completed"), hint_ms=10**9), MAX_HINT_S),
        "a limit": (Play(polls=(Answered(b"", 429, {"Retry-After": "7"}), end, "completed")), 7.0),
        "a limit for a day": (Play(polls=(Answered(b"", 429, {"Retry-After": "86400"}), "completed")), MAX_HINT_S),
    }
    async with OpenAiVideos() as up:
        up.plays |= {prompt: play for prompt, (play, _) in plays.items()}
        two_keys = up.channel(api_keys=["provider-key-number-one", "provider-key-number-two"])
        del two_keys["api_key"]
        gateway = await gateway_with(site(two_keys))
        for prompt in plays:
            await submit(gateway, prompt)
        async with asyncio.timeout(WAIT_LIMIT_S):
            while not all(job.polls + job.failures for job in (await find_jobs(gateway)).values()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        jobs = await find_jobs(gateway)
        for prompt, (_, wait_s) in plays.items():
            job = jobs[prompt]
            assert job.due_ms is not None
            assert job.due_ms - job.updated_ms == round(wait_s * 1_000 * PACE)
            if wait_s == MAX_HINT_S:  # nobody waits for it here
                await gateway.app[SERVICES].videos.jobs.cancel(job.id)
        end.set()
        assert Counter(job.state for job in (await await_ends(gateway)).values()) == {"completed": 3, "failed": 2}
        await audit(gateway, up)
        used = Counter(frozenset(key for _, path, key in up.asked if path == f"{VIDEOS}/{task}") for task in up.tasks)
        assert sorted((len(keys), count) for keys, count in used.items()) == [(1, 2), (1, 3)]


def is_polled(up: OpenAiVideos, prompt: str, times: int = 1) -> bool:
    return any(task.prompt == prompt and task.polls >= times for task in up.tasks.values())


async def test_a_channel_that_is_removed_fails_its_jobs_and_no_others(gateway_with: StartGateway) -> None:
    """Whatever they were at: waiting in the queue, being asked after, having their file fetched."""
    never = asyncio.Event()
    plays = {
        "queued": Play(polls=("queued",)),
        "processing": Play(polls=("in_progress",)),
        "fetching": Play(polls=("completed",), file=(never, "ok")),
        "broken": Play(polls=(Answered(b"", 500),)),
    }
    stays = Play(polls=("in_progress", never, "completed"))
    async with OpenAiVideos(**plays) as up, OpenAiVideos(stays) as other:
        gateway = await gateway_with(site(other.channel("stays", models=["other"])))
        office = partial(ask_office, gateway)
        assert (await office("POST", "/channels?check=none", up.channel("goes")))[0] == 201
        for prompt in plays:
            await submit(gateway, prompt)
        await submit(gateway, "stays", model="other")
        for prompt in ("processing", "fetching"):
            await await_job(gateway, prompt, prompt)
        await until(lambda: up.find("fetching").ranges and is_polled(up, "broken", 2))
        assert gateway.app[SERVICES].videos.jobs.reservations.list_held().keys() == {
            job.id for job in (await find_jobs(gateway)).values()
        }
        assert (await office("DELETE", "/channels/goes"))[0] in {200, 204}
        for prompt in plays.keys() - {"fetching"}:
            job = await await_job(gateway, prompt)
            assert (job.state, job.error_code) == ("failed", CHANNEL_GONE_ERROR.code), job
        reservations = gateway.app[SERVICES].videos.jobs.reservations  # released after the job has ended
        await until(lambda: list(reservations.list_held().values()) == [A_VIDEO] * 2)
        never.set()  # what was under way may end as it does
        jobs = await await_ends(gateway)
        assert {prompt: job.state for prompt, job in jobs.items()} == {
            **dict.fromkeys(plays, "failed"),
            "fetching": "completed",
            "stays": "completed",
        }
        await audit(gateway, up, other)


async def test_a_channel_that_is_disabled_or_moves_keeps_its_jobs(gateway_with: StartGateway) -> None:
    """What it has begun is asked after; a provider that has another address by now is asked there."""
    async with OpenAiVideos(Play(polls=("queued",))) as up, OpenAiVideos() as moved:
        gateway = await gateway_with(site(channel("http://127.0.0.1:9/v1", "filed", models=["other"])))
        office = partial(ask_office, gateway)
        await office("POST", "/channels?check=none", up.channel("goes"))
        await submit(gateway, "take")
        await until(lambda: is_polled(up, "take"))
        assert (await office("PATCH", "/channels/goes", {"status": "disabled"}))[0] == 200
        asked = up.find("take").polls
        await until(lambda: is_polled(up, "take", asked + 2))
        moved.tasks = up.tasks
        assert (await office("PATCH", "/channels/goes", {"base_url": moved.base_url, "api_key": KEY}))[0] == 200
        (job,) = (await await_ends(gateway)).values()
        assert job.state == "completed"
        assert moved.asked
        moved.tasks = {}
        await audit(gateway, up)


async def test_after_the_deadline_a_job_fails_and_one_that_is_completed_then_is_not(gateway_with: StartGateway) -> None:
    late = asyncio.Event()
    plays = {
        "for ever": Play(polls=("in_progress",)),
        "never heard of": Play(polls=(Answered(b"", 500),)),
        "in no known state": Play(polls=("hibernating",)),
        "just in time": Play(polls=(late, "completed")),
    }
    async with OpenAiVideos() as up:
        up.plays |= plays
        gateway = await gateway_with(site(up.channel(), videos={"deadline_h": 0.8 / 3_600}))
        for prompt in plays:
            await submit(gateway, prompt)
        for prompt in plays.keys() - {"just in time"}:
            job = await await_job(gateway, prompt)
            assert (job.state, job.error_code) == ("failed", TIMEOUT_ERROR.code)
            assert job.completed_ms is not None
            assert job.completed_ms >= job.deadline_ms
        late.set()
        job = await await_job(gateway, "just in time", "completed")
        assert job.completed_ms is not None
        assert job.completed_ms > job.deadline_ms
        await audit(gateway, up)
