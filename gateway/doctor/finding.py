"""The result of a check."""

from typing import Literal

from gateway.frozen import frozen

State = Literal["ok", "warning", "problem", "skipped"]


@frozen
class Finding:
    """The result of one check.

    Attributes:
        check: the subject, such as ``database``.
        state: a problem keeps the gateway from working, a warning does not; ``skipped``: nothing was checked.
        text: the finding, as text for the operator.
        fix: the suggested action; empty if none is needed.
    """

    check: str
    state: State
    text: str
    fix: str = ""
