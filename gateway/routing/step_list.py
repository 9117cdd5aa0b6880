"""The targets of a request for a route. Steps are tried in order, each later step only for a cause that it takes."""

import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING

import attrs

from gateway import errors
from gateway.domain.account import Caller
from gateway.domain.channel import Timeouts
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.request_log import NO_CHANNEL, FailedAttempt
from gateway.domain.route import ANY_REQUEST, MAX_ATTEMPTS, Cause, RequestTraits, Route, StepPlace
from gateway.domain.usage import estimate_tokens
from gateway.formats.references.provider_reads import find_reads
from gateway.routing.causes import find_cause, find_obstacle_cause
from gateway.routing.channel_state import FAILURE_OBSTACLES
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.selection import Candidate, choose
from gateway.routing.target import Attempt, Target
from gateway.routing.target_list import Conversation, TargetList
from gateway.upstream.interface import StaleConnection

if TYPE_CHECKING:  # the router imports this module when a request names a route
    from gateway.routing.router import Router


class StepList(TargetList):
    """The targets of all steps of a route that a request may use, of which one step at a time is open.

    A request goes on to a later step only for a cause that the later one takes, and never back. Each later step keeps
    one of the attempts, so that an earlier step with many channels cannot use up all of them.

    Args:
        options: the targets of all steps; those that are not in ``targets`` cannot serve this request.
        pinned: whether only the channels in ``targets`` have what the request continues, so that the causes of their
            steps do not matter.

    Attributes:
        passed: the steps that were passed over without an attempt, with the cause as their code.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        inference: InferenceRequest,
        load_balancer: LoadBalancer,
        *,
        options: Sequence[Target],
        account_id: int = 0,
        affinity_key: str | None = None,
        graded: bool = False,
        pinned: bool = False,
    ) -> None:
        self.route = route = get_place(options[0]).route
        self._too_long_steps = _find_too_long(targets, inference)
        if self._too_long_steps:
            targets = [target for target in targets if get_place(target).step not in self._too_long_steps]
        default_attempts = max(load_balancer.settings.max_attempts, min(len(route.steps), MAX_ATTEMPTS))
        super().__init__(
            draw_models(targets, affinity_key, load_balancer.draw_random()[0]),
            inference,
            load_balancer,
            account_id=account_id,
            affinity_key=affinity_key,
            graded=graded,
            max_attempts=route.max_attempts or default_attempts,
        )
        self.passed: list[FailedAttempt] = []
        self._unreachable: tuple[str, ...] = ()
        self._failure_causes: set[Cause] = set()
        self._too_expensive_steps: set[int] = set()
        self._waited_steps: set[int] = set()
        self._waits_since: dict[int, float] = {}
        self._ends_at = None if route.deadline_s is None else load_balancer.now + route.deadline_s
        self._order = list(range(len(route.steps)))
        self._step = -1
        self._served_steps = {get_place(target).step for target in options}
        self._enter_first(pinned=pinned)

    def _enter_first(self, *, pinned: bool) -> None:
        """Open the first usable step. A step after unusable ones must take one of their causes, unless ``pinned``.

        Raises ``InvalidRequest`` if there is none.
        """
        usable_steps = {get_place(target).step for target in self.targets}
        causes: set[Cause] = set()
        for step in range(len(self.route.steps)):
            if step in usable_steps and (pinned or not causes or not causes.isdisjoint(self.route.steps[step].causes)):
                self._step = step
                return
            if step not in usable_steps:
                causes.add(cause := self._find_lack(step))
                self._note_passed_step(step, cause)
        raise errors.InvalidRequest(
            f"No step of the route {self.route.name!r} can serve this request: "
            + "; ".join(f"step {passed.step}: {passed.cause}" for passed in self.passed),
            param="model",
        )

    def _find_lack(self, step: int) -> Cause:
        """Return why a step is left: none of its channels may get the request."""
        if step in self._too_long_steps:
            return "context"
        if step in self._too_expensive_steps:
            return "budget"
        return "unsupported" if step in self._served_steps else "unavailable"

    @property
    def step(self) -> int:
        """The number of the open step, counted from 1."""
        return self._step + 1

    def keep_conversation(self, affinity: Conversation, name: str) -> None:
        """Begin with the step that answered the conversation last; the others follow in their order."""
        super().keep_conversation(affinity, name)
        home = affinity.find_target(self.targets)
        if home is not None and super()._is_open(home):
            self._step = step = get_place(home).step
            self._order = [step, *(other_step for other_step in self._order if other_step != step)]

    def sort_trail(self, attempts: Iterable[FailedAttempt]) -> list[FailedAttempt]:
        numbers = [step + 1 for step in self._order]
        return sorted([*self.passed, *attempts], key=lambda attempt: numbers.index(attempt.step))

    def prepare_retry(self, failed_attempt: Attempt, error: errors.ProviderError) -> bool:
        cause = find_cause(error)
        if cause is None or self._is_late():
            return False
        self._failure_causes.add(cause)
        if cause == "credit" or error.phase == "connect":
            self._unreachable += (failed_attempt.channel.name,)
        # Nothing was processed after these errors, so the attempt does not count.
        is_free = isinstance(error, errors.UnsupportedByProvider | errors.OutputLimitExceeded)
        if isinstance(error, StaleConnection) and not self._risks_double_media(error):
            self._max_attempts += 1  # the same step gets the request again, and every later one keeps its attempt
            is_free = True
        if (is_free or self._attempt_count < self._step_attempts) and super().prepare_retry(failed_attempt, error):
            return True
        if self._attempt_count >= self._max_attempts or self._risks_double_media(error):
            return False
        return self._leave_step(self._failure_causes)

    def rank(self) -> Sequence[Target]:
        ranked_targets = super().rank()
        steps_ahead = self._list_later() | {self._step}
        return [target for target in ranked_targets if get_place(target).step in steps_ahead]

    def next(self, failed_attempt: Attempt) -> Attempt | None:
        return None if self._is_late() else super().next(failed_attempt)

    def leave_room(self) -> None:
        """Restrict a low-priority request as in the base class. A full step is waited for, and not passed over.

        Raises ``NoHealthyChannel`` if every channel of the open step is full.
        """
        before = self.targets
        super().leave_room()
        now_s = self.load_balancer.now
        step_targets = [target for target in before if get_place(target).step == self._step]
        obstacles = [target.state.find_obstacle(target.endpoint_key, self.account_id, now_s) for target in step_targets]
        is_down = all(obstacle is not None and obstacle[0] in FAILURE_OBSTACLES for obstacle in obstacles)
        if not is_down and all(get_place(target).step != self._step for target in self.targets):
            self.targets = before
            raise errors.NoHealthyChannel(
                f"Every channel of step {self.step} of the route {self.route.name!r} is full, or nearly so",
                retry_after_s=1,
            )

    def keep_affordable(self, room_nanos: int) -> Sequence[Target]:
        return self.rank() if self.drop_unaffordable(room_nanos) else ()

    def drop_unaffordable(self, room_nanos: int) -> bool:
        """Drop the targets that cost more than ``room_nanos``. Return whether any was dropped and a step is left."""
        cheap_targets = [target for target in self.targets if target.find_reservation(self._inference) <= room_nanos]
        if len(cheap_targets) == len(self.targets):
            return False
        self._too_expensive_steps |= {get_place(target).step for target in self.targets}
        self._too_expensive_steps -= {get_place(target).step for target in cheap_targets}
        self.targets = cheap_targets
        self._first = None
        return any(get_place(target).step == self._step for target in cheap_targets) or self._leave_step({"budget"})

    @property
    def is_any_open(self) -> bool:
        return self.is_open or any(map(super()._is_open, self.list_ahead()))

    def list_ahead(self) -> list[Target]:
        """Return the targets of the open step and of the later ones."""
        steps_ahead = self._list_later() | {self._step}
        return [target for target in self.targets if get_place(target).step in steps_ahead]

    def list_queued_targets(self) -> Sequence[Target]:
        return () if self._step in self._waited_steps else super().list_queued_targets()

    def end_wait(self) -> None:
        """Note that the open step was waited for long enough. Each step is waited for once."""
        self._waited_steps.add(self._step)

    def find_wait_s(self) -> float:
        now_s, wait_s = self.load_balancer.now, self._find_longest_wait_s()
        since = self._waits_since.setdefault(self._step, now_s)
        return min(since + wait_s, math.inf if self._ends_at is None else self._ends_at) - now_s

    def _find_longest_wait_s(self) -> float:
        """Return how long the open step may be waited for; infinity if no later step takes the cause ``queue``."""
        wait_s = self.route.steps[self._step].wait_s
        return math.inf if wait_s is None or self._find_next_step({"queue"}) is None else wait_s

    def _find_queue_cause(self) -> Cause | None:
        """Return ``queue`` if the request should not wait for the open step; None if it should wait there."""
        waits_s = [target.state.queue.estimate_wait_s() for target in self.list_queued_targets() if target.state.queue]
        return "queue" if waits_s and min(waits_s) > self._find_longest_wait_s() else None

    def _find_full_causes(self) -> set[Cause]:
        """Return why the open step is left without an attempt. A full queue is both ``queue`` and ``unavailable``."""
        cause = self._find_obstacle_cause()
        has_queue = any(
            target.state.queue is not None for target in self.targets if get_place(target).step == self._step
        )
        return {"queue", cause} if has_queue and cause == "unavailable" else {cause}

    def _may_wait_for(self, target: Target) -> bool:
        return get_place(target).step == self._step and super()._may_wait_for(target)

    def _choose(self) -> Target | None:
        while True:
            if (target := super()._choose()) is not None:
                return target
            if (causes := self._find_causes()) is None or not self._leave_step(causes):
                return None

    def _find_causes(self) -> set[Cause] | None:
        """Return why the open step is left, whose channels are not free; None if the request should wait for it."""
        if not self.list_queued_targets():
            return self._failure_causes or self._find_full_causes()
        cause = self._find_queue_cause()
        return None if cause is None else {cause}

    def _look(self) -> tuple[Target, bool]:
        visited_steps: list[int] = []
        noted_count = len(self.passed)
        while True:
            visited_steps.append(self._step)
            if (target := super()._choose()) is not None:
                return target, False
            if (causes := self._find_causes()) is None:
                raise self._find_reason()
            if not self._leave_step(causes):
                break
        del self.passed[noted_count:]
        for self._step in visited_steps:  # insist on the earliest step that can be used, not on the last one
            if self.list_queued_targets():
                raise self._find_reason()
            insisting_targets = [
                target
                for target in self.targets
                if get_place(target).step == self._step and self._find_insisting_s(target) == 0.0
            ]
            if insisting_targets:
                return self._pick(insisting_targets), True
            self._note_passed_step(self._step, self._find_obstacle_cause())
        del self.passed[noted_count:]  # a batch looks again later
        self._step = visited_steps[0]
        raise self._find_reason()

    def _pick(self, targets: Sequence[Target]) -> Target:
        """Choose the conversation's home, or else among the targets of the model that this request tries first.

        A step that balances by measurement chooses among the targets of all its models.
        """
        if self.affinity is not None and (home := self.affinity.find_target(targets)) is not None:
            return home
        step = self.route.steps[get_place(targets[0]).step]
        self.balance = step.balance
        if step.balance not in {None, "weight"}:
            return super()._pick(targets)
        lowest_rank = min(get_place(target).rank for target in targets)
        return super()._pick([target for target in targets if get_place(target).rank == lowest_rank])

    def _is_open(self, target: Target) -> bool:
        return get_place(target).step == self._step and super()._is_open(target)

    def _may_repeat(self, failed_attempt: Attempt, error: errors.ProviderError) -> bool:
        cause = find_cause(error)
        if cause is not None and self._find_next_step({cause}) is not None:  # the next step instead of a pause
            return False
        return super()._may_repeat(failed_attempt, error)

    def _has_other(self, target: Target) -> bool:
        return super()._has_other(target) or (
            self._attempt_count < self._max_attempts and self._find_next_step({"timeout"}) is not None
        )

    @property
    def _step_attempts(self) -> int:
        """The number of attempts after which the open step gets no other one: later steps keep one each."""
        return self._max_attempts - len(self._list_later())

    def _take(self, target: Target, answer_id: str, now_s: int, *, insisting: bool = False) -> Attempt:
        attempt = super()._take(target, answer_id, now_s, insisting=insisting)
        if self._ends_at is not None:
            left_s = max(self._ends_at - self.load_balancer.now, 0.001)
            attempt.timeouts = _limit(attempt.timeouts, left_s, stream=self._inference.stream)
        return attempt

    def _is_late(self) -> bool:
        return self._ends_at is not None and self.load_balancer.now >= self._ends_at

    def _leave_step(self, causes: Iterable[Cause]) -> bool:
        """Open the next step that takes one of ``causes``. Return False, without a change, if there is none."""
        next_step = self._find_next_step(set(causes))
        if next_step is None:
            return False
        if not self._failure_causes:
            self._note_passed_step(self._step, min(causes))
        usable_steps = {get_place(target).step for target in self.targets}
        for step in self._order[self._order.index(self._step) + 1 : self._order.index(next_step)]:
            if step not in usable_steps:
                self._note_passed_step(step, self._find_lack(step))
        self._step, self._failure_causes = next_step, set()
        self._tried_channels, self._next_target, self._exceeded = self._unreachable, None, False
        return True

    def _find_next_step(self, causes: set[Cause]) -> int | None:
        """Return the next step that takes one of ``causes`` and has a target; None without one."""
        usable_steps, causes = {get_place(target).step for target in self.targets}, set(causes)
        for step in self._order[self._order.index(self._step) + 1 :]:
            if step and causes.isdisjoint(self.route.steps[step].causes):  # the first step takes every cause
                continue
            if step in usable_steps:
                return step
            causes.add(self._find_lack(step))
        return None

    def _list_later(self) -> set[int]:
        """Return the steps after the open one that have a target."""
        later = self._order[self._order.index(self._step) + 1 :]
        return {get_place(target).step for target in self.targets}.intersection(later)

    def _find_obstacle_cause(self) -> Cause:
        now_s = self.load_balancer.now
        obstacles = (
            target.state.find_obstacle(target.endpoint_key, self.account_id, now_s)
            for target in self.targets
            if get_place(target).step == self._step
        )
        return find_obstacle_cause({obstacle[0] for obstacle in obstacles if obstacle is not None})

    def _note_passed_step(self, step: int, cause: Cause) -> None:
        models = self.route.steps[step].models
        self.passed.append(FailedAttempt(NO_CHANNEL, cause, 0, step=step + 1, model=models[0].model, cause=cause))


def list_step_targets(router: "Router", route: Route, caller: Caller, operation: Operation) -> list[Target]:
    """List the targets of all steps of ``route`` for ``caller``, each with its place.

    Targets without a price are left out if the caller may not use them; raises ``ModelNotPriced`` if only such targets
    exist.
    """
    targets, unpriced, ranks = [], [], count()
    for number, step in enumerate(route.steps):
        for share in step.models:
            rank = next(ranks)
            options = [
                attrs.evolve(target, place=StepPlace(route, number, rank, share.model))
                for target in router.list_options(caller, share.model, operation)
                if step.uses(target.channel.name)
            ]
            priced_targets = (
                options if _may_be_unpriced(router, caller, operation) else [t for t in options if not t.unpriced]
            )
            targets += priced_targets
            unpriced += [share.model] if options and not priced_targets else []
    if unpriced and not targets:
        router.pricing.check_priced(caller, unpriced[0])
    return targets


def check_route_served(router: "Router", route: Route, caller: Caller, inference: InferenceRequest) -> None:
    """Raise the error for a request that no step serves, unless the gateway can estimate a token count.

    Raises ``GroupNotAllowed``, ``UnsupportedOperation``, or the error of a variant or a missing price if that is why,
    else ``ModelNotFound``.
    """
    problem: errors.GatewayError | None = None
    for model in route.models:
        try:
            router.check_model_served(caller, attrs.evolve(inference, model=model))
        except errors.ModelNotFound:
            continue
        except errors.GatewayError as error:
            problem = problem or error
        else:
            return
    if problem is not None and not any(router.list_options(caller, name, inference.operation) for name in route.models):
        raise problem
    models = ", ".join(repr(model) for model in route.models)
    raise errors.ModelNotFound(
        f"No channel serves a step of the route {route.name!r} here: its models are {models}",
        param="model",
        should_retry=False,
    )


def _may_be_unpriced(router: "Router", caller: Caller, operation: Operation) -> bool:
    is_free_count = OPERATIONS[operation].counts_only and router.pricing.unpriced != "refuse"
    return is_free_count or not router.pricing.refuses_unpriced(caller)


def make_step_list(
    targets: Sequence[Target],
    inference: InferenceRequest,
    load_balancer: LoadBalancer,
    *,
    route: Route,
    options: Sequence[Target],
    account_id: int,
    affinity_key: str | None,
    graded: bool,
) -> TargetList:
    """Return the targets for ``route``; none if tokens are to be counted and no step can. Raises ``InvalidRequest``."""
    step = route.steps[0]
    # One way needs no choice of a step.
    if len(route.steps) == len(step.models) == 1 and step.condition is ANY_REQUEST and route.deadline_s is None:
        target_list = TargetList(
            targets,
            inference,
            load_balancer,
            account_id=account_id,
            affinity_key=affinity_key,
            graded=graded,
            max_attempts=route.max_attempts or 0,
        )
        target_list.balance = step.balance
        return target_list
    fitting_targets = keep_fitting_targets(targets, inference) if targets else []
    if not fitting_targets and OPERATIONS[inference.operation].counts_only:  # the gateway estimates
        return TargetList((), inference, load_balancer, account_id=account_id)
    is_remix = inference.video is not None and inference.video.remix_of is not None
    return StepList(
        fitting_targets,
        inference,
        load_balancer,
        options=options,
        account_id=account_id,
        affinity_key=affinity_key,
        graded=graded,
        pinned=is_remix or bool(inference.channel),
    )


def get_place(target: Target) -> StepPlace:
    """Return the place of a route's target. Raises ``ValueError`` for a target of a plain model."""
    if target.place is None:
        raise ValueError(f"{target.model} is no target of a route")
    return target.place


def keep_fitting_targets(targets: Sequence[Target], inference: InferenceRequest) -> list[Target]:
    """Keep the targets of the steps whose conditions the request meets. Raises ``InvalidRequest`` if none is left."""
    route = get_place(targets[0]).route
    if all(step.condition is ANY_REQUEST for step in route.steps):
        return list(targets)
    traits = find_traits(inference)
    mismatches = {number: [*step.condition.list_mismatches(traits)] for number, step in enumerate(route.steps)}
    fitting_targets = [target for target in targets if not mismatches[get_place(target).step]]
    if not fitting_targets:
        reasons = "; ".join(f"step {number + 1}: {found[0]}" for number, found in mismatches.items() if found)
        raise errors.InvalidRequest(f"No step of the route {route.name!r} takes this request: {reasons}", param="model")
    return fitting_targets


def _find_too_long(targets: Sequence[Target], inference: InferenceRequest) -> frozenset[int]:
    for target in targets:
        if target.limits.configured_window:
            break
    else:
        return frozenset()
    route = get_place(targets[0]).route
    targets_by_step: list[list[Target]] = [[] for _ in route.steps]
    for target in targets:
        targets_by_step[get_place(target).step].append(target)
    return find_too_long_steps(route, targets_by_step, estimate_tokens(inference.prompt_chars))


def find_too_long_steps(
    route: Route, targets_by_step: Sequence[Sequence[Target]], prompt_tokens: int
) -> frozenset[int]:
    """Return the steps whose models all have a configured context window that is shorter than the prompt.

    The length of a prompt is an estimate, so a step counts only if a later one takes the cause ``context``.
    """
    short_steps = {
        number
        for number, targets in enumerate(targets_by_step)
        if targets and all(0 < target.limits.configured_window < prompt_tokens for target in targets)
    }
    last = max(
        (
            number
            for number, targets in enumerate(targets_by_step)
            if targets and number not in short_steps and "context" in route.steps[number].causes
        ),
        default=0,
    )
    return frozenset(number for number in short_steps if number < last)


def find_traits(inference: InferenceRequest) -> RequestTraits:
    """Return what the conditions of steps may depend on."""
    return RequestTraits(
        estimate_tokens(inference.prompt_chars),
        images=find_reads(inference).images > 0,
        tools=bool(inference.body.get("tools") or inference.body.get("functions")),
        stream=inference.stream,
    )


def draw_models(targets: Sequence[Target], affinity_key: str | None, rng: float) -> list[Target]:
    """Draw by their weights in which order a request tries the models of each step; return the targets with that rank.

    ``rng`` is a random number from 0 to below 1. Requests with the same ``affinity_key`` get the same order.
    """
    if not targets:
        return []
    route = get_place(targets[0]).route
    ranks: dict[tuple[int, str], int] = {}
    for number, step in enumerate(route.steps):
        candidates = [Candidate(share.model, share.model, weight=share.weight) for share in step.models]
        while candidates:
            first = choose(candidates, affinity_key, (rng, 0.0)) or candidates[0].item
            ranks[number, first] = len(ranks)
            candidates = [candidate for candidate in candidates if candidate.item != first]
    return [
        target
        if ranks[place.step, place.model] == place.rank
        else attrs.evolve(target, place=attrs.evolve(place, rank=ranks[place.step, place.model]))
        for target in targets
        for place in [get_place(target)]
    ]


def _limit(timeouts: Timeouts, left_s: float, *, stream: bool) -> Timeouts:
    """Shorten the timeouts: a stream has to begin within ``left_s`` seconds, any other answer has to be complete."""
    if stream:
        return attrs.evolve(timeouts, first_byte_s=min(timeouts.first_byte_s, left_s))
    return attrs.evolve(timeouts, total_s=min(timeouts.total_s, left_s))
