"""Alerts: conditions that an operator should know about, and the messages about them."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, get_args

from gateway.frozen import frozen

AlertKind = Literal[
    "budget_80",
    "budget_100",
    "limit_soft",
    "budget_burning",
    "spending_anomaly",
    "channel_failing",
    "channel_recovered",
    "provider_key_refused",
    "model_unpriced",
    "store_not_writable",
    "store_recovered",
    "store_replaced",
    "bodies_not_kept",
    "sink_behind",
    "certificate_expiring",
    "key_expiring",
    "key_expired",
    "test",
]
KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
RECOVERIES: Mapping[AlertKind, AlertKind] = {
    "channel_failing": "channel_recovered",
    "store_not_writable": "store_recovered",
}
"""The alerts to send when a condition ends. The end of any other condition is not reported."""
PROCESS_KINDS: frozenset[AlertKind] = frozenset({"store_not_writable", "certificate_expiring", "bodies_not_kept"})
"""The kinds that each cluster node reports about itself. The leader reports all others, so each is sent once."""
REPEAT_AFTER_S = 3_600.0
"""A condition that ends and returns within this time is not sent again."""

Subject = tuple[AlertKind, str]
"""The subject of an alert: its kind and the name of the object. Each has at most one open alert."""


@frozen
class Condition:
    """A condition that an operator should know about while it lasts.

    ``subject`` is the name of what the condition is about, such as a channel or a key; empty for the gateway itself.
    ``message`` names the event and the remedy. If ``silent`` is true, no message about the condition is sent, because
    another condition says more. New conditions of the same kind and ``group`` are sent as one message, whose subject
    is the group, and at most one in ``REPEAT_AFTER_S``.
    """

    kind: AlertKind
    subject: str
    message: str
    silent: bool = False
    group: str = ""


@frozen
class Findings:
    """The conditions that hold now.

    Attributes:
        unknown: the subjects of which it is not known whether their condition holds.
        well: the subjects that are known to work, so that their recovery may be reported (``RECOVERIES``).
        own: whether only conditions of this process (``PROCESS_KINDS``) were looked for, because the leader of the
            cluster looks for the others.
    """

    conditions: tuple[Condition, ...] = ()
    unknown: frozenset[Subject] = frozenset()
    well: frozenset[Subject] = frozenset()
    own: bool = False


@frozen
class Alert:
    """A message to an operator. ``at_s`` is in Unix seconds."""

    kind: AlertKind
    subject: str
    message: str
    at_s: int

    @property
    def id(self) -> str:
        """The same id in every attempt to deliver the alert: a receiver can discard duplicates."""
        text = f"{self.kind}\n{self.subject}\n{self.message}\n{self.at_s}"
        return f"alert_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@frozen
class OpenAlert:
    """A condition, or a group of conditions, that needs no further alert for now.

    ``open`` is false once the condition has ended, and for a group. ``since_s`` is in Unix seconds.
    """

    kind: AlertKind
    subject: str
    since_s: int
    open: bool = True


@frozen
class TargetStatus:
    """The statistics of deliveries to one target since the start of the process."""

    name: str
    address: str
    kinds: tuple[AlertKind, ...]
    delivered: int = 0
    failed: int = 0
    last_delivered_s: int | None = None
    last_error: str | None = None


def build_alert_body(alert: Alert, time_text: str) -> dict[str, Any]:
    """Return the JSON of a webhook about ``alert``; ``time_text`` is the time of the alert as text."""
    return {"id": alert.id, "type": alert.kind, "subject": alert.subject, "message": alert.message, "at": time_text}
