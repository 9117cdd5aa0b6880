"""An event of a video job reaches the handlers of every node once, and no node sends what it was sent."""

from collections.abc import Sequence

from gateway.cluster.membership.job_events import connect_events
from gateway.cluster.membership.notifications import MEMBERS, NodeNotifications, build_messages
from gateway.videos.events import JobCancelled, JobChanged, JobEnded, JobStarted, ShareChanged
from tests.support.table_rows import table_rows

KINDS = (JobStarted, JobEnded, JobCancelled, JobChanged, ShareChanged)


async def send_nowhere(_messages: Sequence[str]) -> None:
    """The tests hand messages on themselves."""


@table_rows(
    ("events", "message"),
    [
        ([JobStarted()], "a\nvideo_begun "),
        ([JobStarted(), JobStarted()], "a\nvideo_begun "),
        ([JobEnded()], "a\nvideo_ended "),
        ([JobCancelled("v1"), JobCancelled("v2")], "a\nvideo_cancelled v1\nvideo_cancelled v2"),
        ([JobChanged("v1")], "a\nvideo_changed v1"),
    ],
)
def test_event_reaches_the_other_node_once(events: Sequence[object], message: str) -> None:
    nodes = {name: NodeNotifications(name) for name in "ab"}
    heard: dict[str, list[object]] = {name: [] for name in nodes}
    connected = {name: connect_events(node) for name, node in nodes.items()}
    for name, node_events in connected.items():
        for kind in KINDS:
            node_events.subscribe(kind, heard[name].append)
    for event in events:
        connected["a"].publish(event)
    messages = build_messages("a", nodes["a"]._unsent_notifications)
    assert messages == [message], "nodes of an earlier version know these words"
    for node in nodes.values():
        for each in messages:
            node.receive(each)
    assert heard == {"a": events, "b": list(dict.fromkeys(events))}
    assert not nodes["b"]._unsent_notifications


def test_nodes_that_join_or_leave_are_an_event_of_each_node() -> None:
    notifications = NodeNotifications("a")
    heard: list[object] = []
    connect_events(notifications).subscribe(ShareChanged, heard.append)
    notifications.deliver(MEMBERS)
    assert heard == [ShareChanged()]
    assert not notifications._unsent_notifications
