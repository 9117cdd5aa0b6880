"""Compares the current conditions with the sent alerts, and sends the differences."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import attrs
import structlog

from gateway.alerts.delivery import AlertTarget
from gateway.domain.alert import OWN_KINDS, RECOVERIES, REPEAT_AFTER_S, Alert, Condition, Findings, OpenAlert, Subject
from gateway.errors import StoreUnavailable
from gateway.storage.alerts import AlertRepository

CHECK_EVERY_S = 15.0
MOST_SHOWN = 50
_MAX_SUBJECT = 512

log = structlog.stdlib.get_logger(__name__)

_MESSAGES = {
    "channel_recovered": "The channel {subject} has recovered and answers requests again.",
    "store_recovered": "The gateway can store requests again.",
}


class AlertWatcher:
    """Finds alerts and passes them to ``targets``. ``recent``: the last alerts, newest first."""

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
        self._sent: dict[Subject, OpenAlert] | None = None
        self._own = False
        self._checking = asyncio.Lock()
        self._unstored: set[Subject] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            await self.check()

    async def check(self) -> None:
        """Send new conditions, and recoveries. Changes that cannot be stored now are stored by a later check."""
        async with self._checking:
            found = await self._collect()
            if self._own and not found.own:  # this node has become the leader; the previous one has sent alerts
                self._sent = None
            self._own = found.own
            sent = await self._load()
            now_s = int(self._clock())
            changed = self._send_new(found.conditions, sent, now_s) | self._close_ended(found, sent, now_s)
            expired = {
                key
                for key, one in sent.items()
                if not one.open and now_s - one.since_s >= REPEAT_AFTER_S and (key[0] in OWN_KINDS or not found.own)
            }
            for key in expired:
                del sent[key]
            await self._store(changed | expired, sent)

    async def test(self, name: str | None = None) -> list[dict[str, Any]]:
        """Send a test alert to one target, or to all; return the result of each, as JSON."""
        chosen = [target for target in self.targets if name in {None, target.status.name}]
        alert = Alert("test", "", "This is a test of the alerts of your model gateway.", int(self._clock()))
        problems = await asyncio.gather(*(target.try_once(alert) for target in chosen))
        return [
            {"name": target.status.name, "delivered": problem is None, "error": problem}
            for target, problem in zip(chosen, problems, strict=True)
        ]

    def _send_new(self, conditions: Iterable[Condition], sent: dict[Subject, OpenAlert], now_s: int) -> set[Subject]:
        """Send the conditions that have not been sent yet; return their subjects."""
        changed: set[Subject] = set()
        for condition in conditions:
            key = condition.kind, condition.subject[:_MAX_SUBJECT]
            before = sent.get(key)
            if before is not None and (before.open or now_s - before.since_s < REPEAT_AFTER_S):
                continue
            sent[key] = OpenAlert(*key, now_s)
            changed.add(key)
            if not condition.silent:
                self._send(Alert(*key, condition.message, now_s))
        return changed

    def _close_ended(self, found: Findings, sent: dict[Subject, OpenAlert], now_s: int) -> set[Subject]:
        """Close alerts whose conditions have ended, and report recoveries that matter; return the subjects."""
        held = {(one.kind, one.subject[:_MAX_SUBJECT]) for one in found.conditions} | found.unknown
        ended = {key for key, one in sent.items() if one.open and key not in held}
        if found.own:
            ended = {key for key in ended if key[0] in OWN_KINDS}
        for key in ended:
            kind, subject = key
            sent[key] = attrs.evolve(sent[key], open=False)
            if kind in RECOVERIES and key in found.well:
                recovery = RECOVERIES[kind]
                self._send(Alert(recovery, subject, _MESSAGES[recovery].format(subject=subject), now_s))
        return ended

    def _send(self, alert: Alert) -> None:
        log.info("alert_raised", code=alert.kind, reason=alert.message)
        self.recent = [alert, *self.recent[: MOST_SHOWN - 1]]
        for target in self.targets:
            target.put(alert)

    async def _load(self) -> dict[Subject, OpenAlert]:
        """Return the sent alerts. The first call reads them from the database, if it answers."""
        if self._sent is None:
            try:
                listed = await self._repository.list_alerts()
            except StoreUnavailable:
                listed = ()
            self._sent = {(one.kind, one.subject): one for one in listed}
        return self._sent

    async def _store(self, changed: set[Subject], sent: dict[Subject, OpenAlert]) -> None:
        self._unstored |= changed
        if not self._unstored:
            return
        kept = [sent[key] for key in self._unstored if key in sent]
        gone = [key for key in self._unstored if key not in sent]
        try:
            await self._repository.replace(gone, kept)
        except StoreUnavailable:
            return  # the failing store is a condition of its own
        self._unstored.clear()
