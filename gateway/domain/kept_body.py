"""Kept bodies: what a request asked, what its client was sent, and what providers answered to failed attempts."""

from typing import Literal

import attrs

from gateway.frozen import frozen, quick_frozen

BodyKind = Literal["request", "answer", "provider_error"]
LossReason = Literal["memory", "size", "disk", "store", "fault"]
"""Why nothing of a request was kept: too much waited to be written, a body was too large, the disk failed, too much
waited to be moved to the shared store, or there is a fault in the gateway."""


@quick_frozen
class BodyPart:
    """One body of a request.

    Attributes:
        received_bytes: its size before anything was replaced or left out.
        channel: the channel of the failed attempt; empty for other kinds.
        status: the HTTP status of the provider's error; 0 for other kinds.
        event_times_ms: for a stream of events, when each event was sent, in milliseconds after the request began.
        redacted: whether something was replaced or left out by redaction.
        cut: whether the middle was left out.
    """

    kind: BodyKind
    content: bytes = attrs.field(repr=False)
    media_type: str
    received_bytes: int
    channel: str = ""
    status: int = 0
    event_times_ms: tuple[int, ...] = ()
    redacted: bool = False
    cut: bool = False


@quick_frozen
class BodyOwner:
    """Whose bodies these are: the request, and for whom it was made. ``started_ms``: Unix milliseconds."""

    request_id: str
    account_id: int
    key_id: int
    started_ms: int
    end_user: str = ""
    session: str = ""


@frozen
class BodyFilter:
    """Which bodies to delete: those that match every field that is not None.

    ``before_ms`` matches requests that began before this time (Unix milliseconds).
    """

    request_id: str | None = None
    account_id: int | None = None
    key_id: int | None = None
    end_users: frozenset[str] | None = None
    session: str | None = None
    before_ms: int | None = None

    def covers(self, owner: BodyOwner) -> bool:
        """Return whether the bodies of ``owner`` match."""
        return (
            self.request_id in {None, owner.request_id}
            and self.account_id in {None, owner.account_id}
            and self.key_id in {None, owner.key_id}
            and (self.end_users is None or owner.end_user in self.end_users)
            and self.session in {None, owner.session}
            and (self.before_ms is None or owner.started_ms < self.before_ms)
        )


@frozen
class DeletedBodies:
    """The result of a deletion, in numbers of requests.

    ``pending`` are those whose bodies are hidden from now on, and which other nodes have yet to delete.
    """

    requests: int
    pending: int = 0


@frozen
class StoredBodies:
    """The figures of kept bodies.

    Attributes:
        requests: the number of requests with kept bodies, over all nodes.
        lost: the number of requests of which nothing could be kept.
        bytes: the size of this node's segments, and of those of all nodes in the shared store.
        oldest_ms: when the oldest of these requests began, in Unix milliseconds; None without one.
        problem: why bodies cannot be written now; empty if they can.
        waiting_bytes: what waits in memory to be written, with the bodies of running requests.
        pending: the number of requests whose bodies are hidden, and have yet to be erased, on all nodes.
        unmoved_bytes: the size of this node's segments that wait to be moved to the shared store.
    """

    requests: int
    lost: int
    bytes: int
    oldest_ms: int | None
    problem: str
    waiting_bytes: int
    pending: int = 0
    unmoved_bytes: int = 0
