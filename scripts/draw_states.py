"""Draws the states of a video's job, and where each of them leads, into the docstring of ``gateway/domain/video.py``.

    .venv/bin/python scripts/draw_states.py

The states stand in one line, with an arrow to the next where it follows. Every other way is a line below, one for each
state that is led to: from each ``o`` to the ``^`` at its end.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.domain import video

MODULE = Path(video.__file__)
INDENT = "    "
ARROW, GAP = " -> ", "    "


def draw(transitions: Mapping[Any, Sequence[str]]) -> str:
    """The drawing. A state may lead to itself and to those that come after it in ``transitions``, to none before."""
    states: list[str] = list(transitions)
    head, middles = states[0], [len(states[0]) // 2]
    for before, state in pairwise(states):
        head += ARROW if state in transitions[before] else GAP
        middles.append(len(head) + len(state) // 2)
        head += state
    lines = [head]
    for place, state in enumerate(states):
        sources = [middles[other] for other in range(len(states)) if state in transitions[states[other]]]
        if place and state in transitions[states[place - 1]] and place + 1 < len(states):
            sources.remove(middles[place - 1])  # the arrow says so; of the last state the line says it of all
        if sources:
            lines.append(draw_way(sources, middles[place]))
    return "\n".join(INDENT + line for line in lines)


def draw_way(sources: Sequence[int], target: int) -> str:
    """From each column of ``sources`` to beside that of ``target``."""
    end = target + 1
    if max(sources) > target:
        raise ValueError("a way back cannot be drawn")
    marks = {**dict.fromkeys(range(min(sources) - 1, end), "-"), **{source - 1: "o" for source in sources}, end: "^"}
    return "".join(marks.get(column, " ") for column in range(end + 1))


def lay_in(text: str, drawing: str) -> str:
    """A module's source with the drawing as the second paragraph of its docstring."""
    title, _, rest = text.partition("\n\n")
    _, _, more = rest.partition("\n\n")
    return f"{title}\n\n{drawing}\n\n{more}"


def main() -> None:
    """Draw."""
    text = MODULE.read_text()
    drawn = lay_in(text, draw(video.TRANSITIONS))
    if drawn != text:
        MODULE.write_text(drawn)
    print(draw(video.TRANSITIONS))


if __name__ == "__main__":
    main()
