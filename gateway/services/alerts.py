"""Opens alerts, if an ``[[alert]]`` names a target."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import aiohttp

from gateway.alerts.collector import AlertConditions
from gateway.alerts.delivery import AlertTarget, Send
from gateway.alerts.limit_watch import LimitWatch
from gateway.alerts.spending import SpendingWatch
from gateway.alerts.watcher import AlertWatcher
from gateway.alerts.webhook import AlertSender
from gateway.auth.accounts import AccountService
from gateway.background import JobRunner
from gateway.config.alert_schema import AlertSpec
from gateway.config.extras import describe_missing_extra
from gateway.config.loader import ConfigError
from gateway.config.schema import BillingSection
from gateway.domain.alert import REPEAT_AFTER_S
from gateway.domain.sink import SinkState
from gateway.observability.request_metrics import RequestMetrics
from gateway.routing.load_balancer import LoadBalancer
from gateway.server.context import BillingServices
from gateway.services.base import BaseServices
from gateway.storage.alerts import AlertRepository
from gateway.storage.limit_counters import LimitCounters
from gateway.storage.lost_changes import LostChangeRepository
from gateway.storage.traffic import TrafficRepository


def open_alerts(
    base: BaseServices,
    jobs: JobRunner,
    stack: AsyncExitStack,
    *,
    load_balancer: LoadBalancer,
    accounts: AccountService,
    metrics: RequestMetrics,
    billing: BillingServices,
    read_bodies_problem: Callable[[], str],
) -> AlertWatcher:
    """Open the alert targets and start watching the conditions. Raises ``ConfigError``."""
    options, storage, clock = base.options, base.storage, base.options.clock
    session = aiohttp.ClientSession()
    stack.push_async_callback(session.close)
    targets = [
        AlertTarget(spec, _open_sender(index, spec, session, clock), clock)
        for index, spec in enumerate(options.config.alert)
    ]

    conditions = AlertConditions(
        accounting=billing.accounting,
        load_balancer=load_balancer,
        accounts=accounts,
        certificate=options.certificate,
        list_unpriced_models=lambda: _list_unpriced_models(metrics, clock),
        check_store=storage.check_writable,
        clock=clock,
        spending=SpendingWatch(TrafficRepository(storage.database), lambda: _find_settings(base), clock),
        limits=LimitWatch(billing.limits, LimitCounters(storage.database), lambda: _find_settings(base), clock),
        read_bodies_problem=read_bodies_problem,
        read_replaced=None if storage.node is None else LostChangeRepository(storage.database).read,
        read_sinks=_make_sink_reader(base) if options.config.sink else None,
        leads=storage.deployment.leads,
    )
    watcher = AlertWatcher(conditions.collect, AlertRepository(storage.database), targets, clock)
    jobs.start("watch_alerts", watcher.run)
    for target in targets:
        jobs.start(f"deliver_alerts_{target.status.name}", target.run)
    return watcher


def _make_sink_reader(base: BaseServices) -> Callable[[], Awaitable[Sequence[SinkState]]]:
    from gateway.storage.sinks import SinkRepository  # noqa: PLC0415 - only if there are sinks

    states, names = SinkRepository(base.storage.database), [spec.name for spec in base.options.config.sink]
    return lambda: states.list_states(names)


def _find_settings(base: BaseServices) -> BillingSection:
    return base.live_config.config.billing


def _open_sender(index: int, spec: AlertSpec, session: aiohttp.ClientSession, clock: Callable[[], float]) -> Send:
    if spec.is_webhook:
        return AlertSender(spec, session, clock)
    try:
        from gateway.alerts.apprise_sender import AppriseSender  # noqa: PLC0415 - only if a target needs it
    except ImportError as error:
        raise ConfigError([describe_missing_extra(f"alert[{index}].url", "alerts")]) from error
    try:
        return AppriseSender(spec)
    except ValueError as error:
        raise ConfigError(
            [f"alert[{index}].url: {error}; https://… is a webhook, others: {_TARGET_EXAMPLES}"]
        ) from None


_TARGET_EXAMPLES = "slack://, tgram://, discord://, mailtos://, https://appriseit.com lists more"


def _list_unpriced_models(metrics: RequestMetrics, clock: Callable[[], float]) -> list[str]:
    """Return the models that were requested within the last hour without a price."""
    since_ms = (clock() - REPEAT_AFTER_S) * 1000
    return [model for model, requested_ms in metrics.unpriced.items() if requested_ms >= since_ms]
