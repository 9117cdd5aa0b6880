"""The timers of a stream and of its keep-alive comments, on a loop whose clock jumps."""

import asyncio

import pytest

from gateway.deadlines import DeadlineTimer
from gateway.domain.channel import Timeouts
from gateway.proxy.stream import KEEPALIVE_AFTER_S, StreamTimeouts
from tests.support.skip_rules import run_skipping

PATIENT = Timeouts(first_byte_s=1000, idle_s=1000, total_s=10_000)


class Watched:
    """A pulse, and when it said what."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.expired: list[tuple[float, str]] = []
        self.comments: list[float] = []
        self.pulse = StreamTimeouts(
            timeouts,
            DeadlineTimer(),
            give_up=lambda error: self.expired.append((self.now, error.message)),
            keep_alive=lambda: self.comments.append(self.now),
        )

    @property
    def now(self) -> float:
        return self._loop.time() - self._began

    def event(self) -> None:
        self.pulse.event_at = self._loop.time()

    def answered(self) -> None:
        self.pulse.written_at = self._loop.time()
        self.pulse.set_timer()


@pytest.mark.parametrize(
    ("timeouts", "events_every_s", "due_s", "word"),
    [
        (Timeouts(first_byte_s=7, idle_s=3, total_s=60), None, 7, "no event"),
        (Timeouts(first_byte_s=70, idle_s=3, total_s=60), None, 60, "too long to finish"),
        (Timeouts(first_byte_s=7, idle_s=3, total_s=60), 40, 7, "no event"),
        (Timeouts(first_byte_s=7, idle_s=3, total_s=60), 5, 8, "stopped"),
        (Timeouts(first_byte_s=7, idle_s=3, total_s=60), 2, 60, "too long to finish"),
    ],
    ids=["first event", "total before it", "late first event", "idle after the first", "total under steady events"],
)
def test_each_timer_fires_once_and_at_its_time(
    timeouts: Timeouts, events_every_s: float | None, due_s: float, word: str
) -> None:
    async def scene() -> list[tuple[float, str]]:
        watched = Watched(timeouts)
        while watched.now < 100:
            await asyncio.sleep(events_every_s or 100)
            if not watched.expired:
                watched.event()
        watched.pulse.stop()
        return watched.expired

    ((when, message),) = run_skipping(scene())
    assert when == pytest.approx(due_s)
    assert word in message


def test_a_comment_is_due_whenever_the_caller_has_heard_nothing_for_long() -> None:
    async def scene() -> list[float]:
        watched = Watched(PATIENT)
        watched.event()
        watched.answered()
        await asyncio.sleep(KEEPALIVE_AFTER_S * 4.5)
        watched.pulse.stop()
        await asyncio.sleep(KEEPALIVE_AFTER_S * 2)
        return watched.comments

    assert [round(when) for when in run_skipping(scene())] == [15, 30, 45, 60]


def test_no_comment_is_due_while_the_caller_hears_events() -> None:
    async def scene() -> list[float]:
        watched = Watched(PATIENT)
        watched.answered()
        for _ in range(30):
            await asyncio.sleep(KEEPALIVE_AFTER_S - 1)
            watched.pulse.written_at = asyncio.get_running_loop().time()
        watched.pulse.stop()
        return watched.comments

    assert run_skipping(scene()) == []


def test_no_comment_is_due_before_the_caller_was_answered() -> None:
    async def scene() -> list[float]:
        watched = Watched(PATIENT)
        await asyncio.sleep(900)
        watched.pulse.stop()
        return watched.comments

    assert run_skipping(scene()) == []


def test_a_stopped_pulse_says_nothing_until_it_is_wound_again() -> None:
    async def scene() -> tuple[int, int]:
        watched = Watched(Timeouts(first_byte_s=7, idle_s=3, total_s=600))
        watched.pulse.stop()
        await asyncio.sleep(100)
        before = len(watched.expired)
        watched.pulse.set_timer()
        await asyncio.sleep(1)
        return before, len(watched.expired)

    assert run_skipping(scene()) == (0, 1)
