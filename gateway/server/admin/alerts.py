"""Admin API: the targets of alerts, the last alerts, and a test of a target."""

from typing import Any

from gateway.alerts.watcher import AlertWatcher
from gateway.domain.account_spec import build_time
from gateway.domain.alert import KINDS, TargetStatus
from gateway.errors import NotFound
from gateway.server.admin.handler import AdminRequest, Fields, admin_operation
from gateway.server.openapi import schema as s

_TARGET = s.record(
    name=s.TEXT,
    address=s.TEXT,
    kinds=s.array(s.one_of(*KINDS)),
    delivered=s.COUNT,
    failed=s.COUNT,
    last_delivered_at=s.maybe(s.MOMENT),
    last_error=s.maybe(s.TEXT),
)
_ALERT = s.record(type=s.one_of(*KINDS), subject=s.TEXT, message=s.TEXT, at=s.MOMENT)
_TESTED = s.record(name=s.TEXT, delivered=s.FLAG, error=s.maybe(s.TEXT))


@admin_operation(answer=s.record(targets=s.array(_TARGET), recent=s.array(_ALERT)))
async def list_alerts(request: AdminRequest) -> Fields:
    """List the targets of alerts and the last alerts since the start, the newest first."""
    watcher = request.services.alerts
    recent = [] if watcher is None else watcher.recent
    return {
        "targets": [] if watcher is None else [_build_target(target.status) for target in watcher.targets],
        "recent": [
            {"type": one.kind, "subject": one.subject, "message": one.message, "at": build_time(one.at_s)}
            for one in recent
        ],
    }


@admin_operation(answer=s.listing(_TESTED))
async def test_alerts(request: AdminRequest) -> list[Fields]:
    """Send a test alert to every target, and tell which took it."""
    return await _get_watcher(request).test()


@admin_operation(answer=_TESTED)
async def test_alert(request: AdminRequest) -> Fields:
    """Send a test alert to one target, and tell whether it took it."""
    name = request.match_info["name"]
    tested = await _get_watcher(request).test(name)
    if not tested:
        raise NotFound(f"No [[alert]] has the name {name[:64]!r}")
    return tested[0]


def _get_watcher(request: AdminRequest) -> AlertWatcher:
    watcher = request.services.alerts
    if watcher is None:
        raise NotFound("The configuration has no [[alert]]")
    return watcher


def _build_target(status: TargetStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "address": status.address,
        "kinds": [kind for kind in status.kinds if kind != "test"],
        "delivered": status.delivered,
        "failed": status.failed,
        "last_delivered_at": None if status.last_delivered_s is None else build_time(status.last_delivered_s),
        "last_error": status.last_error,
    }
