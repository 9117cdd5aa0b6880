"""A node is dead after twenty seconds without a beat that a leader has watched without a gap, and never before."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.membership.death_watch import DeathWatch
from gateway.cluster.membership.times import TIMES

A, B = ("a", 1), ("b", 3)


def test_a_node_whose_beats_end_is_dead_and_one_that_beats_is_not() -> None:
    watch = DeathWatch(TIMES)
    looks = [watch.record_beats({A: 7, B: second}, float(second)) for second in range(0, 24, 2)]
    assert looks == [[]] * 10 + [[A]] * 2


def test_a_leader_that_could_not_look_begins_anew() -> None:
    watch = DeathWatch(TIMES)
    for second in range(0, 18, 2):
        watch.record_beats({A: 7}, float(second))
    after = 16 + TIMES.lost_s + 0.1
    assert watch.record_beats({A: 7}, after) == []
    looks = [watch.record_beats({A: 7}, after + second) for second in range(2, 22, 2)]
    assert looks == [[]] * 9 + [[A]]


def test_another_epoch_is_another_life() -> None:
    watch = DeathWatch(TIMES)
    for second in range(0, 20, 2):
        watch.record_beats({A: 7}, float(second))
    assert watch.record_beats({("a", 2): 7}, 20.0) == []


@given(st.lists(st.tuples(st.floats(0.1, 8), st.booleans()), max_size=40))
def test_nobody_is_dead_who_has_beaten_in_the_last_twenty_seconds_of_looking(steps: list[tuple[float, bool]]) -> None:
    watch, now_s, beat = DeathWatch(TIMES), 0.0, 0
    watch.record_beats({A: beat}, now_s)
    alive_s = now_s
    for pause_s, beats in steps:
        now_s += pause_s
        beat += beats
        if beats or pause_s > TIMES.lost_s:
            alive_s = now_s
        dead = watch.record_beats({A: beat}, now_s)
        assert (dead == [A]) == (now_s - alive_s >= TIMES.dead_s)
