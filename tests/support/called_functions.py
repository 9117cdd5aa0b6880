"""Which functions a piece of work calls: a measure of its cost that is the same on every machine."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def list_called(work: Callable[[], Any]) -> list[str]:
    """The name of every function of Python's that is called, each as often as it is; none of its file's."""
    names: list[str] = []
    ours = {__file__, sys._getframe(1).f_code.co_filename}

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_code.co_filename not in ours:
            names.append(frame.f_code.co_qualname)

    gc.collect()  # finalizers and callbacks of other objects are no part of the work
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return names
