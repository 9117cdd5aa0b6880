"""Relays the events of video jobs between the nodes of a cluster."""

from collections.abc import Callable, Mapping
from functools import partial

from gateway.cluster.membership.notifications import MEMBERS, NodeNotifications
from gateway.events import Events
from gateway.videos.events import JobCancelled, JobChanged, JobEnded, JobStarted, ShareChanged

_NAMES: Mapping[type, str] = {
    JobStarted: "video_begun",
    JobEnded: "video_ended",
    JobCancelled: "video_cancelled",
    JobChanged: "video_changed",
}
"""The names of events in notifications; nodes of an earlier version know them."""
_BUILDERS: Mapping[str, Callable[[str], object]] = {
    # Without the job's id, so that many events within ``PAUSE_S`` share one notification.
    "video_begun": lambda _: JobStarted(),
    "video_ended": lambda _: JobEnded(),
    "video_cancelled": JobCancelled,
    "video_changed": JobChanged,
    MEMBERS: lambda _: ShareChanged(),
}


def connect_events(notifications: NodeNotifications) -> Events:
    """Return events that reach every node, except ``ShareChanged``, which ``notifications`` deliver locally."""
    events = Events(relay=partial(_publish, notifications))
    for name in _BUILDERS:
        notifications.subscribe(name, partial(_deliver, events, name))
    return events


def _publish(notifications: NodeNotifications, event: object) -> None:
    notifications.publish(_NAMES[type(event)], getattr(event, "video_id", ""))


def _deliver(events: Events, name: str, video_id: str) -> None:
    events.deliver(_BUILDERS[name](video_id))
