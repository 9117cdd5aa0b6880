"""The live state of a channel, and its health in one word. Pure functions of the load balancer's state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from gateway.answer_fields import Count, Moment
from gateway.domain.account import Status
from gateway.domain.account_spec import build_time
from gateway.domain.channel import Channel
from gateway.domain.circuit_breaker import State
from gateway.domain.circuits import Tripped
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.statistics import find_percentile
from gateway.frozen import frozen
from gateway.routing.channel_state import FAILED_MS, ChannelState, KeyState, LastError
from gateway.routing.channel_tester import format_last4
from gateway.routing.load_balancer import LoadBalancer

if TYPE_CHECKING:  # imported by gateways that balance by measurement
    from gateway.routing.performance import Performance

Health = Literal["untested", "healthy", "failing", "cooling_down", "recovering", "draining", "disabled"]
"""The health of a channel or of a key.

- ``untested``: the provider has not been asked yet
- ``healthy``: the provider answers
- ``failing``: the provider does not answer, or rejects the key (of a channel: every key)
- ``cooling_down``: the circuit breaker is open
- ``recovering``: the channel or key gets a reduced share of requests after a failure
- ``draining``: an operator has disabled it, and requests are still running
- ``disabled``: an operator has disabled it, and no request is running

A key of a channel that gets no requests has the health of the channel, unless the key itself is disabled."""

MAX_CIRCUITS = 50
"""Maximum number of circuits reported per channel or key. Without it, clients could invent model names endlessly."""
MIN_SUCCESS_RATIO = 0.9
"""The success ratio below which an otherwise healthy channel reports its failures."""
_MIN_REQUESTS = 10
"""The minimum number of requests for that ratio to be meaningful."""
_STATES_WITHOUT_REQUESTS: frozenset[Health] = frozenset({"draining", "disabled", "failing", "cooling_down"})

AccountNames = Mapping[int, str]
Fields = dict[str, Any]


@frozen(kw_only=True)
class CircuitView:
    """Requests of one kind that a channel or a key of it refuses; ``account`` is null if that holds for all accounts.

    ``language`` is the name that ``api_format`` had until 0.8.
    """

    model: str | None
    api_format: str | None
    language: str | None
    account: int | None
    account_name: str | None
    state: State
    cooldown_s: float | None
    trips: Count
    reason: str | None


@frozen(kw_only=True)
class PerformanceView:
    """What was measured of a model at a key. ``model`` is the provider's name. Null: not known, or no longer.

    ``first_event_ms`` is of streams, ``answer_ms`` the time to the end of other answers. ``requests`` is the number of
    recent attempts, in which older ones count for less.
    """

    model: str
    requests: float
    first_event_ms: Count | None
    answer_ms: Count | None
    tokens_per_s: float | None
    failed_share: float | None
    cached_share: float | None
    usd_per_million: float | None


@frozen(kw_only=True)
class ChannelKeyView:
    """A key of a channel. ``measured`` is empty unless something balances by measurement.

    ``state`` is the state of the key's circuit breaker; ``health`` also includes what the channel's health means for
    the key.
    """

    number: Count
    last4: str
    state: State
    cooldown_s: float
    reason: str | None
    circuits: Sequence[CircuitView]
    limited_models: Sequence[str]
    measured: Sequence[PerformanceView]
    name: str | None
    status: Status
    health: Health
    last_error: str | None
    last_error_at: Moment | None


@frozen(kw_only=True)
class Latency:
    """Percentiles of the time to the first byte, in milliseconds."""

    p50: Count
    p95: Count
    p99: Count


def find_health(state: ChannelState, load_balancer: LoadBalancer) -> Health:
    """Return the health of a channel in one word."""
    health: Health = describe_state(state, load_balancer, {})["health"]
    return health


def describe_state(state: ChannelState, load_balancer: LoadBalancer, names: AccountNames) -> Fields:
    """Return the live state of a channel and its keys as fields of an answer. ``names`` are account names by id."""
    now_s, rules, breaker = load_balancer.now, load_balancer.settings.rules, state.breaker
    wait_s, reason, circuits = (
        breaker.find_wait_s(now_s),
        breaker.reason,
        _build_circuits(state.list_tripped(), now_s, names),
    )
    if breaker.state == "closed" and state.state != "closed":  # breakers of models or accounts have tripped
        wait_s = min((circuit.cooldown_s or 0.0 for circuit in circuits), default=0.0)
        reason = circuits[0].reason
    share = round(breaker.share(now_s, rules), 2)
    keys = _build_keys(state, now_s, names)
    usable_keys = [key for key in keys if key.status == "active"]
    health, health_reason = _find_health(state, share=share, reason=reason, keys=usable_keys)
    keys = [_set_health(key, health, health_reason) for key in keys]
    return {
        "health": health,
        "health_reason": health_reason,
        **_describe_last_test(state),
        "state": state.state,
        "running": state.running,
        "queued": 0 if state.queue is None else len(state.queue),
        "share": 0.0 if health in _STATES_WITHOUT_REQUESTS else share,
        "cooldown_s": None if wait_s is None else round(wait_s, 1),
        "trips": breaker.trips,
        "reason": reason,
        "circuits": circuits,
        **_describe_last_error(state.last_error),
        **_describe_figures(state),
        "keys": keys,
    }


def _describe_last_test(state: ChannelState) -> Fields:
    test = state.test
    return {
        "last_tested_at": None if test is None else build_time(test.at_s),
        "test_ms": None if test is None else test.took_ms,
    }


def _describe_last_error(last_error: LastError | None) -> Fields:
    return {
        "last_error": None if last_error is None else last_error.message,
        "last_error_at": None if last_error is None else build_time(last_error.at_s),
    }


def _build_keys(state: ChannelState, now_s: float, names: AccountNames) -> list[ChannelKeyView]:
    """Describe the keys of a channel, without regard to the channel's health."""
    has_failed_test = _has_failed_test(state)
    hold_reason = state.channel.held_reason if state.channel.held and state.test is None else None
    return [
        _build_key(
            key,
            state.channel,
            now_s,
            names,
            error=(key.test_error if has_failed_test or key.test_refused else None) or hold_reason,
        )
        for key in _list_all_keys(state)
        if key.key
    ]


def _list_all_keys(state: ChannelState) -> Sequence[KeyState]:
    """Return the states of the keys in the channel's order; disabled keys, which have none, get an empty one."""
    if not state.channel.disabled_keys:
        return state.keys
    key_states = {key.key: key for key in state.keys}
    return [key_states.get(key) or KeyState(key) for key in state.channel.api_keys]


def _find_health(
    state: ChannelState, *, share: float, reason: str | None, keys: Sequence[ChannelKeyView]
) -> tuple[Health, str | None]:
    """Return a channel's health, and a reason or None. A later success overrides a failed test."""
    test = state.test
    if state.channel.status != "active":
        return "draining" if state.running else "disabled", None
    if state.channel.held or _has_failed_test(state):
        error = test.error if test else None
        return "failing", error or state.channel.held_reason or "The provider did not answer when the channel was added"
    if state.state == "open":
        return "cooling_down", reason
    if state.state == "half_open" or share < 1:
        return "recovering", reason
    if keys and all(key.state != "closed" for key in keys):
        return "failing", keys[0].reason
    return (
        ("untested", None) if test is None and state.calls <= state.failures else ("healthy", _describe_failures(state))
    )


def _has_failed_test(state: ChannelState) -> bool:
    """Return whether the last test failed, and no request has succeeded since."""
    test = state.test
    return test is not None and test.error is not None and state.calls - state.failures <= test.successes


def _describe_failures(state: ChannelState) -> str | None:
    """Return in words how many recent requests failed; None if they are too few to report."""
    count = len(state.recent)
    failure_count = sum(1 for figure in state.recent if figure == FAILED_MS)
    if count < _MIN_REQUESTS or count - failure_count >= MIN_SUCCESS_RATIO * count:
        return None
    return f"{failure_count} of the last {count} requests failed"


def _build_key(
    key: KeyState, channel: Channel, now_s: float, names: AccountNames, *, error: str | None
) -> ChannelKeyView:
    """Describe a key. A rejected key is reported as not closed until a request with it succeeds.

    ``error``: why its last test failed, or why the channel has been held since before the start.
    """
    tripped_circuits = _build_circuits(key.circuits.list_tripped(), now_s, names)
    state, wait_s, reason = key.breaker.state, key.breaker.find_wait_s(now_s), key.breaker.reason
    if error and state == "closed":
        state, reason = "open", error
    if state == "closed" and tripped_circuits and not key.circuits.no_failure_since_success:
        state, wait_s, reason = tripped_circuits[0].state, tripped_circuits[0].cooldown_s, tripped_circuits[0].reason
    return ChannelKeyView(
        number=channel.api_keys.index(key.key) + 1,
        last4=format_last4(key.key),
        state=state,
        cooldown_s=round(wait_s or 0.0, 1),
        reason=reason,
        circuits=tripped_circuits,
        limited_models=sorted(model for model, hit in key.rate_limit_hits.items() if hit.ends_at > now_s),
        measured=list_measured_models(key, now_s),
        name=channel.find_key_name(key.key),
        status="disabled" if key.key in channel.disabled_keys else "active",
        health=_find_key_health(state, wait_s, has_failed_test=error is not None),
        **_describe_last_error(key.last_error),
    )


def _find_key_health(state: State, wait_s: float | None, *, has_failed_test: bool) -> Health:
    if state == "closed":
        return "healthy"
    if wait_s:
        return "cooling_down"
    return "failing" if has_failed_test and state == "open" else "recovering"


def _set_health(key: ChannelKeyView, health: Health, health_reason: str | None) -> ChannelKeyView:
    """Return the key with its final health and reason.

    The health of a channel that gets no requests, or was not tested yet, counts for its keys, too.
    """
    if key.status == "disabled":
        return attrs.evolve(key, health="disabled")
    if health in _STATES_WITHOUT_REQUESTS or (key.health == "healthy" and health == "untested"):
        has_own_reason = key.state != "closed" and health == "failing"
        return attrs.evolve(key, health=health, reason=key.reason if has_own_reason else health_reason)
    return key


def list_measured_models(key: KeyState, now_s: float) -> list[PerformanceView]:
    """Describe what was measured of at most ``MAX_CIRCUITS`` models at a key."""
    return [
        _build_performance(model, performance, now_s)
        for model, performance in sorted(key.measured.items())[:MAX_CIRCUITS]
        if performance.failed_share.find(now_s) is not None
    ]


def _build_performance(model: str, performance: "Performance", now_s: float) -> PerformanceView:
    first_event_s, answer_s = performance.first_event_s.find(now_s), performance.answer_s.find(now_s)
    tokens_per_s, nanos = performance.tokens_per_s.find(now_s), performance.nanos_per_token.find(now_s)
    failed_share, cached_share = performance.failed_share.find(now_s), performance.cached_share.find(now_s)
    return PerformanceView(
        model=model,
        requests=round(performance.failed_share.count(now_s), 1),
        first_event_ms=None if first_event_s is None else round(first_event_s * 1_000),
        answer_ms=None if answer_s is None else round(answer_s * 1_000),
        tokens_per_s=None if tokens_per_s is None else round(tokens_per_s, 1),
        failed_share=None if failed_share is None else round(failed_share, 4),
        cached_share=None if cached_share is None else round(cached_share, 4),
        usd_per_million=None if nanos is None else round(nanos * 1_000_000 / NANOS_PER_USD, 6),
    )


def _build_circuits(tripped_circuits: Sequence[Tripped], now_s: float, names: AccountNames) -> list[CircuitView]:
    """Describe at most ``MAX_CIRCUITS`` of the tripped circuits."""
    return [
        CircuitView(
            model=model or None,
            api_format=api_format or None,
            language=api_format or None,
            account=account,
            account_name=None if account is None else names.get(account),
            state=breaker.state,
            cooldown_s=None if (wait_s := breaker.find_wait_s(now_s)) is None else round(wait_s, 1),
            trips=breaker.trips,
            reason=breaker.reason,
        )
        for (api_format, model), account, breaker in tripped_circuits[:MAX_CIRCUITS]
    ]


def _describe_figures(state: ChannelState) -> Fields:
    """Return the statistics of a channel's requests. Latencies and ratio are None without data."""
    answer_times = sorted(figure for figure in state.recent if figure != FAILED_MS)
    latency = (
        {f"p{percent}": find_percentile(answer_times, percent) for percent in (50, 95, 99)} if answer_times else None
    )
    return {
        "latency_ms": latency and Latency(**latency),
        "success_ratio": round(len(answer_times) / len(state.recent), 4) if len(state.recent) else None,
        "calls": state.calls,
        "failures": state.failures,
    }
