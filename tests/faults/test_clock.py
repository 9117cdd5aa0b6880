"""P7: a gateway whose clock is wrong by days or by a year deletes nothing that it is to keep, and ends no job."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.cleanup import RecordCleanup
from gateway.domain.request_log import RequestFilter
from gateway.domain.video import TIMEOUT_ERROR, VideoFilter
from gateway.media.cleanup_worker import MediaCleanup
from gateway.server.context import SERVICES
from gateway.services.retention import open_retention_worker
from tests.support.fault_scene import PRICE as CHAT_PRICE
from tests.support.fault_scene import until
from tests.support.gateway import RunningGateway, channel, start_gateway
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.video_scene import PRICE, await_job, submit

DAY_S = 86_400


class Clock:
    """The machine's, which is wrong by so many days."""

    def __init__(self, days: float = 0) -> None:
        self.days = days

    def __call__(self) -> float:
        return time.time() + self.days * DAY_S


start = partial(start_gateway, template=Path(), furnished=False)


async def sweep(gateway: RunningGateway) -> None:
    """Every job that deletes something for its age does so now."""
    names = ("sweep_media", "sweep_videos", "sweep_records")
    jobs = {task.get_name(): task for task in asyncio.all_tasks() if task.get_name() in names}
    assert jobs.keys() == set(names)
    for task in jobs.values():
        frame = task.get_coro().cr_frame  # type: ignore[union-attr]
        job = frame.f_locals["job"].__self__
        assert isinstance(job, MediaCleanup | RecordCleanup)
        await job.sweep()
    await open_retention_worker(gateway.app[SERVICES]).retire()


@pytest.mark.parametrize("days", [3, 400])
async def test_a_start_far_ahead_keeps_everything_and_says_so(tmp_path: Path, days: int) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up, OpenAiVideos(Play(polls=("in_progress",))) as videos:
        config: dict[str, Any] = {
            "channel": [channel(up.base_url), videos.channel("videos", models=["v"])],
            "price": [CHAT_PRICE, {**PRICE, "model": "v"}],
            "egress": {"allow": ["127.0.0.1"]},
            "requests": {"keep_days": 1},
        }
        home = tmp_path / "data"
        gateway = await start(home, config=config, clock=Clock())
        async with gateway.post() as response:
            assert response.status == 200
        await submit(gateway, "goes on", key="once", model="v")
        await await_job(gateway, "goes on", "processing")
        image = home / "media" / "aa" / f"{'aa' * 16}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"\x89PNG")
        gateway.audited = False
        await gateway.close()
        polls = videos.tasks[next(iter(videos.tasks))].polls

        with capture_logs() as lines:
            ahead = await start(home, config=config, clock=Clock(days))
        (reported,) = [line for line in lines if line["event"] == "clock_ahead"]
        assert f"{float(days)} days after the newest record" in reported["reason"]
        await sweep(ahead)
        task = videos.tasks[next(iter(videos.tasks))]
        await until(lambda: task.polls > polls + 1)
        assert len(await ahead.app[SERVICES].admin.request_log.list_requests(RequestFilter(), 10)) >= 1
        again = await submit(ahead, "goes on", key="once", model="v")
        assert again.status == 200
        assert videos.count("goes on") == 1, "a request that names itself is still made once"
        (job,) = await ahead.app[SERVICES].videos.jobs.store.list_videos(VideoFilter(), 10)
        assert job.state == "processing"
        assert image.exists()
        ahead.audited = False
        await ahead.close()


@pytest.mark.parametrize("days", [1 / 12, 400])
async def test_a_job_that_begins_after_a_quiet_time_fails_at_its_deadline(tmp_path: Path, days: float) -> None:
    """However old the newest record is: only the jobs of before the start are kept from a clock that is ahead."""
    home = tmp_path / "data"
    first = await start(home, config={}, clock=Clock())
    await first.close()
    async with OpenAiVideos(Play(polls=("in_progress",))) as videos:
        config = {
            "channel": [videos.channel()],
            "price": [PRICE],
            "egress": {"allow": ["127.0.0.1"]},
            "videos": {"deadline_h": 0.2 / 3_600},
        }
        ahead = await start(home, config=config, clock=Clock(days))
        try:
            await submit(ahead, "for ever")
            job = await await_job(ahead, "for ever")
            assert (job.state, job.error_code) == ("failed", TIMEOUT_ERROR.code)
        finally:
            await ahead.close()


async def test_a_start_far_behind_says_so_and_serves(tmp_path: Path) -> None:
    home = tmp_path / "data"
    first = await start(home, config={}, clock=Clock())
    await first.close()
    with capture_logs() as lines:
        behind = await start(home, config={}, clock=Clock(-366))
    assert [line["event"] for line in lines if line["event"].startswith("clock_")] == ["clock_behind"]
    await behind.close()


async def test_a_start_soon_after_says_nothing(tmp_path: Path) -> None:
    home = tmp_path / "data"
    first = await start(home, config={}, clock=Clock())
    await first.close()
    with capture_logs() as lines:
        again = await start(home, config={}, clock=Clock(0.5))
    assert not [line for line in lines if line["event"].startswith("clock_")]
    await again.close()


async def test_a_daily_quota_stays_used_up_when_the_clock_is_set_to_and_fro(tmp_path: Path) -> None:
    clock = Clock()
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        config = {
            "channel": [channel(up.base_url)],
            "price": [CHAT_PRICE],
            "account": [{"name": "acme", "quota_usd": 0.00003, "quota_period": "daily"}],
        }
        gateway = await start(tmp_path / "data", config=config, clock=clock)
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}

        async def call() -> int:
            async with gateway.post(body) as response:
                return int(response.status)

        for days in (0, 1, 2, 366):
            clock.days = days
            statuses = [await call() for _ in range(4)]
            assert 200 in statuses
            assert statuses[-1] == 429
        for days in (0, 366, 1, 2, 0):
            clock.days = days
            seen = await call()
            while seen == 503:  # for as long as it takes to read the day
                await asyncio.sleep(0.05)
                seen = await call()
            assert seen == 429, days
        await gateway.close()
