"""The time that records are deleted by: it goes on from the newest of them, and doubts a clock that is ahead."""

from gateway.retention_clock import JUMP_ACCEPTED_AFTER_S, SLACK_S, RetentionClock
from tests.support.table_rows import table_rows

DAY_S = 86_400.0
NEWEST = 1_800_000_000.0


class Machine:
    """A machine: its clock, and how long it runs."""

    def __init__(self, now: float) -> None:
        self.now, self.running = now, 50.0

    def run(self, seconds: float) -> None:
        self.now += seconds
        self.running += seconds

    def open(self, newest: float | None = NEWEST) -> RetentionClock:
        return RetentionClock(lambda: self.now, newest, lambda: self.running)


@table_rows("days", [1, 3, 366])
def test_a_start_far_ahead_goes_on_from_the_newest_record_for_a_day_of_running(days: int) -> None:
    machine = Machine(NEWEST + days * DAY_S)
    expiry = machine.open()
    assert expiry.ahead_s == days * DAY_S
    assert expiry.now() == NEWEST
    machine.run(JUMP_ACCEPTED_AFTER_S - 1)
    assert expiry.now() == NEWEST + JUMP_ACCEPTED_AFTER_S - 1
    machine.run(1)
    assert expiry.now() == machine.now, "and then the clock is believed"
    machine.run(1)
    assert expiry.now() == machine.now


def test_a_clock_that_is_right_is_told_as_it_is() -> None:
    machine = Machine(NEWEST + 5)
    expiry = machine.open()
    for _ in range(100):
        machine.run(3_600)
        assert expiry.now() == machine.now
    assert Machine(NEWEST).open(None).now() == NEWEST


@table_rows("days", [-366, -1])
def test_a_clock_behind_the_newest_record_is_believed_which_deletes_less(days: int) -> None:
    machine = Machine(NEWEST + days * DAY_S)
    expiry = machine.open()
    assert expiry.ahead_s == days * DAY_S
    assert expiry.now() == machine.now


@table_rows("days", [1, 366])
def test_a_clock_that_is_set_while_it_runs_is_doubted_and_set_back_it_is_as_before(days: int) -> None:
    machine = Machine(NEWEST)
    expiry = machine.open()
    machine.now += days * DAY_S
    machine.run(600)
    assert expiry.now() == NEWEST + 600
    machine.now -= days * DAY_S
    machine.run(600)
    assert expiry.now() == machine.now == NEWEST + 1_200
    machine.now += SLACK_S
    assert expiry.now() == machine.now
