"""What the fault tests saw, as a table at the end of a run: also of one that was spread over processes.

A test notes what it saw on its item (``user_properties``), which pytest hands from process to process with its report.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

import pytest

Channels = Literal["one", "two"]
When = Literal["before", "after"]

COLUMNS = tuple(
    (stream, when, channels) for stream in (True, False) for when in ("before", "after") for channels in ("one", "two")
)
FAULTS: Mapping[str, str] = {
    "U1": "out of reach",
    "U2": "dies before its headers",
    "U3": "TLS not to be trusted",
    "U4": "malformed HTTP",
    "U5": "cut off",
    "U6": "end without the end mark",
    "U7": "bytes after the end",
    "U8": "silence",
    "U9": "trickle, comments for ever",
    "U10": "an event without end",
    "U11": "encoded, not as asked",
    "U12": "refused, overloaded",
    "U13": "redirect",
    "U14": "strange usage",
    "U15": "an error with status 200",
    "U16": "cuts, line ends, BOM",
    "U17": "dead, after its trip",
}
LEGEND = """\
Before and after the first byte, on one channel and with a healthy second. A number: the status that the caller got, 200
in spite of the fault. "next": the second channel's answer. "frame": an error event in the stream, and no end mark.
"After", where nothing is streamed: part of the body had come. A dot: cannot be. An exclamation mark: the test failed.
""".splitlines()


class _Report(Protocol):
    user_properties: list[tuple[str, object]]
    failed: bool


class Notes:
    """Where one test writes what it saw."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def add_cell(self, number: str, word: str, *, stream: bool, when: When, channels: Channels) -> None:
        """``word`` for what a fault came to; of a scene of another dialect ``number`` is as in ``U5 gemini``."""
        self._item.user_properties.append(("fault", f"{number}|{stream}|{when}|{channels}|{word}"))

    def add_figure(self, text: str) -> None:
        """A line under the table."""
        self._item.user_properties.append(("figure", text))


def write_table(reports: Iterable[_Report]) -> list[str]:
    """The lines; none where no test noted anything."""
    cells: dict[tuple[str, str], dict[str, None]] = {}
    figures: list[str] = []
    tests: dict[str, int] = {}
    for report in reports:
        for name, value in report.user_properties:
            if name == "figure":
                figures.append(str(value))
            elif name == "fault":
                number, _, rest = str(value).partition("|")
                column, _, word = rest.rpartition("|")
                cells.setdefault((number, column), {})[word + ("!" if report.failed else "")] = None
                tests[number] = tests.get(number, 0) + 1
    lines = [*LEGEND, *_write_head(), *(_write_line(number, cells, tests[number]) for number in _sort(tests))]
    return [*(lines if tests else ()), *sorted(figures)]


def _sort(numbers: Iterable[str]) -> list[str]:
    def key(number: str) -> tuple[str, int]:
        fault, _, api_format = number.partition(" ")
        return api_format, int(fault[1:])

    return sorted(numbers, key=key)


def _write_head() -> list[str]:
    return [
        f"{'':40}{'streamed':^36}{'whole':^36}",
        f"{'':40}" + f"{'before':^18}{'after':^18}" * 2,
        f"{'':31}{'tests':>9}" + f"{'one':^9}{'two':^9}" * 4,
    ]


def _write_line(number: str, cells: Mapping[tuple[str, str], Mapping[str, None]], tests: int) -> str:
    fault, _, api_format = number.partition(" ")
    words = ["/".join(sorted(cells.get((number, _write_column(*column)), ()))) or "." for column in COLUMNS]
    return (
        f"{fault:4}{f'{api_format}: ' if api_format else ''}{FAULTS[fault]}"[:36].ljust(36)
        + f"{tests:>4}"
        + _lay(words)
    )


def _write_column(stream: bool, when: str, channels: str) -> str:
    return f"{stream}|{when}|{channels}"


def _lay(words: Sequence[str]) -> str:
    return "".join(f"{word:^9}" for word in words).rstrip()
