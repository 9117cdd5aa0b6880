"""The result of a check."""

from typing import Literal

from gateway.frozen import frozen

State = Literal["ok", "warning", "problem", "skipped"]


@frozen
class Finding:
    """The result of one check.

    Attributes:
        state: a problem keeps the gateway from working, a warning does not; ``skipped``: nothing was checked.
        fix: the suggested action; empty if none is needed.
    """

    check: str
    state: State
    text: str
    fix: str = ""
