"""Usage of sessions, summed from the stored requests. A session is a conversation or a run of an agent."""

from typing import NamedTuple

import attrs

from gateway.frozen import frozen

SessionKey = tuple[int, str]
"""The id of a session's account, and the session's name."""


class SessionCursor(NamedTuple):
    """Where a page of sessions begins: all matching requests of its sessions come before ``sequence``.

    ``searched``: up to which sequence the first session of the page is known to have no later match, which would put it
    on an earlier page; 0: no such search has begun.
    """

    sequence: int
    searched: int = 0

    def __str__(self) -> str:
        return f"{self.sequence}-{self.searched}" if self.searched else str(self.sequence)


@frozen
class SessionFilter:
    """A filter for sessions: those with a matching request. None does not restrict.

    ``since_ms``: settled then or later, in Unix milliseconds.
    """

    account_id: int | None = None
    key_id: int | None = None
    end_user: str | None = None
    since_ms: int | None = None
    before: SessionCursor | None = None


@frozen
class SessionPage:
    """A page of sessions, the last used first. ``next``: the ``before`` of the next page; None after the last one."""

    sessions: tuple[SessionKey, ...]
    next: SessionCursor | None = None


@frozen
class SessionUsage:
    """The sums of a session's stored requests.

    Attributes:
        account: the name of the account in the last request. ``key_id``, ``key_name`` and ``end_user`` are those of the
            last request, too.
        started_ms: when the first request arrived, in Unix milliseconds.
        settled_ms: when the last request was settled.
        first_prompt_tokens: the length of the first prompt; 0 if no request has one. ``last_prompt_tokens`` is that of
            the last prompt.
        is_partial: whether older requests of the session are not counted.
    """

    account: str
    key_id: int
    key_name: str
    end_user: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_nanos: int
    started_ms: int
    settled_ms: int
    first_prompt_tokens: int
    last_prompt_tokens: int
    is_partial: bool = attrs.field(kw_only=True)


UNUSED = SessionUsage("", 0, "", "", *([0] * 9), is_partial=False)
"""The usage of a session without stored requests."""
