"""Admin API: the targets of alerts, the last alerts, and a test of a target."""

from collections.abc import Sequence
from typing import Annotated

from gateway.alerts.watcher import AlertWatcher
from gateway.answer_fields import Count, FieldSchema, Moment
from gateway.domain.account_spec import build_time
from gateway.domain.alert import KINDS, TargetStatus
from gateway.errors import NotFound
from gateway.frozen import frozen
from gateway.server.admin.answer import build_view
from gateway.server.admin.handler import AdminRequest, admin_operation
from gateway.server.openapi import schema as s


@frozen(kw_only=True)
class TargetView:
    """A target, and what became of its alerts since the start."""

    name: str
    address: str
    kinds: Sequence[Annotated[str, FieldSchema(s.one_of(*KINDS))]]
    delivered: Count
    failed: Count
    last_delivered_at: Moment | None
    last_error: str | None


@frozen(kw_only=True)
class AlertView:
    """An alert that was sent."""

    type: Annotated[str, FieldSchema(s.one_of(*KINDS))]
    subject: str
    message: str
    at: Moment


@frozen(kw_only=True)
class TestedTarget:
    """Whether a target took a test alert."""

    name: str
    delivered: bool
    error: str | None


@frozen(kw_only=True)
class AlertsView:
    """The targets, and the last alerts."""

    targets: Sequence[TargetView]
    recent: Sequence[AlertView]


@admin_operation()
async def list_alerts(request: AdminRequest) -> AlertsView:
    """List the targets of alerts and the last alerts since the start, the newest first."""
    watcher = request.services.alerts
    recent = [] if watcher is None else watcher.recent
    return AlertsView(
        targets=[] if watcher is None else [_build_target(target.status) for target in watcher.targets],
        recent=[build_view(AlertView, alert, type=alert.kind, at=build_time(alert.at_s)) for alert in recent],
    )


@admin_operation()
async def test_alerts(request: AdminRequest) -> list[TestedTarget]:
    """Send a test alert to every target, and tell which took it."""
    return [TestedTarget(**result) for result in await _get_watcher(request).test()]


@admin_operation()
async def test_alert(request: AdminRequest) -> TestedTarget:
    """Send a test alert to one target, and tell whether the target accepted it."""
    name = request.match_info["name"]
    test_results = await _get_watcher(request).test(name)
    if not test_results:
        raise NotFound(f"No [[alert]] has the name {name[:64]!r}")
    return TestedTarget(**test_results[0])


def _get_watcher(request: AdminRequest) -> AlertWatcher:
    watcher = request.services.alerts
    if watcher is None:
        raise NotFound("The configuration has no [[alert]]")
    return watcher


def _build_target(status: TargetStatus) -> TargetView:
    return build_view(TargetView, status, kinds=[kind for kind in status.kinds if kind != "test"])
