"""The targets of one request: chooses the channel for each attempt by the current state of the channels."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

import attrs

from gateway import errors
from gateway.domain.channel import DEFAULT_TIMEOUTS, Timeouts
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.price import ONE_PPM, multiply_ppm
from gateway.domain.request_log import FailedAttempt
from gateway.domain.route import BalanceStrategy
from gateway.formats.chat.fan_out import make_single
from gateway.formats.registry import make_translator
from gateway.formats.translator import ResponseIdentity
from gateway.providers.hosted_tools import remove_tools
from gateway.providers.registry import PROVIDERS
from gateway.routing.channel_state import FAILURE_OBSTACLES, RATE_LIMITS, ChannelState, KeyState
from gateway.routing.compacting_endpoint import find_compacting_target
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.selection import Candidate, choose
from gateway.routing.target import Attempt, Target
from gateway.upstream.interface import StaleConnection

MAX_PAUSE_S = 2.0
"""Maximum wait before a second attempt on the only channel. If the provider asks for a longer one, no second attempt is
made."""
SHARED_PAUSE_S = 0.5
"""How long a queue gives no place after other gateways turned out to use all places."""
_MAX_RETRY_AFTER_S = 120
"""Maximum ``Retry-After`` in seconds for a client: client libraries do not wait longer."""


class Conversation(Protocol):
    """The conversation of a request, and its last target; see ``affinity.py``."""

    continues: bool

    @property
    def is_new(self) -> bool: ...
    def find_target(self, targets: Sequence[Target]) -> Target | None: ...
    def find_key(self, state: ChannelState) -> KeyState | None: ...
    def count_conversations(self, candidates: Sequence[Candidate[Target]]) -> Sequence[Candidate[Target]]: ...
    def note_started(self, attempt: Attempt, now_s: float) -> None: ...
    def note_answered(self, attempt: Attempt, now_s: float) -> None: ...


class TargetList:
    """The channels that may serve one request. The channel of each attempt is chosen by their current state.

    Args:
        targets: every channel that may serve the request.
        affinity_key: see ``routing/selection.py``.
        graded: the channels differ in how much of the request they leave out, so ``Target.losses`` matters.
        max_attempts: 0: as the load balancer's settings say.

    Attributes:
        has_choice: whether the request may go to more than one channel or provider key.
        affinity: the request's conversation; None if all requests go where they would without one.
        passed: the steps of a route that were passed over.
        pause_s: the wait before the next attempt that the provider has asked for, in seconds.
        balance: how a channel is chosen for a request that continues no conversation; None: as the settings say.
        preferred: the client's choice by a header, which precedes ``balance``; None without one.
    """

    # Most requests change none of these: the class has their first values, which each request would copy.
    passed: Sequence[FailedAttempt] = ()
    balance: BalanceStrategy | None = None
    preferred: BalanceStrategy | None = None
    pause_s = 0.0
    _ranked_at = 0
    _tried_channels: tuple[str, ...] = ()
    _next_target: Target | None = None
    _lowered: Target | None = None
    _repeated = False
    _exceeded = False
    _patient = False
    _wait_is_over = False

    def __init__(
        self,
        targets: Sequence[Target],
        inference: InferenceRequest,
        load_balancer: LoadBalancer,
        *,
        account_id: int = 0,
        affinity_key: str | None = None,
        graded: bool = False,
        max_attempts: int = 0,
    ) -> None:
        self.targets = targets
        self._inference = inference
        self.load_balancer = load_balancer
        self.account_id = account_id
        self.affinity: Conversation | None = None
        self._affinity_key = affinity_key
        self._graded = graded
        self.has_choice = len(targets) > 1 or (bool(targets) and len(targets[0].state.keys) > 1)
        self._first: Target | None = None
        self._insisting = False
        self._attempt_count = 0
        self._max_attempts = max_attempts or load_balancer.settings.max_attempts
        self._sends_once = False
        self._limit = 0

    def rank(self) -> Sequence[Target]:
        """Return all targets, starting with the one that ``start`` will probably use. Raises ``NoHealthyChannel``."""
        targets = self.targets
        if not targets:
            return targets
        self._ranked_at = self.load_balancer.changes
        if len(targets) == 1 and targets[0].state.is_free(targets[0].endpoint_key):  # the usual case needs no selection
            self._first = targets[0]
            return targets
        try:
            first, self._insisting = self._look()
        except errors.NoHealthyChannel:
            queued = self.list_queued_targets()
            if not queued:
                raise
            first, self._first = queued[0], None  # ``start`` looks again: the request waits after its checks
        else:
            self._first = first
        return [first, *(target for target in targets if target is not first)]

    def list_queued_targets(self) -> Sequence[Target]:
        """Return one target of each channel at which the request may wait for a place, the best first."""
        if self._wait_is_over:
            return ()
        best_by_channel: dict[int, Target] = {}
        for target in self.targets:
            if target.state.queue is not None and self._may_wait_for(target):
                best_target = best_by_channel.setdefault(id(target.state), target)
                if target.losses < best_target.losses:
                    best_by_channel[id(target.state)] = target
        return sorted(best_by_channel.values(), key=lambda target: (target.losses, -target.channel.priority))

    def _may_wait_for(self, target: Target) -> bool:
        """Return whether the channel lacks nothing but a place, and its queue has room."""
        state, now_s = target.state, self.load_balancer.now
        if state.queue is None or not state.offered or state.channel.name in self._tried_channels:
            return False
        if not state.queue.has_room(is_batch=self._patient) or self._is_open(target):
            return False
        return state.find_obstacle_beyond_places(target.endpoint_key, self.account_id, now_s) is None

    @property
    def low_priority(self) -> bool:
        """Whether the request lets others go first, as ``leave_room`` says."""
        return self._patient

    @property
    def is_any_free(self) -> bool:
        """Whether an attempt can be made now, without a wait."""
        return any(map(self._is_open, self.targets))

    def find_wait_s(self) -> float:
        """Return the most seconds that the request may wait from now on; infinity if only the queue bounds it."""
        return math.inf

    def end_wait(self) -> None:
        """Note that the request has waited long enough: it takes what is free now, or ends."""
        self._wait_is_over = True

    def start_granted(self, target: Target, answer_id: str, now_s: int) -> Attempt:
        """Start an attempt in the place that the request was given in the queue of ``target``."""
        target.state.running -= 1
        return self._take(target, answer_id, now_s)

    def _look(self) -> tuple[Target, bool]:
        """Return the target to use, and whether it is used despite its failures. Raises ``NoHealthyChannel``."""
        target = self._choose()
        if target is not None:
            return target, False
        insisting = [target for target in self.targets if self._find_insisting_s(target) == 0.0]
        if not insisting or self.list_queued_targets():
            raise self._find_reason()
        return self._pick(insisting), True

    def start(self, answer_id: str, now_s: int) -> Attempt:
        """Start the first attempt. ``now_s`` (Unix seconds) is the answer's time. Raises ``NoHealthyChannel``."""
        first, insisting = self._first, self._insisting
        # ``rank`` has chosen already. Choose again only if the channels changed while the request waited.
        if first is None or self._ranked_at != self.load_balancer.changes:
            first, insisting = (first, False) if first is not None and self._is_open(first) else self._look()
        return self._take(first, answer_id, now_s, insisting=insisting)

    def leave_out(self, attempt: Attempt) -> None:
        """Undo an attempt because other gateways use up the channel's shared limits, and exclude the channel.

        A channel with a queue stays: the request waits there until other gateways have released a place.
        """
        self._attempt_count -= 1
        if attempt.slot.state.queue is None or self._wait_is_over:
            self._tried_channels += (attempt.channel.name,)
        else:
            attempt.slot.state.queue.pause(SHARED_PAUSE_S)

    def prepare_retry(self, failed_attempt: Attempt, error: errors.ProviderError) -> bool:
        """Prepare another attempt after a released one that failed. Return False if ``error`` is the answer."""
        if isinstance(error, errors.UnsupportedByProvider):  # nothing was sent, so the next attempt is no retry
            self._attempt_count -= 1
            if isinstance(error, errors.EndpointMissing):
                return self._prepare_other_endpoint(failed_attempt)
        elif isinstance(error, errors.OutputLimitExceeded):
            return self._prepare_lower_limit(failed_attempt, error.limit)
        elif not error.retryable or self._attempt_count >= self._max_attempts:
            return False
        # A stale connection is no failure of the channel, which gets the request again over a new connection.
        self._sends_once = isinstance(error, StaleConnection)
        if self._sends_once:
            self._next_target = failed_attempt.target
            return not self._risks_double_media(error)
        if isinstance(error, errors.ContextExceeded):  # two providers agree: trying a third is useless
            if self._exceeded:
                return False
            self._exceeded = True
        return self._prepare_next_channel(failed_attempt, error)

    def _risks_double_media(self, error: errors.ProviderError) -> bool:
        """Return whether the provider may have made media before the connection broke: another attempt costs twice."""
        return isinstance(error, StaleConnection) and self._inference.makes_media

    def _prepare_next_channel(self, failed_attempt: Attempt, error: errors.ProviderError) -> bool:
        """Prepare an attempt on another channel, or again on the only one. Return False if neither is possible."""
        # A failure of one key says nothing about the channel's other keys: the next one gets a try.
        if error.failure_scope not in {"key", "model"} or len(failed_attempt.slot.state.keys) == 1:
            self._tried_channels += (failed_attempt.channel.name,)
        if self.is_open:
            return True
        if self._may_repeat(failed_attempt, error):
            self._next_target, self._repeated, self.pause_s = (
                failed_attempt.target,
                True,
                error.provider_retry_after_s or 0.0,
            )
        return self._next_target is not None

    def _prepare_lower_limit(self, failed_attempt: Attempt, limit: int) -> bool:
        """Prepare to resend the request to the same channel, once, with the output limit that its provider named.

        The provider has processed nothing, so the attempt does not count. Only a successful next attempt proves that
        the limit was the reason. Return False if the request is not resent.
        """
        sent_limit = failed_attempt.output_limit or self._inference.allowed_output
        if self._lowered is not None or 0 < sent_limit <= limit:
            return False
        self._attempt_count -= 1
        self._next_target = self._lowered = failed_attempt.target
        self._limit = limit
        return True

    def _prepare_other_endpoint(self, failed_attempt: Attempt) -> bool:
        """Prepare an attempt on another endpoint of the channel, or on another channel. Return False without one."""
        self._next_target = _find_other_endpoint(failed_attempt.target, self._inference)
        if self._next_target is None:
            self._tried_channels += (failed_attempt.channel.name,)
        return self.is_open

    def _may_repeat(self, failed_attempt: Attempt, error: errors.ProviderError) -> bool:
        """Return whether to retry on the only channel: once, and never media that may already have been made."""
        if (
            self._repeated
            or not failed_attempt.target.state.offered
            or (error.provider_retry_after_s or 0.0) > MAX_PAUSE_S
        ):
            return False
        if isinstance(error, errors.ProviderRateLimited):
            return error.provider_retry_after_s is not None
        return error.passing and not self._inference.makes_media

    def sort_trail(self, attempts: Iterable[FailedAttempt]) -> list[FailedAttempt]:
        """Return the attempts and the steps that were passed over, in the order in which the request came to them."""
        return list(attempts)

    def keep_affordable(self, room_nanos: int) -> Sequence[Target]:  # noqa: ARG002 - for the steps of a route
        """Return the targets that may serve the request although the caller cannot afford all of them.

        Here, there are none: the targets of one model share a reservation. A route passes over its expensive steps, see
        ``step_list.py``.
        """
        return ()

    def drop_unaffordable(self, room_nanos: int) -> bool:  # noqa: ARG002 - for the steps of a route
        """Drop nothing, and return False: see ``keep_affordable``."""
        return False

    def list_ahead(self) -> Sequence[Target]:
        """Return the targets that may serve the request from now on."""
        return self.targets

    def leave_room(self) -> None:
        """Restrict a low-priority request to channels with spare places or a queue, and without failures.

        Raises ``NoHealthyChannel`` if there is no spare place and no queue.
        """
        self._patient = True
        shared_limits = self.load_balancer.shared
        with_room = [
            target
            for target in self.targets
            if (target.state.has_spare or target.state.queue is not None)
            and (shared_limits is None or shared_limits.has_spare(target.state))
        ]
        if self.targets and not with_room:
            message = f"Every channel that serves the model {self._inference.model!r} is full, or nearly so"
            raise errors.NoHealthyChannel(message, retry_after_s=1)
        self.targets = with_room

    def limit_attempts(self, max_attempts: int) -> None:
        """Make at most ``max_attempts`` attempts, whatever the settings say."""
        self._max_attempts = max_attempts

    def multiply_prices(self, multiplier_ppm: int) -> None:
        """Multiply the price at every channel. Each product of multipliers is rounded up to parts per million."""
        if multiplier_ppm != ONE_PPM:
            self.targets = [
                attrs.evolve(target, multiplier_ppm=multiply_ppm(target.multiplier_ppm, multiplier_ppm))
                for target in self.targets
            ]

    def keep_quoted_targets(self, quoted: Iterable[Target]) -> None:
        """Keep the targets that were quoted, at the prices of the quote."""
        prices = {_identify(target): target for target in quoted}
        self.targets = [
            attrs.evolve(
                target,
                price=former.price,
                multiplier_ppm=former.multiplier_ppm,
                named=former.named,
                find_price=former.find_price,
                unpriced=former.unpriced,
            )
            for target in self.targets
            if (former := prices.get(_identify(target))) is not None
        ]
        self._first = None

    @property
    def busy(self) -> bool:
        """Whether any channel is available, or unavailable only because it is full or rate limited."""
        now_s = self.load_balancer.now
        obstacles = [target.state.find_obstacle(target.endpoint_key, self.account_id, now_s) for target in self.targets]
        return any(obstacle is None or obstacle[0] not in FAILURE_OBSTACLES for obstacle in obstacles)

    def keep_conversation(self, affinity: "Conversation", name: str) -> None:
        """Prefer the target that answered the conversation last. ``name`` is the affinity key of a continued one."""
        self.affinity = affinity
        if affinity.continues:
            self._affinity_key = name

    @property
    def digest(self) -> int:
        return self._inference.digest

    @property
    def is_open(self) -> bool:
        """Whether another attempt can be made: on an untried channel, on the same one, or after a wait in a queue."""
        return (
            self._next_target is not None or any(map(self._is_open, self.targets)) or bool(self.list_queued_targets())
        )

    @property
    def is_any_open(self) -> bool:
        """Whether another attempt can be made now, also in a later step of a route."""
        return self.is_open

    def next(self, failed_attempt: Attempt) -> Attempt | None:
        """Start the attempt after ``failed_attempt``. Return None if no channel can take the request."""
        identity, next_target = failed_attempt.translator.identity, self._next_target
        self._next_target, self.pause_s = None, 0.0
        if next_target is not None and (
            next_target.endpoint is not failed_attempt.target.endpoint
            or (next_target is self._lowered and self._is_open(next_target))
        ):
            return self._take(next_target, identity.id, identity.now_s)
        target = self._choose()
        if target is not None:
            return self._take(target, identity.id, identity.now_s)
        if (
            next_target is None
            or next_target.state.find_insisting_s(next_target.endpoint_key, self.account_id, self.load_balancer.now)
            is None
        ):
            return None
        return self._take(next_target, identity.id, identity.now_s, insisting=True)

    def _choose(self) -> Target | None:
        open_targets = [target for target in self.targets if self._is_open(target)]
        if len(open_targets) <= 1:
            return open_targets[0] if open_targets else None
        if self._graded:
            min_losses = min(target.losses for target in open_targets)
            open_targets = [target for target in open_targets if target.losses == min_losses]
        return self._pick(open_targets)

    def _pick(self, targets: Sequence[Target]) -> Target:
        balancer = self.load_balancer
        now_s, rules, account_id = balancer.now, balancer.settings.rules, self.account_id
        affinity = self.affinity
        if affinity is not None and (home := affinity.find_target(targets)) is not None:
            return home
        candidates = [
            build_candidate(target, target.state.find_share(target.endpoint_key, account_id, now_s, rules))
            for target in targets
        ]
        balance = self.preferred or self.balance or balancer.settings.balance
        if balance != "weight" and (self._affinity_key is None or (affinity is not None and not affinity.continues)):
            rng, stream = balancer.draw_random(), self._inference.stream
            chosen_target = balancer.measure().choose(candidates, balance, rng, now_s=now_s, streams=stream)
            return chosen_target or targets[0]
        if (
            affinity is not None and affinity.is_new and balancer.shared is None
        ):  # several gateways agree by the hash, without talking
            even_candidates = affinity.count_conversations(candidates)
            return choose(even_candidates, None, balancer.draw_random()) or targets[0]
        return choose(candidates, self._affinity_key, balancer.draw_random()) or targets[0]

    def _is_open(self, target: Target) -> bool:
        """Return whether the channel is untried and available now. It may have been disabled since routing."""
        state = target.state
        if self._tried_channels and state.channel.name in self._tried_channels:
            return False
        if state.is_free(target.endpoint_key):
            return True
        if not state.offered or state.find_obstacle(target.endpoint_key, self.account_id, self.load_balancer.now):
            return False
        return not self._patient or state.queue is None or state.may_start_batch(target.model)

    def _find_insisting_s(self, target: Target) -> float | None:
        """Return the seconds until the channel may be used despite its failures. None if it may not be used."""
        if self._patient:
            return None
        now_s, state = self.load_balancer.now, target.state
        obstacle = state.find_obstacle(target.endpoint_key, self.account_id, now_s)
        if obstacle is None or obstacle[0] not in FAILURE_OBSTACLES:
            return None
        return state.find_insisting_s(target.endpoint_key, self.account_id, now_s)

    def _take(self, target: Target, answer_id: str, now_s: int, *, insisting: bool = False) -> Attempt:
        balancer, affinity, state, inference = self.load_balancer, self.affinity, target.state, self._inference
        slot = balancer.acquire(
            state,
            target.endpoint_key,
            self.account_id,
            retry=self._attempt_count > 0,
            insisting=insisting,
            preferred_key=None if affinity is None else affinity.find_key(state),
        )
        self._attempt_count += 1
        if balancer.measured_balance is not None:
            balancer.measured_balance.measure(slot, target.model, streams=inference.stream)
        several = None
        if inference.choices > 1 and target.fans_out(inference):
            inference, several = make_single(inference), inference
        if target.left_out_tools:
            inference = attrs.evolve(inference, body=remove_tools(inference.body, target.left_out_tools))
        endpoint, limit, channel = target.endpoint, target.limits.configured_output_tokens, state.channel
        identity = ResponseIdentity(answer_id, target.model, now_s)
        translator = make_translator(
            inference, endpoint.wire, identity, custom_tools=endpoint.custom_tools, longest_answer=limit
        )
        if target.left_out_tools:
            translator.adapted = target.left_out_tools
        timeouts = channel.timeouts
        if inference.stream and len(self.targets) > 1 and self._has_other(target):
            timeouts = _shorten(timeouts, balancer.settings.failover_after_s)
        if self._limit or state.output_limits:
            limit = self._find_limit(target)
        attempt = Attempt(
            target, channel, slot, translator, timeouts, self._sends_once, several=several, output_limit=limit
        )
        if slot.performance is not None:
            attempt.performance = slot.performance
        if affinity is not None:
            affinity.note_started(attempt, balancer.now)
        return attempt

    def _find_limit(self, target: Target) -> int:
        """Return the lower of the output limits that provider and configuration name for the model; 0 without one."""
        lowered, configured_tokens = self._lowered, target.limits.configured_output_tokens
        if lowered is not None and lowered.state is target.state and lowered.model == target.model:
            named_tokens = self._limit
        else:
            named_tokens = target.state.output_limits.get(target.model, 0)
        return min(filter(None, (named_tokens, configured_tokens)), default=0)

    def _has_other(self, target: Target) -> bool:
        """Return whether another channel could serve the request if this channel fails."""
        if self._attempt_count >= self._max_attempts:
            return False
        return any(
            other_target.state is not target.state and self._is_open(other_target) for other_target in self.targets
        )

    def _find_reason(self) -> errors.NoHealthyChannel:
        """Return the error for a request that no channel takes now: 429 if all are rate limited, otherwise 503."""
        now_s = self.load_balancer.now
        waits_s, obstacles = [], set()
        for target in self.targets:
            obstacle = target.state.find_obstacle(target.endpoint_key, self.account_id, now_s)
            if obstacle is not None:
                obstacles.add(obstacle[0])
                insisting_s = self._find_insisting_s(target)
                waits_s.append(obstacle[1] if insisting_s is None else min(obstacle[1], insisting_s))
        wait_s = min(max(math.ceil(min(waits_s, default=1.0)), 1), _MAX_RETRY_AFTER_S)
        channels = f"Every channel that serves the model {self._inference.model!r}"
        if obstacles and obstacles <= RATE_LIMITS:
            return errors.ChannelsRateLimited(
                f"{channels} is waiting for a rate limit; retry in {wait_s} s", retry_after_s=wait_s
            )
        return errors.NoHealthyChannel(f"{channels} is cooling down or full", retry_after_s=wait_s)


def _find_other_endpoint(target: Target, inference: InferenceRequest) -> Target | None:
    """Return ``target`` with the next API format that serves the request, or None."""
    if inference.compaction:
        return find_compacting_target(target, inference)
    api_formats = tuple(wire for wire in OPERATIONS[inference.operation].formats if wire not in target.state.missing)
    endpoint = PROVIDERS[target.channel.provider].find_endpoint(api_formats, target.model)
    return None if endpoint is None else attrs.evolve(target, endpoint=endpoint)


@lru_cache(maxsize=256)
def _shorten(timeouts: Timeouts, failover_after_s: float) -> Timeouts:
    """Shorten the default first-byte timeout to ``failover_after_s``. A timeout set by the operator stays."""
    if timeouts.first_byte_s != DEFAULT_TIMEOUTS.first_byte_s:
        return timeouts
    return attrs.evolve(timeouts, first_byte_s=min(timeouts.first_byte_s, failover_after_s))


def build_candidate(target: Target, share: float) -> Candidate[Target]:
    """Return a target as a candidate that gets ``share`` of its usual requests."""
    channel = target.channel
    return Candidate(
        target,
        channel.name,
        is_certain=target.is_certain,
        priority=channel.priority,
        weight=channel.weight * share,
        share=share,
        running=target.state.running,
    )


def _identify(target: Target) -> tuple[object, ...]:
    """Return what identifies a target in two lists of the same request."""
    place = target.place
    return target.channel.name, target.endpoint.wire, target.model, place and (place.route.name, place.step)
