"""The queue of a channel: who gets the next place, and what always holds whatever the requests do."""

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.domain.channel import QueueSettings
from gateway.routing.channel_queue import ASSUMED_ANSWER_S, ChannelQueue, Ticket


class QueueScenario:
    """A queue, its clock and the requests that run in its places."""

    def __init__(self, places: int = 1, **queue: Any) -> None:
        self.now = 0.0
        self.queue = ChannelQueue(attrs.evolve(QueueSettings(), **queue), places, lambda: self.now)
        self.running: list[Ticket] = []
        self.wakes = 0

    def enter(self, model: str = "m", account: int = 1, key: int = 1, *, batch: bool = False) -> Ticket | None:
        """Let a request enter the queue, which gives it a place at once if one is free; None if the queue is full."""
        ticket = Ticket(("openai_chat", model), account, key, batch, self.now, self.note_wake)
        return ticket if self.queue.enter(ticket) else None

    def note_wake(self) -> None:
        self.wakes += 1

    def grant(self) -> list[Ticket]:
        granted = []
        while (ticket := self.queue.take_next(len(self.running))) is not None:
            self.running.append(ticket)
            granted.append(ticket)
        return granted

    def end(self, ticket: Ticket) -> list[Ticket]:
        self.running.remove(ticket)
        self.queue.note_ended(1.0)
        return self.grant()

    def serve_all(self, answer_s: float = 1.0) -> list[Ticket]:
        """End one running request after the other, and return all requests in the order in which they got places."""
        order = [*self.running, *self.grant()]
        while self.running:
            self.now += answer_s
            order += self.end(self.running[0])
        return order


def name_models(tickets: Sequence[Ticket]) -> str:
    return "".join(ticket.model for ticket in tickets)


def test_requests_of_one_key_get_places_in_their_order() -> None:
    scene = QueueScenario(places=2)
    tickets = [scene.enter() for _ in range(5)]
    assert scene.grant() == tickets[:2]
    assert scene.serve_all() == tickets


def test_a_full_queue_takes_nobody() -> None:
    scene = QueueScenario(length=2)
    scene.enter()
    scene.grant()
    assert [scene.enter() is not None for _ in range(3)] == [True, True, False]


def test_a_batch_makes_room_for_an_interactive_request_and_its_newest_line_goes() -> None:
    scene = QueueScenario(length=2)
    scene.enter()
    scene.grant()
    older, newer = scene.enter(batch=True), scene.enter(batch=True)
    assert scene.enter(batch=True) is None
    assert scene.enter() is not None
    assert older is not None
    assert newer is not None
    assert (older.dismissed, newer.dismissed, scene.wakes) == (False, True, 1)


def test_batches_wait_behind_interactive_requests() -> None:
    scene = QueueScenario()
    first = scene.enter()
    scene.grant()
    batch = [scene.enter(batch=True) for _ in range(2)]
    interactive = [scene.enter() for _ in range(2)]
    assert scene.serve_all() == [first, *interactive, *batch]


def test_batches_leave_the_last_places_free() -> None:
    scene = QueueScenario(places=4)
    for _ in range(4):
        scene.enter(batch=True)
    assert len(scene.grant()) == 3
    scene.enter()
    assert [ticket.is_batch for ticket in scene.grant()] == [False]


def test_accounts_take_turns_and_so_do_their_keys() -> None:
    scene = QueueScenario()
    scene.enter(account=9)
    scene.grant()
    names = {}
    for name, account, key in (("a1", 1, 1), ("a2", 1, 1), ("a3", 1, 1), ("b1", 1, 2), ("c1", 2, 3), ("c2", 2, 3)):
        names[scene.enter(account=account, key=key)] = name
    assert [names[ticket] for ticket in scene.serve_all() if ticket in names] == ["a1", "c1", "b1", "c2", "a2", "a3"]


def test_nobody_gains_a_place_by_leaving_and_coming_back() -> None:
    """Two accounts that always come back with one request do not starve a third one."""
    scene = QueueScenario()
    for account in (1, 2, 3):
        scene.enter(account=account)
    served = []
    for _ in range(9):
        (ticket,) = scene.grant()
        served.append(ticket.account)
        scene.enter(account=ticket.account)
        scene.running.remove(ticket)
    assert served == [1, 2, 3] * 3


def test_requests_for_three_models_change_the_model_twice_instead_of_each_time() -> None:
    scene = QueueScenario(one_model=True)
    for model in "ABCABCABC":
        scene.enter(model)
    assert name_models(scene.serve_all()) == "AAABBBCCC"


def test_without_one_model_the_order_of_arrival_counts() -> None:
    scene = QueueScenario()
    for model in "ABCABCABC":
        scene.enter(model)
    assert name_models(scene.serve_all()) == "ABCABCABC"


def test_the_models_do_not_change_while_an_answer_runs() -> None:
    scene = QueueScenario(places=2, one_model=True)
    first, _ = scene.enter("A"), scene.enter("B")
    assert scene.grant() == [first]
    assert first is not None
    assert name_models(scene.end(first)) == "B"


def test_another_model_waits_no_longer_than_it_must_beside_a_busy_one() -> None:
    scene = QueueScenario(one_model=True, switch_after_s=20)
    scene.enter("A")
    scene.grant()
    rare = scene.enter("B")
    order = []
    while rare not in order:
        scene.enter("A")
        scene.now += 1
        order += scene.end(scene.running[0])
    assert scene.now == 20
    assert name_models(order) == "A" * 19 + "B"


def test_a_new_request_passes_those_who_wait_for_another_model_until_their_time_has_come() -> None:
    scene = QueueScenario(places=2, one_model=True, switch_after_s=20)
    scene.enter("A")
    scene.grant()
    scene.enter("B")
    assert scene.queue.may_start("A", 1)
    assert not scene.queue.may_start("B", 1)
    assert not scene.queue.may_start("A", 1, is_batch=True)
    scene.now = 20
    assert not scene.queue.may_start("A", 1)


def test_a_model_that_was_loaded_serves_those_who_waited_for_it_before_it_gives_way() -> None:
    scene = QueueScenario(one_model=True, switch_after_s=5)
    scene.enter("A")
    scene.grant()
    for model in "BCBCBC":
        scene.enter(model)
    scene.now = 5
    order = scene.end(scene.running[0])
    scene.now = 5.5
    scene.enter("B")  # too late for this turn
    assert name_models([*order, *scene.serve_all()[1:]]) == "BBBCCCB"


def test_a_turn_of_a_model_ends_although_many_waited_for_it() -> None:
    scene = QueueScenario(one_model=True, switch_after_s=5)
    for model in "A" * 9 + "B":
        scene.enter(model)
    assert name_models(scene.serve_all()) == "AAAAAABAAA"  # the turn begins with the first answer


def test_a_rare_model_has_its_turn_before_two_busy_ones_have_another() -> None:
    scene = QueueScenario(one_model=True, switch_after_s=5)
    for model in "A" * 20 + "B" * 20 + "C":
        scene.enter(model)
    order = name_models(scene.serve_all())
    assert [model for model, _ in itertools.groupby(order)] == [*"ABCABABAB"]
    assert order.startswith("AAAAAABBBBBBCA")


@pytest.mark.parametrize("one_model", [False, True])
def test_a_line_of_a_batch_is_not_starved_by_interactive_requests_without_end(one_model: bool) -> None:
    """One line gets a place in each half of ``wait_s``; all others stay behind interactive requests."""
    scene = QueueScenario(one_model=one_model, wait_s=20, switch_after_s=5)
    scene.enter("A", account=1)
    scene.grant()
    lines = [scene.enter("B", account=2, batch=True) for _ in range(3)]
    served: dict[Ticket, float] = {}
    while len(served) < len(lines):
        scene.enter("A", account=1)
        scene.now += 1
        assert scene.now < 100
        for ticket in scene.end(scene.running[0]):
            if ticket in lines:
                served[ticket] = scene.now
    times = [served[line] for line in lines if line is not None]
    assert times[0] >= 10
    assert all(10 <= later - earlier <= 20 for earlier, later in itertools.pairwise(times)), times


def test_a_line_of_another_model_gets_a_place_although_something_always_runs() -> None:
    """Two overlapping requests of a model keep it loaded, with a place free."""
    scene = QueueScenario(places=3, one_model=True, wait_s=20, switch_after_s=5)
    scene.enter("A")
    scene.grant()
    line = scene.enter("B", batch=True)
    while scene.now < 10:
        assert scene.queue.may_start("A", len(scene.running))
        scene.enter("A")
        scene.grant()
        scene.now += 1
        scene.end(scene.running[0])
    assert not scene.queue.may_start("A", len(scene.running))
    assert scene.end(scene.running[0]) == [line]


def test_the_place_in_the_queue_is_the_one_in_the_order_of_service() -> None:
    scene = QueueScenario(one_model=True)
    scene.enter("A")
    scene.grant()
    tickets = [scene.enter(model) for model in "BABA"]
    assert [scene.queue.find_place(ticket) for ticket in tickets if ticket] == [3, 1, 4, 2]


def test_the_expected_wait_grows_with_those_ahead_and_shrinks_with_the_places() -> None:
    scene = QueueScenario(places=2)
    scene.enter(), scene.enter()
    first, _ = scene.grant()
    assert scene.queue.estimate_wait_s() == ASSUMED_ANSWER_S / 2
    scene.end(first)
    scene.enter()
    scene.grant()
    assert scene.queue.estimate_wait_s() == 0.5
    scene.enter()
    assert scene.queue.estimate_wait_s() == 1.0
    scene.now += 60  # no answer has ended for a minute
    assert scene.queue.estimate_wait_s() == 60.0


def test_a_batch_line_is_expected_to_wait_for_all_others() -> None:
    scene = QueueScenario()
    scene.enter()
    scene.grant()
    scene.enter()
    line = Ticket(("openai_chat", "m"), 1, 1, True, 0.0, scene.note_wake)
    assert scene.queue.estimate_wait_s(line) == 2 * ASSUMED_ANSWER_S


def test_a_pause_gives_no_place_until_it_is_over() -> None:
    scene = QueueScenario()
    scene.queue.pause(0.5)
    scene.enter()
    assert scene.grant() == []
    assert not scene.queue.may_start("m", 0)
    scene.now = 0.5
    assert len(scene.grant()) == 1


@given(
    st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 3), st.integers(1, 2), st.booleans()), max_size=30),
    st.integers(1, 4),
    st.booleans(),
)
def test_everybody_who_waits_is_served_once(
    requests: list[tuple[str, int, int, bool]], places: int, one_model: bool
) -> None:
    scene = QueueScenario(places=places, one_model=one_model)
    tickets = [scene.enter(model, account, key, batch=batch) for model, account, key, batch in requests]
    order = scene.serve_all()
    assert sorted(map(id, order)) == sorted(map(id, tickets))
    assert len(scene.queue) == 0


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30))
def test_no_account_gets_two_places_while_another_waits_for_its_first(accounts: list[int]) -> None:
    scene = QueueScenario()
    for account in accounts:
        scene.enter(account=account)
    served = [ticket.account for ticket in scene.serve_all()]
    for account, others in itertools.permutations(set(accounts), 2):
        between = [part.count(account) for part in split(served, others)[:-1]]
        assert all(count <= 1 for count in between), served


def split(values: Sequence[int], mark: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for value in values:
        if value == mark:
            parts.append([])
        else:
            parts[-1].append(value)
    return parts


SWITCH_AFTER_S, ANSWER_S, LOAD_S = 20.0, 1.0, 5.0
FEW = 6
"""So many waiting requests are served in one turn, whatever their models."""


class OneModelServer(RuleBasedStateMachine):
    """A server with some places and one model at a time. An answer takes at most a second, a load five.

    How long a model waits is bounded whatever arrives. How long a request waits is bounded if there are few: the turn
    of its model is then long enough for all.
    """

    @initialize(places=st.integers(1, 3), models=st.integers(2, 6), crowd=st.sampled_from([FEW, 1_000]))
    def begin(self, places: int, models: int, crowd: int) -> None:
        self.scene = QueueScenario(places=places, length=1_000, one_model=True, switch_after_s=SWITCH_AFTER_S)
        self.models = "ABCDEF"[:models]
        self.crowd = crowd
        self.model = ""
        self.ends_at: dict[Ticket, float] = {}
        self.waiting: list[Ticket] = []
        self.loads: list[tuple[float, str]] = []

    def count_models(self, since: float) -> int:
        """Return the number of models that were loaded at some time since ``since``."""
        before = [model for at, model in self.loads if at < since][-1:]
        return len({*before, *(model for at, model in self.loads if at >= since)})

    def run(self, granted: Sequence[Ticket]) -> None:
        turn_s = SWITCH_AFTER_S + LOAD_S + 2 * ANSWER_S * self.scene.queue.places + 0.001
        for ticket in granted:
            assert not self.ends_at or {ticket.model} == {running.model for running in self.ends_at}
            load_s = 0.0
            if ticket.model != self.model:
                self.check_model(ticket.model, turn_s)
                load_s, self.model = LOAD_S, ticket.model
                self.loads.append((self.scene.now, ticket.model))
            self.ends_at[ticket] = max([self.scene.now, *self.ends_at.values()]) + load_s + ANSWER_S
            self.waiting.remove(ticket)
            if self.crowd == FEW:
                waited_s = self.scene.now - ticket.entered_at
                assert waited_s <= self.count_models(ticket.entered_at) * turn_s

    def check_model(self, model: str, turn_s: float) -> None:
        """Check how long a model has waited that is loaded now: for one turn of each other model at most."""
        entered_at = next(ticket.entered_at for ticket in self.waiting if ticket.model == model)
        ends = [after for (_, name), (after, _) in itertools.pairwise(self.loads) if name == model]
        since = max([entered_at, *ends[-1:]])
        assert self.scene.now - since <= self.count_models(since) * turn_s
        turns = [name for at, name in self.loads if at >= since]
        assert len(turns) == len(set(turns))

    @rule(model=st.integers(0, 5), account=st.integers(1, 3), count=st.sampled_from([1, 1, 1, 30]))
    def enter(self, model: int, account: int, count: int) -> None:
        for _ in range(count):
            if len(self.waiting) < self.crowd:
                ticket = self.scene.enter(self.models[model % len(self.models)], account)
                assert ticket is not None
                self.waiting.append(ticket)
                self.run(self.scene.grant())

    @precondition(lambda self: self.ends_at)
    @rule(share=st.sampled_from([0.25, 0.5, 0.9]))
    def pass_time(self, share: float) -> None:
        """Let some of the time until the next end pass."""
        self.scene.now += share * max(0.0, min(self.ends_at.values()) - self.scene.now)

    @precondition(lambda self: self.ends_at)
    @rule(count=st.sampled_from([1, 1, 5, 20]))
    def end_first(self, count: int) -> None:
        for _ in range(min(count, len(self.ends_at) + len(self.waiting))):
            ticket = min(self.ends_at, key=lambda each: self.ends_at[each])
            self.scene.now = max(self.scene.now, self.ends_at.pop(ticket))
            self.run(self.scene.end(ticket))

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        ticket = self.waiting.pop(number % len(self.waiting))
        self.scene.queue.leave(ticket)
        self.run(self.scene.grant())

    @invariant()
    def no_request_waits_for_nothing(self) -> None:
        if hasattr(self, "scene"):
            assert len(self.scene.queue) == len(self.waiting)
            assert self.ends_at or not self.waiting
            assert len(self.ends_at) <= self.scene.queue.places
            if self.waiting and len(self.ends_at) < self.scene.queue.places:
                overdue = any(self.scene.now - each.entered_at >= SWITCH_AFTER_S for each in self.waiting)
                assert overdue or all(ticket.model != self.model for ticket in self.waiting)


TestOneModelServer = OneModelServer.TestCase
TestOneModelServer.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
