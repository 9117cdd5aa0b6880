"""Jobs run for ever: one that fails is started again, and all of them end together."""

import asyncio
import gc

from gateway.background import RESTART_AFTER_S, JobRunner, TaskSet
from tests.support.worker_loop import run_hurried


class Job:
    """Fails at every run that ``failing`` counts, and then runs on."""

    def __init__(self, failing: int = 0) -> None:
        self._failing = failing
        self.began_at: list[float] = []
        self.cancelled = False

    async def run(self) -> None:
        self.began_at.append(asyncio.get_running_loop().time())
        if len(self.began_at) <= self._failing:
            raise RuntimeError("a bug")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def test_a_job_that_fails_is_started_again_after_a_pause() -> None:
    async def main() -> None:
        runner, job, other = JobRunner(), Job(failing=2), Job()
        runner.start("failing", job.run)
        runner.start("other", other.run)
        await asyncio.sleep(20 * RESTART_AFTER_S)
        assert len(job.began_at) == 3
        for earlier, later in zip(job.began_at, job.began_at[1:], strict=False):
            assert RESTART_AFTER_S <= later - earlier < RESTART_AFTER_S + 1
        assert len(other.began_at) == 1
        await runner.stop()
        assert job.cancelled
        assert other.cancelled

    run_hurried(main())


def test_a_job_that_fails_for_ever_can_be_stopped_in_its_pause() -> None:
    async def main() -> None:
        runner, job = JobRunner(), Job(failing=10**9)
        runner.start("failing", job.run)
        await asyncio.sleep(RESTART_AFTER_S / 2)
        await runner.stop()
        await asyncio.sleep(5 * RESTART_AFTER_S)
        assert len(job.began_at) == 1

    run_hurried(main())


async def test_stopping_ends_every_job_and_may_be_done_twice() -> None:
    runner, jobs = JobRunner(), [Job() for _ in range(3)]
    for number, job in enumerate(jobs):
        runner.start(f"job{number}", job.run)
    await asyncio.sleep(0)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert {"job0", "job1", "job2"} <= names
    await runner.stop()
    await runner.stop()
    assert all(job.cancelled for job in jobs)
    assert not {"job0", "job1", "job2"} & {task.get_name() for task in asyncio.all_tasks()}


async def test_a_job_that_is_stopped_before_it_ran_never_runs() -> None:
    runner, job = JobRunner(), Job()
    runner.start("late", job.run)
    await runner.stop()
    assert job.began_at == []


async def test_a_runner_without_jobs_can_be_stopped() -> None:
    await JobRunner().stop()


def test_a_job_that_returns_is_done() -> None:
    async def main() -> None:
        runs = []

        async def once() -> None:
            runs.append(1)

        runner = JobRunner()
        runner.start("once", once)
        await asyncio.sleep(10 * RESTART_AFTER_S)
        assert runs == [1]
        await runner.stop()

    run_hurried(main())


class TestTaskSet:
    async def test_closing_waits_for_tasks_also_for_those_that_they_start(self) -> None:
        tasks, done = TaskSet(), []

        async def first() -> None:
            await asyncio.sleep(0)
            done.append("first")
            tasks.start(second())

        async def second() -> None:
            await asyncio.sleep(0)
            done.append("second")

        tasks.start(first())
        await tasks.close(60.0)
        assert done == ["first", "second"]
        assert not tasks

    async def test_closing_cancels_what_takes_longer(self) -> None:
        tasks = TaskSet()
        slow = tasks.start(asyncio.Event().wait())
        await tasks.close(0.0)
        assert slow.cancelled()

    async def test_a_failed_task_is_not_logged_by_asyncio(self) -> None:
        tasks, reported = TaskSet(), []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

        async def fail() -> None:
            raise ValueError

        tasks.start(fail())
        await tasks.close(60.0)
        gc.collect()
        assert reported == []
