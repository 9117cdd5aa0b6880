"""Open alerts, if an ``[[alert]]`` names a target."""

from contextlib import AsyncExitStack

import aiohttp

from gateway.alerts.collector import AlertConditions
from gateway.alerts.delivery import AlertTarget, Send
from gateway.alerts.watcher import AlertWatcher
from gateway.alerts.webhook import AlertSender
from gateway.background import JobRunner
from gateway.config.alert_schema import AlertSpec
from gateway.config.extras import describe_missing
from gateway.config.loader import ConfigError
from gateway.domain.alert import REPEAT_AFTER_S
from gateway.server.context import Services
from gateway.storage.alerts import AlertRepository


def open_alerts(services: Services, stack: AsyncExitStack, jobs: JobRunner) -> AlertWatcher:
    """Open the alert targets and start watching the conditions. Raises ``ConfigError``."""
    specs = services.options.config.alert
    session = aiohttp.ClientSession()
    stack.push_async_callback(session.close)
    targets = [
        AlertTarget(spec, _open_sender(index, spec, session, services), services.clock)
        for index, spec in enumerate(specs)
    ]
    conditions = AlertConditions(
        accounting=services.billing.accounting,
        load_balancer=services.routing.load_balancer,
        accounts=services.auth.accounts,
        certificate=services.options.certificate,
        list_unpriced=lambda: _list_unpriced(services),
        check_store=services.storage.check_writable,
        clock=services.clock,
        leads=services.storage.deployment.leads,
    )
    watcher = AlertWatcher(conditions.collect, AlertRepository(services.storage.database), targets, services.clock)
    jobs.start("watch_alerts", watcher.run)
    for target in targets:
        jobs.start(f"deliver_alerts_{target.status.name}", target.run)
    return watcher


def _open_sender(index: int, spec: AlertSpec, session: aiohttp.ClientSession, services: Services) -> Send:
    if spec.is_webhook:
        return AlertSender(spec, session, services.clock)
    try:
        from gateway.alerts.apprise_sender import AppriseSender  # noqa: PLC0415 - only if a target needs it
    except ImportError as error:
        raise ConfigError([describe_missing(f"alert[{index}].url", "alerts")]) from error
    try:
        return AppriseSender(spec)
    except ValueError as error:
        raise ConfigError([f"alert[{index}].url: {error}; https://… is a webhook, others: {_KNOWN}"]) from None


_KNOWN = "slack://, tgram://, discord://, mailtos://, https://appriseit.com lists more"


def _list_unpriced(services: Services) -> list[str]:
    """Return the models that were requested within the last hour without a price."""
    since_ms = (services.clock() - REPEAT_AFTER_S) * 1000
    return [model for model, asked_ms in services.metrics.unpriced.items() if asked_ms >= since_ms]
