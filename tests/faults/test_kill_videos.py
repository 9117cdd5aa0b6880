"""P2: ``kill -9`` at every state of a job: after the restart each one ends, begun at most once, and the books agree.

A process is killed with many jobs at once, each held where its prompt says, which is its mark too: ``fail_points.py``.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import pytest
from aiohttp import web

from gateway.domain.video import INTERRUPTED_ERROR, SUBMIT_UNKNOWN_ERROR
from tests.support.fault_scene import until
from tests.support.gateway import KEY
from tests.support.gateway_process import GatewayProcess, eventually, open_caller
from tests.support.kill_runs import check_offline
from tests.support.openai_videos import BREAK, CLIP_BYTES, SILENCE, Answered, Cut, OpenAiVideos, Play, write_clip
from tests.support.video_scene import A_VIDEO, PRICE, SECONDS, VIDEOS, write_mark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WAIT_LIMIT_S = 20
COMPLETED, LOST = "completed", "upstream_error"
REFUSED = Answered({"error": {"message": "No such size"}}, 400)
WELL = Play(polls=("queued", "in_progress", "completed"))
FAILS = Play(polls=("in_progress", "failed"))
UNKNOWN = Play(submit=(BREAK,))


@attrs.frozen
class Case:
    """One job, by its prompt, which says where it is when its process is killed.

    Attributes:
        ends: completed, or the code it fails with; None where nothing is left of it, and its call may be made again.
        begun: how often the provider has heard of it then.
        rows: of its call.
        original: of a remix: the prompt of the job that it is of.
    """

    prompt: str
    ends: str | None
    play: Play = WELL
    begun: int = 1
    rows: int = 1
    original: str = ""

    @property
    def asked(self) -> bool:
        """Whether it is the provider that holds it."""
        return self.prompt.startswith("asked")


ROUNDS: Sequence[Sequence[Case]] = (
    (
        Case("create before", None, begun=0, rows=0),
        Case("create after", INTERRUPTED_ERROR.code, begun=0),
        Case("asked to begin", SUBMIT_UNKNOWN_ERROR.code, Play(submit=(SILENCE, "ok"))),
        Case("finish completed before", COMPLETED),
        Case("advance queued processing before", COMPLETED),
    ),
    (
        Case("advance created submitting before", INTERRUPTED_ERROR.code, begun=0),
        Case("advance created submitting after", SUBMIT_UNKNOWN_ERROR.code, begun=0),
        Case("asked how it is", COMPLETED, Play(polls=(SILENCE, "queued", "completed"))),
        Case("finish completed after", COMPLETED),
        Case("advance queued processing after", COMPLETED),
    ),
    (
        Case("advance submitting queued before", SUBMIT_UNKNOWN_ERROR.code),
        Case("advance submitting queued after", COMPLETED),
        Case("asked for its file", COMPLETED, Play(file=(Cut(CLIP_BYTES // 2, SILENCE), "ok"))),
        Case("finish failed before", LOST, FAILS),
        Case("advance processing fetching before", COMPLETED),
    ),
    (
        Case("drop before", SUBMIT_UNKNOWN_ERROR.code, Play(submit=(REFUSED, "ok"))),
        Case("drop after", None, Play(submit=(REFUSED, "ok"))),
        Case("asked to remix", SUBMIT_UNKNOWN_ERROR.code, Play(submit=(SILENCE, "ok")), original="asked how it is"),
        Case("finish failed after", LOST, FAILS),
        Case("send before", COMPLETED),
        Case("advance processing fetching after", COMPLETED),
    ),
    (
        Case("finish failed before it is unknown", SUBMIT_UNKNOWN_ERROR.code, UNKNOWN),
        Case("write after", COMPLETED),
        Case("note before", COMPLETED, original="send before"),
        Case("claim queued after", COMPLETED),
    ),
    (
        Case("finish failed after it is unknown", SUBMIT_UNKNOWN_ERROR.code, UNKNOWN),
        Case("keep after", COMPLETED),
        Case("claim fetching after", COMPLETED),
    ),
)
"""Of each process, the jobs under whose hands it is killed. It ends at the point of the last."""


class KillRun:
    """A provider, a caller, and the receiver of webhooks; gateways come and go.

    Attributes:
        reported: how often each end was told, by the hook's name.
        answered: the ids of the jobs whose callers were answered, by their prompts.
    """

    def __init__(self, up: OpenAiVideos, caller: aiohttp.ClientSession, hooks: str, reported: Counter[str]) -> None:
        self.up = up
        self.caller = caller
        self.hooks = hooks
        self.reported = reported
        self.answered: dict[str, str] = {}

    async def submit(self, gateway: GatewayProcess, case: Case, *, again: bool = False) -> Any:
        """The call that a job comes of, under a name; None where the gateway has gone before it was answered."""
        prompt, path = case.prompt, VIDEOS
        body = {"prompt": prompt, "webhook_url": self.hooks + write_hook(prompt)}
        if case.original:
            path = f"{VIDEOS}/{self.answered[case.original]}/remix"
        else:
            body |= {"model": "m", "seconds": str(SECONDS)}
        headers = {"X-Request-Id": write_mark(prompt) + ".again" * again, "Idempotency-Key": prompt}
        try:
            async with self.caller.post(gateway.url + path, json=body, headers=headers) as response:
                answer = await response.json()
        except aiohttp.ClientError:
            return None
        if response.status == 200 and not again:
            self.answered[prompt] = answer["id"]
        return answer

    async def list_jobs(self, gateway: GatewayProcess) -> dict[str, dict[str, Any]]:
        """Every job as its caller sees it, by its prompt; fails where one has two."""
        async with self.caller.get(f"{gateway.url}{VIDEOS}?limit=100") as response:
            body = await response.json()
        assert response.status == 200, body
        found = {job["prompt"]: job for job in body["data"]}
        assert len(found) == len(body["data"])
        return found

    async def have_ended(self, gateway: GatewayProcess) -> bool:
        """Whether all have, with their webhooks delivered."""
        jobs = await self.list_jobs(gateway)
        ended = all(job["status"] in {"completed", "failed"} for job in jobs.values())
        return ended and all(self.reported[write_hook(prompt)] for prompt in jobs)


def write_hook(prompt: str) -> str:
    return prompt.replace(" ", "-")


@asynccontextmanager
async def open_theatre() -> AsyncIterator[KillRun]:
    reported = Counter[str]()

    async def hear(request: web.Request) -> web.Response:
        event = orjson.loads(await request.read())
        assert event["type"] in {"video.completed", "video.failed"}
        reported[request.match_info["name"]] += 1
        return web.Response()

    app = web.Application()
    app.router.add_post("/hooks/{name}", hear)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        hooks = f"http://127.0.0.1:{runner.addresses[0][1]}/hooks/"
        async with OpenAiVideos() as up, open_caller() as caller:
            yield KillRun(up, caller, hooks, reported)
    finally:
        await runner.cleanup()


def site(up: OpenAiVideos) -> dict[str, Any]:
    return {
        "channel": [up.channel()],
        "price": [PRICE],
        "egress": {"allow": ["127.0.0.1"]},
        "videos": {"webhook_hosts": ["127.0.0.1"]},
        "account": [{"name": "acme", "quota_usd": 100}],
        "key": [{"name": "test", "secret": KEY, "account": "acme"}],
    }


def serve(cases: Sequence[Case]) -> Sequence[str]:
    """What Python runs."""
    return "tests.support.fail_points", ",".join(case.prompt for case in cases if not case.asked), "serve"


async def play(theatre: KillRun, gateway: GatewayProcess, cases: Sequence[Case]) -> None:
    """Have every job come to its point, and then the process is no more.

    Where one ends no other does meanwhile: it comes when the others are at their points, and the last one after it.
    """
    *held, last = cases
    crowd: list[asyncio.Task[Any]] = []
    for ends in (False, True):
        coming = [case for case in held if case.prompt.startswith("finish") == ends]
        crowd += [asyncio.create_task(theatre.submit(gateway, case)) for case in coming]
        await until(partial(are_held, theatre, gateway, coming))
    crowd.append(asyncio.create_task(theatre.submit(gateway, last)))
    assert await gateway.wait() == -signal.SIGKILL
    await asyncio.gather(*crowd)


def are_held(theatre: KillRun, gateway: GatewayProcess, cases: Sequence[Case]) -> bool:
    """Whether every one of them is where it is to be."""
    return all(is_held(theatre, gateway, case) for case in cases)


def is_held(theatre: KillRun, gateway: GatewayProcess, case: Case) -> bool:
    """Whether one is."""
    if not case.asked:
        return any(line["point"] == case.prompt for line in gateway.read_log("held"))
    if case.ends != COMPLETED:
        return bool(theatre.up.count(case.prompt))
    tasks = [task for task in theatre.up.tasks.values() if task.prompt == case.prompt]
    return any(task.ranges if case.play.file != WELL.file else task.polls for task in tasks)


async def check(theatre: KillRun, gateway: GatewayProcess, cases: Sequence[Case]) -> None:
    """What must be true of the next process over the same folder, once every job has ended."""
    await eventually(lambda: theatre.have_ended(gateway), WAIT_LIMIT_S)
    jobs = await theatre.list_jobs(gateway)
    rows, _ = await gateway.read_rows()
    await gateway.check_traffic(rows)
    for case in cases:
        mine = [row for row in rows if row.client_request_id == write_mark(case.prompt)]
        assert len(mine) == case.rows, (case, mine)
        assert theatre.up.count(case.prompt) == case.begun, case
        assert (case.prompt in jobs) == (case.ends is not None), case
        if case.ends is not None:
            await check_job(theatre, gateway, case, jobs[case.prompt])
            assert mine[0].cost_nanos == (A_VIDEO if case.ends == COMPLETED else 0)
            assert (mine[0].outcome == "completed") == (case.ends == COMPLETED)
    assert set(theatre.up.marks.values()) <= {1}
    report = await gateway.check_books()
    completed = sum(job["status"] == "completed" for job in jobs.values())
    assert report["charged_nanos"] == completed * A_VIDEO
    account = await gateway.ask("accounts/acme")
    assert (account["spent_usd"], account["held_usd"]) == (completed, 0)


async def check_job(theatre: KillRun, gateway: GatewayProcess, case: Case, job: Mapping[str, Any]) -> None:
    """It has ended as it had to, its file is whole, and can be downloaded again."""
    assert job["status"] == ("completed" if case.ends == COMPLETED else "failed"), (case, job)
    assert job.get("error", {}).get("code") == (None if case.ends == COMPLETED else case.ends), (case, job)
    assert theatre.answered.get(case.prompt, job["id"]) == job["id"]
    again = await theatre.submit(gateway, case, again=True)
    assert again["id"] == job["id"]
    assert theatre.up.count(case.prompt) == case.begun
    async with theatre.caller.get(f"{gateway.url}{VIDEOS}/{job['id']}/content") as response:
        content = await response.read()
    assert response.status == (200 if case.ends == COMPLETED else 404)
    assert response.status == 404 or content == write_clip(case.prompt, CLIP_BYTES)


async def repeat(theatre: KillRun, gateway: GatewayProcess, cases: Sequence[Case]) -> None:
    """What has left nothing may be asked for again, and is made once."""
    for case in cases:
        if case.ends is None:
            assert (await theatre.submit(gateway, case, again=True))["status"] == "queued"
            assert sum(task.prompt == case.prompt for task in theatre.up.tasks.values()) == 1
    await eventually(lambda: theatre.have_ended(gateway), WAIT_LIMIT_S)


async def test_wherever_a_gateway_is_killed_every_job_ends_begun_once_and_charged_once(tmp_path: Path) -> None:
    async with open_theatre() as theatre:
        theatre.up.plays = {case.prompt: case.play for cases in ROUNDS for case in cases}
        before: Sequence[Case] = ()
        for cases in (*ROUNDS, ()):
            async with GatewayProcess(tmp_path / "data", site(theatre.up), command=serve(cases)) as gateway:
                await check(theatre, gateway, before)
                await repeat(theatre, gateway, before)
                if cases:
                    await play(theatre, gateway, cases)
                else:
                    await gateway.check_books()
                    assert await gateway.end() == 0
                    check_offline(gateway)
            before = cases
        assert max(theatre.up.marks.values()) == 1
        assert not [task for task in theatre.up.tasks.values() if task.prompt not in theatre.up.plays]
