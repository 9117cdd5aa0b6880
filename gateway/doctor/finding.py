"""The result of a check."""

from typing import Literal

from gateway.frozen import frozen

State = Literal["ok", "warning", "problem", "skipped"]


@frozen
class Finding:
    """The result of one check.

    Attributes:
        state: ``problem`` if something is broken or unsafe; ``warning`` if it may become so; ``skipped`` if nothing was
            checked.
        fix: the suggested action; empty if none is needed.
    """

    check: str
    state: State
    text: str
    fix: str = ""
