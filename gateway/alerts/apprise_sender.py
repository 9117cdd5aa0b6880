"""Sends alerts through Apprise: Slack, Telegram, Discord, mail and many more. Imported only if a target needs it."""

import asyncio

import apprise

from gateway.alerts.delivery import DeliveryFailed
from gateway.config.alert_schema import AlertSpec
from gateway.domain.alert import Alert

TITLE = "Model gateway"
TIMEOUT_S = 30.0
_SUCCESS_KINDS = frozenset({"channel_recovered", "store_recovered", "test"})
_WARNING_KINDS = frozenset(
    {
        "bodies_not_kept", "budget_80", "budget_burning", "certificate_expiring", "key_expiring", "limit_soft",
        "model_unpriced", "sink_behind", "spending_anomaly",
    }
)  # fmt: skip


class AppriseSender:
    """Makes one attempt to deliver an alert to an Apprise URL. Raises ``ValueError`` if the URL is not valid."""

    def __init__(self, spec: AlertSpec) -> None:
        self._client = apprise.Apprise()
        if not self._client.add(spec.url):
            raise ValueError("Apprise does not know this address")

    async def __call__(self, alert: Alert) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                problem = await asyncio.to_thread(self._notify, alert)
        except TimeoutError:
            problem = f"The service did not answer within {TIMEOUT_S:.0f} seconds"
        if problem is not None:
            raise DeliveryFailed(problem)

    def _notify(self, alert: Alert) -> str | None:
        with apprise.LogCapture(  # type: ignore[no-untyped-call]
            level=apprise.logging.WARNING, fmt="%(message)s"
        ) as captured_log:
            is_delivered = self._client.notify(alert.message, title=TITLE, notify_type=find_type(alert))
            log_text = captured_log.getvalue().strip()
        return (
            None if is_delivered else log_text.splitlines()[-1] if log_text else "The service did not take the message"
        )


def find_type(alert: Alert) -> apprise.NotifyType:
    """Return the urgency of an alert, which services show as a color."""
    if alert.kind in _SUCCESS_KINDS:
        return apprise.NotifyType.SUCCESS
    return apprise.NotifyType.WARNING if alert.kind in _WARNING_KINDS else apprise.NotifyType.FAILURE
