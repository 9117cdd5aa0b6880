"""A channel as the admin API shows it: its settings without secrets, its live state and its models."""

from collections.abc import Mapping, Sequence
from typing import Literal

from gateway.answer_fields import Count, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.channel import Channel, Origin
from gateway.domain.circuit_breaker import State
from gateway.frozen import frozen
from gateway.routing.channel_health import AccountNames, ChannelKeyView, CircuitView, Health, Latency, describe_state
from gateway.routing.channel_spec import build_channel_fields
from gateway.routing.load_balancer import LoadBalancer
from gateway.routing.model_catalog import ModelCatalog


@frozen(kw_only=True)
class QueueView:
    """How requests wait for a place."""

    length: Count
    wait_s: float
    one_model: bool
    switch_after_s: float


@frozen(kw_only=True)
class ChannelView:
    """A channel. ``came``, ``went``, ``held``: until 0.8 for ``models_added``, ``models_removed``, ``on_hold``."""

    name: str
    provider: str
    status: Literal["active", "disabled"]
    origin: Origin
    declared: bool
    base_url: str
    key_count: Count
    models: Sequence[str]
    sync: bool
    model_map: Mapping[str, str]
    groups: Sequence[str]
    priority: int
    weight: Count
    max_concurrency: Count | None
    queue: QueueView | None
    rpm: Count | None
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    total_timeout_s: float
    has_proxy: bool
    header_names: Sequence[str]
    price_multiplier: float
    fan_out: bool
    pass_urls: bool
    owned_by: str | None
    allow_fields: Sequence[str]
    created_at: Moment | None
    offers: Count | None
    matches_globs: bool
    synced_at: Moment | None
    sync_error: str | None
    models_added: Sequence[str]
    models_removed: Sequence[str]
    came: Sequence[str]
    went: Sequence[str]
    changed_at: Moment | None
    on_hold: bool
    held: bool
    health: Health
    health_reason: str | None
    last_tested_at: Moment | None
    test_ms: Count | None
    state: State
    running: Count
    queued: Count
    share: float
    cooldown_s: float | None
    trips: Count
    reason: str | None
    circuits: Sequence[CircuitView]
    last_error: str | None
    last_error_at: Moment | None
    latency_ms: Latency | None
    success_ratio: float | None
    calls: Count
    failures: Count
    keys: Sequence[ChannelKeyView]


@frozen(kw_only=True)
class ChannelDetails(ChannelView):
    """A channel and the models that it offers."""

    offered: Sequence[str]


def build_channel_view(
    channel: Channel, catalog: ModelCatalog, load_balancer: LoadBalancer, names: AccountNames
) -> ChannelView:
    """Describe a channel. ``names`` are the names of accounts by their id."""
    offer, synced = catalog.find_offer(channel), catalog.find_sync_status(channel)
    models_added, models_removed = list(synced.added), list(synced.removed)
    return ChannelView(
        **build_channel_fields(channel),
        offers=None if offer is None else len(offer),
        matches_globs=bool(channel.patterns) and not channel.sync,
        synced_at=None if synced.at_s is None else build_time(synced.at_s),
        sync_error=synced.error,
        models_added=models_added,
        models_removed=models_removed,
        came=models_added,
        went=models_removed,
        changed_at=None if synced.changed_s is None else build_time(synced.changed_s),
        on_hold=channel.held,
        held=channel.held,
        **describe_state(load_balancer.channels[channel.name], load_balancer, names),
    )
