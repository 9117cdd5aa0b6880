"""Finds conditions that operators should know about. Never called while handling a request."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import get_args

from gateway.billing.accounting import AccountingService
from gateway.config.certificate import WARN_DAYS, Certificate
from gateway.domain.account import ApiKey
from gateway.domain.account_spec import build_time
from gateway.domain.alert import Condition, Findings, Subject
from gateway.domain.balance import Balance, Owner, UtcDay
from gateway.domain.lost_change import ReplacedStore
from gateway.domain.price import NANOS_PER_USD
from gateway.domain.sink import BEHIND_AFTER_S, LOSS_SHOWN_S, SinkState
from gateway.routing.channel_health import ChannelKeyView, describe_state
from gateway.routing.load_balancer import LoadBalancer

WARN_KEY_DAYS = 7
_DAY_S = 86_400
_WARNING_PERCENT, _FULL_PERCENT = 80, 100
"""Percentages of a budget at which alerts are sent."""
_UNDECIDED_HEALTH = frozenset({"untested", "recovering"})


def find_budgets(
    accounting: AccountingService, names: Mapping[tuple[Owner, int], str], day: UtcDay
) -> Iterator[Condition]:
    """Yield a condition for each key and account that has spent at least 80 % of its budget, another one at 100 %.

    From 100 % on, the condition of 80 % is silent. A budget of zero has no conditions.

    ``names`` are their names by (owner, id). A key or account without a name, because it was deleted, is left out.
    """
    for owner in get_args(Owner):
        for owner_id, balance in accounting.list_balances(owner):
            usage, owner_name = _measure_budget(balance, day), names.get((owner, owner_id))
            if (
                usage is None or usage[0] < _WARNING_PERCENT or owner_name is None
            ):  # the balance of a deleted key remains
                continue
            percent, left_nanos, limit_nanos = usage
            name = f"{owner} {owner_name}"
            period = "" if balance.quota.period == "lifetime" else f"{balance.quota.period} "
            amounts = f"{_usd(limit_nanos - left_nanos)} of {_usd(limit_nanos)}"
            yield Condition(
                "budget_80",
                name,
                f"The {name} has spent {percent} % of its {period}budget: {amounts}. At 100 % its requests are "
                f"refused; raise the budget or add credit with: gateway {owner}s top-up",
                silent=percent >= _FULL_PERCENT,
            )
            if percent >= _FULL_PERCENT:
                yield Condition(
                    "budget_100",
                    name,
                    f"The {name} has spent its {period}budget of {_usd(limit_nanos)}, and its requests are refused. "
                    f"Raise the budget or add credit with: gateway {owner}s top-up",
                )


def _measure_budget(balance: Balance, day: UtcDay) -> tuple[int, int, int] | None:
    """Return the spent percentage, the remaining amount and the whole budget, in nano-USD.

    None without a budget, or if the budget is zero.
    """
    left_nanos = balance.find_balance(day)
    if left_nanos is None:
        return None
    limit_nanos = left_nanos + balance.find_counter(day).spent_nanos
    if limit_nanos <= 0:
        return None  # a budget of zero cannot be spent
    return (limit_nanos - left_nanos) * 100 // limit_nanos, left_nanos, limit_nanos


def _usd(nanos: int) -> str:
    return f"${nanos / NANOS_PER_USD:,.2f}"


def find_channels(load_balancer: LoadBalancer) -> Findings:
    """Return failing channels, keys that providers refuse, and the channels that are healthy or in an unknown state."""
    conditions: list[Condition] = []
    undecided_subjects: set[Subject] = set()
    healthy_subjects: set[Subject] = set()
    for state in load_balancer.channels.values():
        name, channel_fields = state.channel.name, describe_state(state, load_balancer, {})
        health, reason = channel_fields["health"], channel_fields["health_reason"] or "no reason is known"
        refused_conditions = list(_find_refused_keys(name, channel_fields["keys"]))
        conditions += refused_conditions
        if health in _UNDECIDED_HEALTH:
            undecided_subjects.add(("channel_failing", name))
        elif health == "healthy":
            healthy_subjects.add(("channel_failing", name))
        elif health in {"failing", "cooling_down"}:
            conditions.append(
                Condition(
                    "channel_failing",
                    name,
                    f"The channel {name} is failing: {_end_sentence(reason)} Requests use other channels that serve "
                    f"the model. See: gateway channels show {name}",
                )
            )
    return Findings(tuple(conditions), frozenset(undecided_subjects), frozenset(healthy_subjects))


def _find_refused_keys(channel: str, keys: Sequence[ChannelKeyView]) -> Iterator[Condition]:
    for number, key in enumerate(keys, 1):
        if key.state == "closed" or not key.reason:
            continue
        key_name = f"that ends in {key.last4}" if key.last4 else f"number {number}"
        yield Condition(
            "provider_key_refused",
            f"{channel} {key.last4 or number}",
            f"The provider of the channel {channel} refuses the API key {key_name}: {_end_sentence(key.reason)} "
            "Replace "
            f"the key with: gateway channels edit {channel} --api-key",
        )


def find_unpriced_models(models: Iterable[str]) -> Iterator[Condition]:
    """Yield a condition for each of ``models``, which were requested and have no price."""
    for model in models:
        yield Condition(
            "model_unpriced",
            model,
            f"The model {model} was requested and has no price, so that its requests are refused or not counted. Set "
            f"a price with: gateway prices set {model}",
        )


def find_store_problem(problem: str | None) -> Iterator[Condition]:
    """Yield the condition that the store cannot be written. ``problem`` is the reason; None if it can."""
    if problem is not None:
        yield Condition(
            "store_not_writable",
            "",
            f"The gateway cannot store requests: {_end_sentence(problem)} New requests are refused until it can. Check "
            "the disk of the data folder, and run: gateway doctor",
        )


def find_bodies_problem(problem: str) -> Iterator[Condition]:
    """Yield the condition that bodies of requests cannot be kept. ``problem`` is the reason; empty if they can."""
    if problem:
        yield Condition(
            "bodies_not_kept",
            "",
            f"Bodies of requests cannot be kept: {_end_sentence(problem)} Requests go on without. Check the disk of "
            "the data folder and the store of store.bodies_url, and run: gateway bodies status",
        )


def find_store_replacement(replacement: ReplacedStore, now_s: float) -> Iterator[Condition]:
    """Yield the condition that the store was found replaced, by another server or an older state, in the last day."""
    if not replacement.found_ms or now_s - replacement.found_ms / 1000 > _DAY_S:
        return
    new_changes = [change for change in replacement.changes if change.found_ms == replacement.found_ms]
    reapplied_count = sum(change.applied != "{}" for change in new_changes)
    yield Condition(
        "store_replaced",
        build_time(replacement.found_ms // 1000),
        f"Another server, or an older state, has replaced the database; it lacked {len(new_changes)} of the last "
        "changes. "
        f"What took rights away was applied again, in {reapplied_count} of them. See: gateway nodes lost-changes",
    )


def check_certificate(certificate: Certificate | None, now_s: float) -> Iterator[Condition]:
    """Yield the condition that the TLS certificate expires soon or has expired."""
    if certificate is not None and (days := certificate.find_days_left(now_s)) < WARN_DAYS:
        expiry_text = f"expires in {days} days" if days >= 0 else "has expired"
        yield Condition(
            "certificate_expiring",
            certificate.expires,
            f"The TLS certificate {expiry_text} ({certificate.expires}). Replace the files of server.tls_certificate "
            "and "
            "server.tls_key; the gateway reads them within a minute.",
        )


def find_expiring_keys(keys: Iterable[ApiKey], names: Mapping[int, str], now_s: float) -> Iterator[Condition]:
    """Yield a condition for each active API key that expires within a week or expired within the last week.

    ``names`` are the names of accounts by id.
    """
    for key in keys:
        if key.status != "active" or key.expires_s is None or abs(key.expires_s - now_s) > WARN_KEY_DAYS * _DAY_S:
            continue
        name = f"{names.get(key.account_id, key.account_id)}/{key.name}"
        expiry_text = datetime.fromtimestamp(key.expires_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        fix = f"gateway keys edit {key.id} --expires-at"
        if key.expires_s > now_s:
            yield Condition("key_expiring", name, f"The API key {name} expires at {expiry_text}. Extend it with: {fix}")
        else:
            yield Condition(
                "key_expired",
                name,
                f"The API key {name} expired at {expiry_text}, and its requests are refused. Extend it with: {fix}",
            )


def _end_sentence(reason: str) -> str:
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def find_sinks_behind(states: Iterable[SinkState], now_s: float) -> Iterator[Condition]:
    """Yield a condition for each sink that is at least ten minutes behind.

    A sink that has lost requests in the last day has another condition.
    """
    for state in states:
        lag_s = state.find_lag_s(now_s)
        if lag_s >= BEHIND_AFTER_S:
            reason = f": {_end_sentence(state.error)}" if state.error else "."
            yield Condition(
                "sink_behind",
                state.name,
                f"The sink {state.name} is {lag_s / 60:.0f} minutes behind{reason} Requests are delivered later, "
                f"unless requests.keep_days deletes them first. See: gateway sinks test {state.name}",
                group="sinks",
            )
        if state.lost_ms is not None and now_s - state.lost_ms / 1000 < LOSS_SHOWN_S:
            yield Condition(
                "sink_behind",
                f"{state.name}, {state.lost} lost",
                f"The sink {state.name} has lost {state.lost} requests: they were deleted before their delivery, or "
                "the receiver refused them (see the log). See: gateway sinks",
                group="sinks",
            )
