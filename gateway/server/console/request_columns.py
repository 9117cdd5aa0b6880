"""The columns of the request list, and the cookie with those that a reader has chosen."""

from collections.abc import Iterable, Mapping

from gateway.frozen import frozen
from gateway.server.console.routes import mark

COOKIE = "console_request_columns"
"""The cookie with the names of the chosen columns, joined by dots. A script sets it."""


@frozen
class Column:
    """A column of the request list.

    Attributes:
        label: its English title.
        kind: its CSS class: "number", "time", "outcome", or "wide" for texts that share the room that is left.
        for_operators: whether only administrators have it.
        is_default: whether it is shown to readers who have not chosen.
    """

    label: str
    kind: str = "wide"
    for_operators: bool = False
    is_default: bool = False


COLUMNS: Mapping[str, Column] = {
    "time": Column(mark("Time"), "time", is_default=True),
    "model": Column(mark("Model"), is_default=True),
    "served_model": Column(mark("Answered by"), for_operators=True),
    "route": Column(mark("Route")),
    "endpoint": Column(mark("Endpoint")),
    "key": Column(mark("Key"), is_default=True),
    "end_user": Column(mark("End user")),
    "session": Column(mark("Session")),
    "tags": Column(mark("Tags")),
    "channel": Column(mark("Channel"), for_operators=True, is_default=True),
    "outcome": Column(mark("Outcome"), "outcome", is_default=True),
    "status": Column(mark("HTTP status"), "number"),
    "attempts": Column(mark("Attempts"), "number"),
    "queued": Column(mark("Queued"), "number"),
    "tokens": Column(mark("Tokens"), "number", is_default=True),
    "speed": Column(mark("Tokens/s"), "number"),
    "first_byte": Column(mark("First byte"), "number", is_default=True),
    "duration": Column(mark("Duration"), "number", is_default=True),
    "cost": Column(mark("Cost"), "number", is_default=True),
}
_ALWAYS_SHOWN = "time"


def list_columns(*, sees_all_accounts: bool) -> dict[str, Column]:
    """Return the columns that a reader may choose, by name."""
    return {name: column for name, column in COLUMNS.items() if sees_all_accounts or not column.for_operators}


def choose_columns(cookie: str, columns: Mapping[str, Column]) -> list[str]:
    """Return the names of the shown columns in order: the time and those that ``cookie`` names, or the default ones."""
    chosen_names = set(_keep_known(cookie.split("."), columns))
    if not chosen_names:
        return [name for name, column in columns.items() if column.is_default]
    return [name for name in columns if name in chosen_names or name == _ALWAYS_SHOWN]


def _keep_known(names: Iterable[str], columns: Mapping[str, Column]) -> list[str]:
    return [name for name in names if name in columns]
