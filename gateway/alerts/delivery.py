"""Delivers alerts. Each target has its own queue, so an unresponsive target does not delay the others."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import urlsplit

import attrs
import structlog

from gateway.config.alert_schema import AlertSpec
from gateway.domain.alert import Alert, TargetStatus

MAX_WAITING = 100
"""Maximum of queued alerts per target. Beyond it the oldest is dropped, and this is logged."""
RETRY_AFTER_S: tuple[float, ...] = (5.0, 30.0, 120.0)
"""Waits between the attempts to deliver one alert."""

log = structlog.stdlib.get_logger(__name__)


class DeliveryFailed(Exception):
    """A target did not accept an alert; the message gives the reason."""


class Send(Protocol):
    """Makes one attempt to deliver an alert to a target."""

    async def __call__(self, alert: Alert) -> None:
        """Deliver ``alert``. Raises ``DeliveryFailed``."""
        ...


class AlertTarget:
    """One target with its queue. ``pause`` waits the given seconds before another attempt."""

    def __init__(
        self,
        spec: AlertSpec,
        send: Send,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.status = TargetStatus(spec.name, hide_secrets(spec.url), spec.list_kinds())
        self._send = send
        self._clock = clock
        self._pause = pause
        self._queued_alerts: deque[Alert] = deque()
        self._arrival_event = asyncio.Event()

    def put(self, alert: Alert) -> None:
        if alert.kind not in self.status.kinds:
            return
        if len(self._queued_alerts) >= MAX_WAITING:
            dropped_alert = self._queued_alerts.popleft()
            self._note_failure(dropped_alert, "too many alerts wait for this target")
        self._queued_alerts.append(alert)
        self._arrival_event.set()

    async def run(self) -> None:
        while True:
            await self._arrival_event.wait()
            while self._queued_alerts:
                await self._deliver(self._queued_alerts.popleft())
            self._arrival_event.clear()

    async def try_once(self, alert: Alert) -> str | None:
        try:
            await self._send(alert)
        except DeliveryFailed as error:
            self.status = attrs.evolve(self.status, last_error=str(error))
            return str(error)
        self.status = attrs.evolve(
            self.status, delivered=self.status.delivered + 1, last_delivered_s=int(self._clock()), last_error=None
        )
        return None

    async def _deliver(self, alert: Alert) -> None:
        problem = await self.try_once(alert)
        for wait_s in RETRY_AFTER_S:
            if problem is None:
                return
            await self._pause(wait_s)
            problem = await self.try_once(alert)
        if problem is not None:
            self._note_failure(alert, problem)

    def _note_failure(self, alert: Alert, problem: str) -> None:
        self.status = attrs.evolve(self.status, failed=self.status.failed + 1, last_error=problem)
        log.warning("alert_not_delivered", job=self.status.name, code=alert.kind, error=problem)


def hide_secrets(url: str) -> str:
    """Return the scheme of ``url`` and, for a webhook, the host: the rest may be a secret."""
    url_parts = urlsplit(url)
    return (
        f"{url_parts.scheme}://{url_parts.hostname or ''}"
        if url_parts.scheme in {"http", "https"}
        else f"{url_parts.scheme}://"
    )


def format_time(at_s: float) -> str:
    """Return Unix seconds as text: ``2027-01-31T12:00:00Z``."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
