"""What a check has found."""

from typing import Literal

from gateway.frozen import frozen

State = Literal["ok", "warning", "problem", "skipped"]


@frozen
class Finding:
    """The result of one check.

    Attributes:
        check: the subject, such as ``database``.
        state: a problem keeps the gateway from working, a warning does not; ``skipped``: nothing was checked.
        text: what was found.
        fix: what the operator can do; empty if nothing is to be done.
    """

    check: str
    state: State
    text: str
    fix: str = ""
