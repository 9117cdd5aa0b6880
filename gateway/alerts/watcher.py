"""Compares the current conditions with the sent alerts, and sends the differences."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import attrs
import structlog

from gateway.alerts.delivery import AlertTarget
from gateway.domain.alert import (
    PROCESS_KINDS,
    RECOVERIES,
    REPEAT_AFTER_S,
    Alert,
    Condition,
    Findings,
    OpenAlert,
    Subject,
)
from gateway.errors import StoreUnavailable
from gateway.storage.alerts import AlertRepository

CHECK_INTERVAL_S = 15.0
MAX_RECENT_ALERTS = 50
_MAX_SUBJECT_CHARS = 512
_MAX_NAMED_SUBJECTS = 10
"""How many more subjects the message of a group names."""

log = structlog.stdlib.get_logger(__name__)

_MESSAGES = {
    "channel_recovered": "The channel {subject} has recovered and answers requests again.",
    "store_recovered": "The gateway can store requests again.",
}


class AlertWatcher:
    """Finds alerts and passes them to ``targets``. ``recent`` are the last alerts, newest first."""

    def __init__(
        self,
        collect: Callable[[], Awaitable[Findings]],
        repository: AlertRepository,
        targets: Sequence[AlertTarget],
        clock: Callable[[], float],
    ) -> None:
        self.targets = targets
        self.recent: list[Alert] = []
        self._collect = collect
        self._repository = repository
        self._clock = clock
        self._sent_alerts: dict[Subject, OpenAlert] = {}
        self._is_loaded = False
        self._was_own = False
        self._check_lock = asyncio.Lock()
        self._unstored_keys: set[Subject] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        """Send alerts about new conditions and recoveries. Changes that cannot be stored now are stored later."""
        async with self._check_lock:
            findings = await self._collect()
            if self._was_own and not findings.own:  # this node has become the leader; the previous one has sent alerts
                self._sent_alerts = {
                    key: self._sent_alerts[key] for key in self._unstored_keys & self._sent_alerts.keys()
                }
                self._is_loaded = False
            self._was_own = findings.own
            sent_alerts = await self._load()
            now_s = int(self._clock())
            changed_keys = self._send_new_alerts(findings.conditions, sent_alerts, now_s) | self._close_ended_alerts(
                findings, sent_alerts, now_s
            )
            expired_keys = {
                key
                for key, alert in sent_alerts.items()
                if not alert.open
                and now_s - alert.since_s >= REPEAT_AFTER_S
                and (key[0] in PROCESS_KINDS or not findings.own)
            }
            for key in expired_keys:
                del sent_alerts[key]
            await self._store(changed_keys | expired_keys, sent_alerts)

    async def test(self, name: str | None = None) -> list[dict[str, Any]]:
        """Send a test alert to the target ``name``, or to all; return the result of each, as JSON."""
        targets = [target for target in self.targets if name in {None, target.status.name}]
        alert = Alert("test", "", "This is a test of the alerts of your model gateway.", int(self._clock()))
        problems = await asyncio.gather(*(target.try_once(alert) for target in targets))
        return [
            {"name": target.status.name, "delivered": problem is None, "error": problem}
            for target, problem in zip(targets, problems, strict=True)
        ]

    def _send_new_alerts(
        self, conditions: Iterable[Condition], sent_alerts: dict[Subject, OpenAlert], now_s: int
    ) -> set[Subject]:
        """Record the conditions without an open or recent alert, and send those that are not silent.

        Return the subjects that were recorded.
        """
        changed_keys: set[Subject] = set()
        groups: dict[Subject, list[Condition]] = {}
        for condition in conditions:
            key = condition.kind, condition.subject[:_MAX_SUBJECT_CHARS]
            known_alert = sent_alerts.get(key)
            if known_alert is not None and (known_alert.open or now_s - known_alert.since_s < REPEAT_AFTER_S):
                continue
            if condition.group:
                group = condition.kind, condition.group[:_MAX_SUBJECT_CHARS]
                groups.setdefault(group, []).append(condition)
                continue
            sent_alerts[key] = OpenAlert(*key, now_s)
            changed_keys.add(key)
            if not condition.silent:
                self._send(Alert(*key, condition.message, now_s))
        for group, members in groups.items():
            changed_keys |= self._send_group(group, members, sent_alerts, now_s)
        return changed_keys

    def _send_group(
        self, group: Subject, conditions: Sequence[Condition], sent_alerts: dict[Subject, OpenAlert], now_s: int
    ) -> set[Subject]:
        """Record and send new conditions as one alert, unless the group had one within ``REPEAT_AFTER_S``.

        Return the subjects that were recorded.
        """
        if (last_alert := sent_alerts.get(group)) is not None and now_s - last_alert.since_s < REPEAT_AFTER_S:
            return set()
        sent_alerts[group] = OpenAlert(*group, now_s, open=False)  # it stands for a message, and not for a condition
        keys = [(condition.kind, condition.subject[:_MAX_SUBJECT_CHARS]) for condition in conditions]
        for key in keys:
            sent_alerts[key] = OpenAlert(*key, now_s)
        message = conditions[0].message
        if (others := len(conditions) - 1) > 0:
            names = ", ".join(condition.subject for condition in conditions[1 : 1 + _MAX_NAMED_SUBJECTS])
            message += f" The same holds for {others} more: {names}{', …' if others > _MAX_NAMED_SUBJECTS else ''}"
        self._send(Alert(*group, message, now_s))
        return {group, *keys}

    def _close_ended_alerts(
        self, findings: Findings, sent_alerts: dict[Subject, OpenAlert], now_s: int
    ) -> set[Subject]:
        """Close alerts whose conditions have ended, and report ``RECOVERIES``; return the subjects that were closed."""
        current_keys = {
            (condition.kind, condition.subject[:_MAX_SUBJECT_CHARS]) for condition in findings.conditions
        } | findings.unknown
        ended_keys = {key for key, alert in sent_alerts.items() if alert.open and key not in current_keys}
        if findings.own:
            ended_keys = {key for key in ended_keys if key[0] in PROCESS_KINDS}
        for key in ended_keys:
            kind, subject = key
            sent_alerts[key] = attrs.evolve(sent_alerts[key], open=False)
            if kind in RECOVERIES and key in findings.well:
                recovery = RECOVERIES[kind]
                self._send(Alert(recovery, subject, _MESSAGES[recovery].format(subject=subject), now_s))
        return ended_keys

    def _send(self, alert: Alert) -> None:
        log.info("alert_raised", code=alert.kind, reason=alert.message)
        self.recent = [alert, *self.recent[: MAX_RECENT_ALERTS - 1]]
        for target in self.targets:
            target.put(alert)

    async def _load(self) -> dict[Subject, OpenAlert]:
        """Return the sent alerts, read from the database as soon as it answers; until then, those of this process."""
        if not self._is_loaded:
            try:
                alerts = await self._repository.list_alerts()
            except StoreUnavailable:
                return self._sent_alerts
            self._sent_alerts = {(alert.kind, alert.subject): alert for alert in alerts} | self._sent_alerts
            self._is_loaded = True
        return self._sent_alerts

    async def _store(self, changed_keys: set[Subject], sent_alerts: dict[Subject, OpenAlert]) -> None:
        self._unstored_keys |= changed_keys
        if not self._unstored_keys:
            return
        kept_alerts = [sent_alerts[key] for key in self._unstored_keys if key in sent_alerts]
        gone_keys = [key for key in self._unstored_keys if key not in sent_alerts]
        try:
            await self._repository.replace(gone_keys, kept_alerts)
        except StoreUnavailable:
            return  # the failing store is a condition of its own
        self._unstored_keys.clear()
